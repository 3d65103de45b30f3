"""Stage 2: runs that are repeated, stopped and resumed, strategies, and what a run leaves behind."""

import json
import shutil
import signal
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from diffusionret import PLAIN, reranking
from kills import START, become, free_ports
from retrievers import MeanPooling
from training_runs import StopInEpoch, half_written, interrupt, same, state_of

from prvr.data import DataError, pack
from prvr.evaluation import EvaluationReport, evaluate
from prvr.published.diffusionret.run_config import read_reranker_config, reranker_run_config
from prvr.published.diffusionret.stage import fingerprint, load_rerankers
from prvr.published.diffusionret.training import learning_splits, train_reranker
from prvr.toy import corpus_key, write_corpus
from prvr.training import Splits, TrainingError

WIDTH = 8
ENDED = ("networks", "optimizer", "scheduler", "epoch", "best")


def open_packed(corpora: Path, cache: Path) -> Splits:
    corpus = write_corpus(corpora / corpus_key(), "tiny")
    packed = [pack(corpus, name, cache_dir=cache) for name in ("train", "val", "test")]
    return Splits(*(whole.subset(range(size)) for whole, size in zip(packed, (20, 8, 10), strict=True)))


def make_retriever(splits: Splits) -> MeanPooling:
    torch.manual_seed(0)
    return MeanPooling(splits.train.feature_dim, splits.train.query_dim, WIDTH)


@pytest.fixture(scope="module")
def splits(toy_cache, tmp_path_factory):
    with closing(open_packed(toy_cache, tmp_path_factory.mktemp("packed"))) as splits:
        yield splits


@pytest.fixture(scope="module")
def retriever(splits):
    return make_retriever(splits)


def make_config(**changes):
    """`changes` are whole values, or keys of groups, after two underscores."""
    reranker, train = {"steps": 4, "candidates": 6}, {"epochs": 2, "batch_size": 34}
    values = {"reranker": reranker, "candidates": {"num": 6, "pool": 8}, "train": train, "optim": {"lr": 3e-3}}
    for key, value in changes.items():
        group, _, name = key.partition("__")
        values[group] = values[group] | {name: value} if name else value
    return reranker_run_config(values, width=WIDTH)


TWO = make_config(train__batch_size=33, optim__lr=1e-5)
"""100 queries: three batches, and a last one with a single row. AdamW would enlarge the rounding of tiny gradients."""


@pytest.fixture(scope="module")
def straight(retriever, splits, tmp_path_factory):
    return train_reranker(make_config(), retriever, splits, output=tmp_path_factory.mktemp("straight") / "run")


def same_end(left: Path, right: Path) -> bool:
    a, b = state_of(left), state_of(right)
    return same({part: a[part] for part in ENDED}, {part: b[part] for part in ENDED})


def test_a_run_leaves_a_folder_that_agrees_with_its_result(straight, retriever, splits) -> None:
    run = straight.output
    assert {p.name for p in run.iterdir()} - {".lock"} == {  # which filelock removes or leaves, by its release
        *("config.yaml", "environment.yaml", "metrics.jsonl", "curves.png", "best", "last"),
        *("evaluation.json", "evaluation_ranks.npz", "evaluation_retriever.json", "evaluation_retriever_ranks.npz"),
    }
    assert half_written(run) == []
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert lines == list(straight.history)
    for line in lines:
        assert line["loss"]["total"] == pytest.approx(line["loss"]["t2v"] + line["loss"]["v2t"])
    assert lines[1]["loss"]["total"] < lines[0]["loss"]["total"]
    assert EvaluationReport.from_json(run / "evaluation.json") == straight.reranked
    assert EvaluationReport.from_json(run / "evaluation_retriever.json") == straight.retriever
    alone = evaluate(retriever, splits.report)
    assert (alone.ranks == straight.retriever.ranks).all()

    rerankers = load_rerankers(run)
    config = read_reranker_config(run / "config.yaml")
    assert config.reranker.trained_on == fingerprint(retriever)
    for direction, best in straight.best.items():
        assert rerankers[direction].config == replace(config.network, weight=best.weight)
    again = evaluate(reranking(retriever, rerankers), splits.report)
    assert (again.ranks == straight.reranked.ranks).all()
    assert (again.video_ranks == straight.reranked.video_ranks).all()


def test_the_selected_weight_and_epoch_are_the_best_of_the_selecting_split(straight, retriever, splits) -> None:
    rerankers = load_rerankers(straight.output)
    found = {}
    for weight in make_config().train.weights:
        report = evaluate(reranking(retriever, rerankers, weight=weight), splits.selection, PLAIN)
        found[weight] = {"t2v": report.text_to_video.rsum, "v2t": report.video_to_text.rsum}
    for direction, best in straight.best.items():
        assert best.rsum == pytest.approx(found[best.weight][direction])
        assert best.rsum == pytest.approx(max(values[direction] for values in found.values()))
        assert best.rsum == max(line["selection"][direction]["rsum"] for line in straight.history)


def test_the_mean_of_epochs_is_kept_for_each_direction(straight, retriever, splits, tmp_path) -> None:
    config = make_config(train__average=2, train__patience=1)
    result = train_reranker(config, retriever, splits, output=tmp_path / "run")
    assert same(state_of(tmp_path / "run")["networks"], state_of(straight.output)["networks"])
    with pytest.raises(KeyboardInterrupt):
        train_reranker(config, retriever, splits, output=tmp_path / "cut", progress=StopInEpoch(2, interrupt, step=1))
    first = state_of(tmp_path / "cut")["networks"]
    kept, last = load_rerankers(tmp_path / "run"), state_of(tmp_path / "run")["networks"]
    for direction, reranker in kept.items():
        assert result.best[direction].epoch == 1
        for name, value in reranker.state_dict().items():
            ends = [networks[direction][name] for networks in (first, last)]
            torch.testing.assert_close(value, (ends[0] + ends[1]) / 2)
    card = (tmp_path / "run" / "best" / "README.md").read_text(encoding="utf-8")
    assert "No epoch was chosen: this is the mean of the weights of epochs 0 to 1" in card


@pytest.mark.parametrize("epoch", [1, 2])
def test_an_interrupted_run_resumes_bitwise(straight, retriever, splits, tmp_path, epoch) -> None:
    run, hit = tmp_path / "run", StopInEpoch(epoch, lambda: signal.raise_signal(signal.SIGINT), step=1)
    with pytest.raises(KeyboardInterrupt):
        train_reranker(make_config(), retriever, splits, output=run, progress=hit)
    state = state_of(run)
    assert (state["epoch"], state["position"]["step"]) == (epoch - 1, 2)
    result = train_reranker(make_config(), retriever, splits, output=run, resume=True)
    assert same_end(run, straight.output)
    assert (result.reranked.ranks == straight.reranked.ranks).all()


def _train_in_two(rank: int, folder: str, cache: str, port: str) -> None:
    become(rank, port)
    torch.set_num_threads(1)
    with closing(open_packed(Path(cache), Path(folder) / f"packed{rank}")) as splits:
        try:
            train_reranker(TWO, make_retriever(splits), splits, output=Path(folder) / "two", device="cpu")
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


def test_two_processes_train_as_one(retriever, splits, toy_cache, tmp_path) -> None:
    """The last batch of an epoch has one row, which leaves a process without any."""
    mp.start_processes(_train_in_two, (str(tmp_path), str(toy_cache), *free_ports(1)), nprocs=2, start_method=START)
    one = train_reranker(TWO, retriever, splits, output=tmp_path / "one", device="cpu")
    assert one.history[-1]["epoch"] == 1
    lines = [json.loads(line) for line in (tmp_path / "two" / "metrics.jsonl").read_text().splitlines()]
    for ours, theirs in zip(lines, one.history, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-5)
        assert ours["selection"] == theirs["selection"]
    two, alone = state_of(tmp_path / "two"), state_of(tmp_path / "one")
    for direction, weights in alone["networks"].items():
        for name, value in weights.items():  # Adam divides small gradients
            torch.testing.assert_close(two["networks"][direction][name], value, rtol=0, atol=5e-5)
    for number, value in alone["optimizer"]["state"].items():  # sums of gradients, which no step has normalised
        gradients, expected = two["optimizer"]["state"][number]["exp_avg"], value["exp_avg"]
        torch.testing.assert_close(gradients, expected, rtol=0, atol=max(1e-7, 1e-4 * float(expected.abs().max())))


class TestStrategies:
    def test_discriminative_is_one_step_without_noise(self, straight, retriever, splits, tmp_path) -> None:
        config = make_config(strategy="discriminative", train__weights=(0.3,))
        found = train_reranker(config, retriever, splits, output=tmp_path / "run")
        rerankers = load_rerankers(found.output)
        assert rerankers["t2v"].config.process == "one_step"
        reports = [evaluate(reranking(retriever, rerankers, seed=seed), splits.report, PLAIN) for seed in (0, 1)]
        assert (reports[0].ranks == reports[1].ranks).all()
        assert found.history[0]["loss"] != straight.history[0]["loss"]

    def test_generative_learns_the_same_and_ranks_by_it_alone(self, straight, retriever, splits, tmp_path) -> None:
        result = train_reranker(make_config(strategy="generative"), retriever, splits, output=tmp_path / "run")
        assert [line["loss"] for line in result.history] == [line["loss"] for line in straight.history]
        assert not (result.reranked.ranks == straight.reranked.ranks).all()
        rerankers = load_rerankers(result.output)
        heavier = evaluate(reranking(retriever, rerankers, weight=9.0), splits.report, PLAIN)
        assert (heavier.ranks == result.reranked.ranks).all()


class TestSplits:
    def test_the_reported_split_is_neither_learned_from_nor_selects(self, splits) -> None:
        for given in (splits, Splits(splits.train, splits.report, splits.report)):
            train, selection = learning_splits(given)
            ids = set(train.video_ids), set(selection.video_ids)
            assert not ids[0] & ids[1]
            assert not (ids[0] | ids[1]) & set(splits.report.video_ids)


class TestBadInput:
    def test_another_configuration_or_retriever_on_resume(self, straight, retriever, splits) -> None:
        with pytest.raises(TrainingError, match=r"reranker\.steps: 4 -> 5"):
            train_reranker(make_config(reranker__steps=5), retriever, splits, output=straight.output, resume=True)
        torch.manual_seed(1)  # the fixture had 0
        other = MeanPooling(splits.train.feature_dim, splits.train.query_dim, WIDTH)
        with pytest.raises(TrainingError, match=r"reranker\.trained_on"):
            train_reranker(make_config(), other, splits, output=straight.output, resume=True)

    def test_files_of_somebody_else(self, straight, tmp_path) -> None:
        shutil.copytree(straight.output / "best", tmp_path / "best")
        weights = tmp_path / "best" / "v2t" / "model.safetensors"
        content = bytearray(weights.read_bytes())
        content[-2] ^= 1
        weights.write_bytes(content)
        with pytest.raises(DataError, match=r"v2t.model\.safetensors: is damaged or was changed"):
            load_rerankers(tmp_path)
