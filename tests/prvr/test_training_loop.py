"""Whole runs on the embedded corpus with a tiny retriever: what a run writes, repeats, resumes and refuses."""

import dataclasses
import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.tracking import GeneralTracker

from prvr.config import Config, ConfigError, config_from_dict, config_to_dict, load_config
from prvr.data import DataError, make_loader, open_corpus
from prvr.evaluation import evaluate
from prvr.models import Retriever
from prvr.results import EvaluationReport
from prvr.training import Splits, TrainingError, open_split, open_splits, resume, train
from prvr.training.job import _in_float32


@pytest.fixture(scope="module")
def cache(embedded_cache: Path) -> str:
    return str(embedded_cache)


@pytest.fixture(scope="module")
def splits(cache: str) -> Iterator[Splits]:
    opened = open_splits(make_config(cache))
    yield opened
    opened.close()


def make_config(cache: str, **changes: Any) -> Config:
    values: dict[str, Any] = {
        "name": "tiny",
        "model": {"video_dim": 512, "query_dim": 48, "hidden": 16, "heads": 2, "num_clips": 8, "max_frames": 16},
        "optim": {"lr": 3e-3},
        "data": {"collection": "embedded-tiny", "cache_dir": cache},
        "train": {"epochs": 2, "batch_size": 16, "hard_negatives_from": 1},
    }
    for key, value in changes.items():
        group, name = key.split("__")
        values.setdefault(group, {})[name] = value
    return config_from_dict(values)


def losses(history: Any) -> list[dict[str, float]]:
    return [line["loss"] for line in history]


@contextmanager
def steps_counter(counts: list[int], title: str, steps: int) -> Iterator[Any]:
    counts.append(steps)
    yield lambda terms: None


class StopInEpoch:
    """A progress hook that acts in the middle of one epoch, as a user or the system might."""

    def __init__(self, number: int, act: Any) -> None:
        self.number, self.act, self.seen = number, act, 0

    @contextmanager
    def __call__(self, title: str, steps: int) -> Iterator[Any]:
        self.seen += 1

        def report(terms: Any) -> None:
            if self.seen == self.number:
                self.act()

        yield report


def interrupt() -> None:
    raise KeyboardInterrupt


def test_a_run_leaves_a_folder_that_agrees_with_its_result(tmp_path: Path, cache: str, splits: Splits) -> None:
    config = make_config(cache)
    result = train(config, output=tmp_path / "run", splits=splits, device="cpu")
    found = sorted(p.relative_to(tmp_path / "run").as_posix() for p in (tmp_path / "run").rglob("*") if p.is_file())
    assert found == [
        "best/README.md",
        "best/config.json",
        "best/model.safetensors",
        "best/objective.safetensors",
        "config.yaml",
        "curves.png",
        "evaluation.json",
        "evaluation_ranks.npz",
        "last/state.pt",
        "metrics.jsonl",
    ]
    assert load_config(tmp_path / "run" / "config.yaml") == config
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines == list(result.history)
    assert [line["epoch"] for line in lines] == [0, 1]
    assert [line["negatives"] for line in lines] == ["random", "hard"]
    scores = [line["sumr"] for line in lines]
    assert result.best_score == max(scores) == scores[result.best_epoch]
    assert result.report.text_to_video.sumr == result.best_score  # protocol paper: selected on what is reported
    assert result.report.intervals
    stored = EvaluationReport.from_json(tmp_path / "run" / "evaluation.json")
    assert stored.text_to_video == result.report.text_to_video
    loaded = Retriever.from_pretrained(tmp_path / "run" / "best")
    again = evaluate(loaded, splits.report, bootstrap=0, seed=config.train.seed)
    assert (again.ranks == result.report.ranks).all()
    card = (tmp_path / "run" / "best" / "README.md").read_text()
    assert f"| SumR | {result.best_score:.1f} |" in card


def test_training_learns_its_own_videos(tmp_path: Path, cache: str, splits: Splits) -> None:
    config = make_config(cache, train__epochs=10, model__hidden=32, train__hard_negatives_from=100)
    learned = Splits(splits.train, splits.train, splits.train)
    result = train(config, output=tmp_path, splits=learned, device="cpu")
    assert result.history[-1]["loss"]["total"] < 0.9 * result.history[0]["loss"]["total"]
    assert result.report.intervals["sumr"].low > result.report.chance + 20


def test_the_seed_decides_every_number(tmp_path: Path, cache: str, splits: Splits) -> None:
    config = make_config(cache, train__epochs=1)
    torch.manual_seed(1)
    first = train(config, output=tmp_path / "a", splits=splits, device="cpu")
    torch.manual_seed(2)
    second = train(config, output=tmp_path / "b", splits=splits, device="cpu")
    other = train(
        make_config(cache, train__epochs=1, train__seed=1), output=tmp_path / "c", splits=splits, device="cpu"
    )
    assert losses(first.history) == losses(second.history)
    assert losses(first.history) != losses(other.history)


@pytest.mark.parametrize(
    "changes",
    [
        {"optim__name": "adamw", "data__captions_per_video": 2},
        {
            "optim__name": "bert_adam",
            "model__registers": {"kind": "diffusion", "num": 2, "steps": 3},
            "loss__diffusion": 0.1,
            "loss__prior_kl": 1e-3,
            "loss__entailment": 1e-3,
        },
    ],
    ids=["adamw", "bert_adam-diffusion"],
)
def test_an_interrupted_run_resumes_bitwise(tmp_path: Path, cache: str, splits: Splits, changes: dict) -> None:
    config = make_config(cache, **changes)
    straight = train(config, output=tmp_path / "straight", splits=splits, device="cpu")
    broken = tmp_path / "broken"
    with pytest.raises(KeyboardInterrupt):
        train(config, output=broken, splits=splits, device="cpu", progress=StopInEpoch(2, interrupt))
    assert (broken / "best" / "model.safetensors").is_file()
    assert not (broken / "evaluation.json").exists()
    counts: list[int] = []
    resumed = resume(broken, splits=splits, device="cpu", progress=lambda t, n: steps_counter(counts, t, n))
    assert len(counts) == 1  # one epoch was left
    assert losses(resumed.history) == losses(straight.history)
    assert [line["sumr"] for line in resumed.history] == [line["sumr"] for line in straight.history]
    left, right = (torch.load(p / "last/state.pt", weights_only=True) for p in (tmp_path / "straight", broken))
    for part in ("retriever", "objective"):
        assert left[part].keys() == right[part].keys()
        assert all(torch.equal(left[part][name], right[part][name]) for name in left[part])


def test_a_run_stopped_in_its_first_epoch_starts_over(tmp_path: Path, cache: str, splits: Splits) -> None:
    config = make_config(cache, train__epochs=1)
    with pytest.raises(KeyboardInterrupt):
        train(config, output=tmp_path / "a", splits=splits, device="cpu", progress=StopInEpoch(1, interrupt))
    resumed = resume(tmp_path / "a", splits=splits, device="cpu")
    straight = train(config, output=tmp_path / "b", splits=splits, device="cpu")
    assert losses(resumed.history) == losses(straight.history)


def test_resuming_a_finished_run_only_reports(tmp_path: Path, cache: str, splits: Splits) -> None:
    config = make_config(cache, train__epochs=1)
    result = train(config, output=tmp_path, splits=splits, device="cpu")
    (tmp_path / "evaluation.json").unlink()  # as if it had been stopped just before
    again = train(config, output=tmp_path, resume=True, splits=splits, device="cpu", progress=StopInEpoch(1, interrupt))
    assert again.report.text_to_video == result.report.text_to_video
    assert again.history == result.history
    third = resume(tmp_path, splits=splits, device="cpu", progress=StopInEpoch(1, interrupt))
    assert third.report.text_to_video == result.report.text_to_video


def test_a_folder_in_use_and_another_configuration_are_refused(tmp_path: Path, cache: str, splits: Splits) -> None:
    config = make_config(cache, train__epochs=1)
    train(config, output=tmp_path, splits=splits, device="cpu")
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(TrainingError, match=r"already holds .*best.*--resume"):
        train(config, output=tmp_path, splits=splits, device="cpu")
    other = make_config(cache, train__epochs=3, model__hidden=32)
    with pytest.raises(TrainingError, match=r"model\.hidden: 16 -> 32; train\.epochs: 1 -> 3"):
        train(other, output=tmp_path, resume=True, splits=splits, device="cpu")
    assert before == {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    moved = make_config("elsewhere", train__epochs=1, train__workers=1, data__root="another disk")
    train(moved, output=tmp_path, resume=True, splits=splits, device="cpu")  # where data lies may change


def test_resume_without_a_run_says_so(tmp_path: Path, cache: str, splits: Splits) -> None:
    with pytest.raises(TrainingError, match="nothing to resume"):
        train(make_config(cache), output=tmp_path / "none", resume=True, splits=splits, device="cpu")
    with pytest.raises(TrainingError, match=r"config\.yaml: no such file"):
        resume(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(TrainingError, match=r"state\.pt: no such file"):
        train(make_config(cache), output=tmp_path, resume=True, splits=splits, device="cpu")


def test_a_state_of_another_model_is_refused_by_name(tmp_path: Path, cache: str, splits: Splits) -> None:
    config = make_config(cache, train__epochs=1)
    train(config, output=tmp_path, splits=splits, device="cpu")
    other = Retriever(dataclasses.replace(config.model, branches="clips"))
    with pytest.raises(TrainingError, match=r"another model: frames\.[\w.]+ is unknown here.* and \d+ more"):
        train(config, output=tmp_path, resume=True, splits=splits, device="cpu", retriever=other)


def test_holdout_selects_on_training_videos_and_scores_the_reported_split_once(tmp_path: Path, cache: str) -> None:
    config = make_config(cache, train__protocol="holdout", train__holdout_fraction=0.2)
    parts = open_splits(config)
    ids = [set(split.video_ids) for split in (parts.train, parts.selection, parts.report)]
    whole = open_split(config, "train")
    assert ids[0] | ids[1] == set(whole.video_ids)
    assert not (ids[0] & ids[1])
    assert not (ids[2] & (ids[0] | ids[1]))
    result = train(config, output=tmp_path, splits=parts, device="cpu")
    best = Retriever.from_pretrained(tmp_path / "best")
    assert result.best_score == evaluate(best, parts.selection, bootstrap=0).text_to_video.sumr
    assert result.report.text_to_video == evaluate(best, parts.report, bootstrap=0).text_to_video
    assert result.report.split == parts.report.name != parts.selection.name
    assert "`holdout`" in (tmp_path / "best" / "README.md").read_text()
    parts.close()


def test_early_stopping_counts_epochs_without_a_better_score(tmp_path: Path, cache: str, splits: Splits) -> None:
    config = make_config(cache, train__epochs=9, train__patience=2, optim__lr=1e-12)
    result = train(config, output=tmp_path, splits=splits, device="cpu")
    assert (result.epochs, result.best_epoch, result.stopped_early) == (3, 0, True)
    again = resume(tmp_path, splits=splits, device="cpu")
    assert (again.epochs, again.stopped_early) == (3, True)


@pytest.mark.parametrize(("videos", "steps"), [(16, 1), (17, 1), (18, 2), (2, 1)])
def test_a_last_batch_of_one_video_is_left_out(
    tmp_path: Path, cache: str, splits: Splits, videos: int, steps: int
) -> None:
    counts: list[int] = []
    few = dataclasses.replace(splits, train=splits.train.subset(range(videos)))
    train(
        make_config(cache, train__epochs=1),
        output=tmp_path,
        splits=few,
        device="cpu",
        progress=lambda t, n: steps_counter(counts, t, n),
    )
    assert counts == [steps]


def test_one_video_is_too_few_to_train_on(splits: Splits) -> None:
    with pytest.raises(TrainingError, match="embedded-tiny train: 1 video to train on"):
        dataclasses.replace(splits, train=splits.train.subset([0]))


def test_a_loss_that_is_not_finite_names_epoch_step_and_videos(tmp_path: Path, cache: str, splits: Splits) -> None:
    config = make_config(cache)
    retriever = Retriever(config.model)

    def poison() -> None:
        with torch.no_grad():
            next(retriever.query.parameters()).fill_(torch.nan)

    with pytest.raises(TrainingError) as caught:
        train(
            config,
            output=tmp_path,
            splits=splits,
            device="cpu",
            retriever=retriever,
            progress=StopInEpoch(2, poison),
        )
    message = str(caught.value)
    assert "epoch 1, step 1 of 4" in message
    assert "total=nan" in message
    named = [video for video in splits.train.video_ids if video in message]
    assert len(named) == 16
    Retriever.from_pretrained(tmp_path / "best")  # what was saved before is whole
    torch.manual_seed(0)
    assert resume(tmp_path, splits=splits, device="cpu").epochs == 2


def test_bf16_trains_and_leaves_no_trace_in_the_process(tmp_path: Path, cache: str, splits: Splits) -> None:
    changes = {
        "model__registers": {"kind": "diffusion", "num": 2, "steps": 3},
        "loss__diffusion": 0.1,
        "train__epochs": 1,
    }
    exact = train(make_config(cache, **changes), output=tmp_path / "no", splits=splits, device="cpu")
    config = make_config(cache, train__precision="bf16", **changes)
    mixed = train(config, output=tmp_path / "bf16", splits=splits, device="cpu")
    assert losses(mixed.history) != losses(exact.history)
    assert mixed.history[0]["loss"]["total"] == pytest.approx(exact.history[0]["loss"]["total"], rel=0.05)
    weights = torch.load(tmp_path / "bf16" / "last" / "state.pt", weights_only=True)["retriever"]
    assert {w.dtype for w in weights.values() if w.is_floating_point()} == {torch.float32}
    repeat = train(make_config(cache, **changes), output=tmp_path / "again", splits=splits, device="cpu")
    assert losses(repeat.history) == losses(exact.history)


def test_records_turn_to_float32_as_a_whole(splits: Splits, cache: str) -> None:
    config = make_config(cache, model__registers={"kind": "diffusion", "num": 2, "steps": 3})
    batch = next(iter(make_loader(splits.train, 4)))
    output = Retriever(config.model)(batch)
    lowered = _in_float32(dataclasses.replace(output, text=output.text.bfloat16()))
    assert lowered.text.dtype == torch.float32
    assert lowered.register_loss.keywords["registers"].tokens.dtype == torch.float32
    assert torch.equal(lowered.scores.total, output.scores.total)


class ListTracker(GeneralTracker):
    name = "list"
    requires_logging_directory = False

    def __init__(self) -> None:
        super().__init__(_blank=False)
        self.lines: list[dict] = []

    @property
    def tracker(self) -> list:
        return self.lines

    def store_init_configuration(self, values: dict) -> None:
        self.config = values

    def log(self, values: dict, step: int | None = None, **_: Any) -> None:
        self.lines.append({"step": step, **values})


def test_accelerate_trackers_get_a_line_per_epoch(tmp_path: Path, cache: str, splits: Splits) -> None:
    tracker = ListTracker()
    result = train(make_config(cache), output=tmp_path, splits=splits, device="cpu", trackers=[tracker])
    assert [line["step"] for line in tracker.lines] == [0, 1]
    assert tracker.lines[1]["loss/total"] == result.history[1]["loss"]["total"]
    assert tracker.lines[1]["selection/sumr"] == result.history[1]["sumr"]


def test_one_line_per_epoch_is_logged(
    tmp_path: Path, cache: str, splits: Splits, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="prvr.training"):
        result = train(make_config(cache), output=tmp_path, splits=splits, device="cpu")
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("epoch ")]
    assert len(lines) == 2
    assert f"loss {result.history[0]['loss']['total']:.4f}" in lines[0]


def test_an_empty_split_is_named(tmp_path: Path, embedded_root: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(embedded_root / "embedded-tiny", root / "moved")
    for file in sorted((root / "moved" / "TextData").iterdir()):
        file.rename(file.with_name(file.name.replace("embedded-tiny", "moved")))
    captions = open_corpus(root, "moved").caption_file("test")
    captions.write_text("", encoding="utf-8")
    config = make_config(str(tmp_path / "cache"), data__root=str(root), data__collection="moved")
    with pytest.raises(DataError, match=captions.name):
        open_split(config, "test")


def test_a_run_goes_on_after_the_disk_was_full(tmp_path: Path, cache: str, splits: Splits) -> None:
    resource = pytest.importorskip("resource")  # a limit on the size of files does what a full disk does
    config = make_config(cache)
    straight = train(config, output=tmp_path / "straight", splits=splits, device="cpu")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))

    run = tmp_path / "run"
    try:
        with pytest.raises(TrainingError, match="cannot be written"):
            train(config, output=run, splits=splits, device="cpu", progress=StopInEpoch(2, fill))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert torch.load(run / "last" / "state.pt", weights_only=True)["epoch"] == 1
    Retriever.from_pretrained(run / "best")
    assert losses(resume(run, splits=splits, device="cpu").history) == losses(straight.history)
    assert not [p for p in run.rglob("*") if "tmp" in p.name or "replaced" in p.name]


def test_missing_data_and_presets_are_explained(tmp_path: Path, cache: str) -> None:
    with pytest.raises(TrainingError, match=r"data\.root is not set.*tvr/FeatureData"):
        train(make_config(cache, data__collection="tvr"), output=tmp_path / "run", device="cpu")
    with pytest.raises(DataError, match="splits"):
        open_split(make_config(cache), "validation")
    with pytest.raises(DataError, match="512 wide"):
        open_splits(make_config(cache, model__video_dim=96))
    with pytest.raises(ConfigError, match="hlformer-tvr"):
        load_config("hlformer-tvrr")
    assert not (tmp_path / "run").exists()


def test_the_state_holds_the_configuration_it_was_made_with(tmp_path: Path, cache: str, splits: Splits) -> None:
    config = make_config(cache, train__epochs=1)
    train(config, output=tmp_path, splits=splits, device="cpu")
    state = torch.load(tmp_path / "last" / "state.pt", weights_only=True)
    assert config_from_dict(state["config"]) == config
    assert state["config"] == config_to_dict(config)
