"""The fit in closed form: plain loops, laws, and runs that consist of it or start from it."""

import json
import re
from dataclasses import replace
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.kernel_ridge import KernelRidge
from training_runs import RUNS, Runs, StraightRuns, losses, make_config

from prvr.cli import main
from prvr.config import ConfigError, PathConfig, load_config
from prvr.data import Caption, PackedSplit, TextData, write_layout
from prvr.errors import InputError
from prvr.evaluation import evaluate
from prvr.evaluation.significance import paired_test
from prvr.models import blocks_alone, load_pretrained, path_alone
from prvr.models.kernel_path import KernelPath, sentences
from prvr.models.kernel_path import kernel as path_kernel
from prvr.training import RunResult, Splits, TrainingError, open_splits
from prvr.training.closed_form import Captions, Part, choose, fit_choice, fit_path, sumr

CPU = torch.device("cpu")
FIT: dict[str, Any] = {
    "model__start": "kernel",
    "fit": {
        "kernel": "gaussian",
        "windows": [[2], [4, 6]],
        "widths": [1.0],
        "penalties": [1.0, 10.0],
        "temperatures": [0.1],
        "landmarks": 100,
    },
}
ALONE = FIT | {"model__branches": "none", "train": {"epochs": 0}}
Map = Any


@pytest.fixture(scope="module")
def captions(cache: str) -> Captions:
    """A few videos of many lengths, in float64, read three at a time, so that shorter ones are padded."""
    train = open_splits(make_config(cache, model__max_frames=60)).train
    few = train.subset(np.argsort(train.frame_counts)[:8])
    assert len({*few.frame_counts.tolist()}) > 3
    return Captions(few, CPU, torch.float64, batch=3)


def fitted(captions: Captions, path: PathConfig, **fit: Any) -> tuple[KernelPath, Any]:
    """The path that a choice gives, and what it makes of each video."""
    wide = captions.sentences.shape[1]
    config = make_config(
        "unused", model__max_frames=60, model__query_dim=wide, fit={"landmarks": 2000, "baseline": "never"} | fit
    )
    path, tensors = fit_choice(captions, path, config.fit)
    module = KernelPath(replace(config.model, start="kernel", path=path)).double()
    module.load_state_dict(tensors)

    def mapped(video: int) -> np.ndarray:
        frames = captions.split.video(video)[1].double()
        return module.encode_video(frames[None], torch.ones(1, len(frames)).bool()).frames[0].numpy()

    return module, mapped


def rows_of(split: PackedSplit, video: int, windows: tuple[int, ...]) -> np.ndarray:
    """(r, w, f)"""
    frames = split.video(video)[1].double().numpy()
    count, step = len(frames), max(min(windows) // 2, 1)
    parts, rows = -(-count // step), []
    for part in range(parts):
        middle = Fraction((2 * part + 1) * count, 2 * parts)
        starts = [max(0, min(floor(middle - Fraction(window - 1, 2)), count - window)) for window in windows]
        rows.append([frames[start : start + window].mean(0) for start, window in zip(starts, windows, strict=True)])
    return np.array(rows)


def sentence_of(split: PackedSplit, query: int) -> np.ndarray:
    words = split.query(query).double().numpy()
    mean = (words / np.linalg.norm(words, axis=1, keepdims=True)).sum(0)
    return mean / np.linalg.norm(mean)


@pytest.mark.parametrize(("kind", "toward"), [("gaussian", "zero"), ("linear", "zero"), ("gaussian", "identity")])
def test_a_fit_is_that_of_plain_loops(kind: Any, toward: Any, captions: Captions) -> None:
    """Kernel ridge regression in its dual form, each caption shared out among the rows of its own video."""
    split, windows, penalty, temperature, width = captions.split, (4, 7), 0.3, 0.1, 0.7
    videos = range(len(split))
    raw = [rows_of(split, video, windows) for video in videos]
    wanted = [[sentence_of(split, query) for query in split.queries_of(video).tolist()] for video in videos]
    start = [rows.mean(1) if toward == "identity" else 0 for rows in raw]
    if toward == "identity":
        wanted = [[np.resize(sentence, raw[0].shape[2]) for sentence in some] for some in wanted]
        captions = Captions(split, CPU, torch.float64, batch=3)
        captions.sentences = torch.from_numpy(np.stack([np.resize(s, raw[0].shape[2]) for s in captions.sentences]))
        rows = np.concatenate(raw)
    else:
        every = np.concatenate([split.video(video)[1].double().numpy() for video in videos])
        deviation = every.std(0)
        scale = np.divide(1, deviation, out=np.zeros_like(deviation), where=deviation > 1e-6)
        rows = (np.concatenate(raw) - every.mean(0)) * scale

    starts = np.concatenate([some * np.ones((len(r), 1)) for some, r in zip(start, raw, strict=True)])
    owner = np.repeat(videos, [len(some) for some in raw])
    gram = np.zeros((len(rows), len(rows)))
    for length in range(2):
        x = rows[:, length]
        apart = np.sqrt(((x[:, None] - x) ** 2).sum(2))
        sigma = width * np.sort(apart[np.triu_indices(len(x), 1)])[(len(x) * (len(x) - 1) // 2 - 1) // 2]
        gram += (x @ x.T if kind == "linear" else np.exp(-(apart**2) / (2 * sigma**2))) / 2

    shares = [[np.full(len(raw[v]), 1 / len(raw[v])) for _ in wanted[v]] for v in videos]
    for _ in range(3):
        count = np.concatenate([np.sum(shares[v], 0) for v in videos])
        sums = [np.array(shares[v]).T @ np.array(wanted[v]) for v in videos]
        target = np.concatenate(sums) / count[:, None] - starts
        weight = count / count.sum()
        middle = np.eye(len(rows)) - (np.outer(np.ones(len(rows)), weight) if toward == "zero" else 0)
        centred, mean = middle @ gram @ middle.T, weight @ target if toward == "zero" else 0
        strength = penalty / 1500 * (weight * np.diag(centred)).sum()
        ridge = np.diag(weight) @ centred + strength * np.eye(len(rows))
        dual = np.linalg.solve(ridge, weight[:, None] * (target - mean))
        found = centred @ dual + mean + starts
        unit = found / np.linalg.norm(found, axis=1, keepdims=True)
        shares = []
        for v in videos:
            logits = [np.exp(unit[owner == v] @ sentence / temperature) for sentence in wanted[v]]
            shares.append([part / part.sum() for part in logits])
    path = PathConfig(windows, kind, toward=toward, width=width, penalty=penalty, temperature=temperature)
    _, mapped = fitted(captions, path, iterations=2, toward=toward)
    for video in videos:
        np.testing.assert_allclose(mapped(video), found[owner == video], atol=1e-8)


@pytest.mark.parametrize("iterations", [0, 3])
def test_one_row_for_each_video_gives_plain_kernel_ridge_regression(iterations: int, captions: Captions) -> None:
    """That of scikit-learn on rows that are repeated for each caption, with nothing to share out."""
    path, mapped = fitted(
        captions, PathConfig((1000,), width=0.9, penalty=2.0, temperature=0.01), iterations=iterations
    )
    assert len(path.landmarks) == 8
    owner = captions.split.query_to_video
    gram = path_kernel(path.landmarks, path.landmarks, path.widths, "gaussian").numpy()[np.ix_(owner, owner)]
    middle = np.eye(len(owner)) - 1 / len(owner)
    centred, wanted = middle @ gram @ middle, captions.sentences.numpy()
    model = KernelRidge(alpha=2 / 1500 * np.trace(centred), kernel="precomputed").fit(centred, middle @ wanted)
    found = model.predict(centred) + wanted.mean(0)
    for query, video in enumerate(owner):
        np.testing.assert_allclose(mapped(video)[0], found[query], atol=1e-8)


@pytest.mark.parametrize("kind", ["gaussian", "linear"])
def test_a_large_penalty_leaves_the_mean_sentence(kind: Any, captions: Captions) -> None:
    _, mapped = fitted(captions, PathConfig((4, 6), kind, penalty=1e9, temperature=0.1))
    for video in range(8):
        assert np.allclose(mapped(video), captions.sentences.mean(0), atol=1e-5)


def test_drawn_to_the_identity_a_large_penalty_leaves_the_windows(captions: Captions) -> None:
    """Zero-shot: rows of frames as they are, in the space of the words."""
    joint = Captions(captions.split, CPU, torch.float64, batch=3)
    joint.sentences = torch.randn(len(joint.sentences), 512, dtype=torch.float64)
    path = PathConfig((4,), toward="identity", width=1.0, penalty=1e9, temperature=0.1)
    _, mapped = fitted(joint, path, toward="identity")
    np.testing.assert_allclose(mapped(2), rows_of(captions.split, 2, (4,)).mean(1), atol=1e-5)


def test_the_order_of_videos_and_batches_does_not_matter(captions: Captions) -> None:
    choice = PathConfig((4, 6), width=0.7, penalty=1.0, temperature=0.1)
    order = np.array([5, 2, 7, 0, 1, 6, 3, 4])
    other = Captions(captions.split.subset(order), CPU, torch.float64, batch=5)
    _, mapped = fitted(captions, choice)
    _, again = fitted(other, choice)
    place = other.split.video_ids.index(captions.split.video_ids[2])
    np.testing.assert_allclose(again(place), mapped(2), atol=1e-8)


def test_few_landmarks_are_near_all_of_them(captions: Captions) -> None:
    choice = PathConfig((4, 6), width=2.0, penalty=100.0, temperature=0.1)
    all_rows, exact = fitted(captions, choice)
    few, near = fitted(captions, choice, landmarks=60)
    assert (len(few.landmarks), len(all_rows.landmarks)) == (60, sum(len(exact(video)) for video in range(8)))
    assert 0 < np.abs(exact(3) - near(3)).max() < 0.05


@pytest.mark.parametrize("kind", ["gaussian", "linear"])
@pytest.mark.parametrize(("frames", "count"), [("drawn", 2), ("still", 2), ("equal", 2), ("equal", 3)])
def test_a_fit_to_few_videos(kind: str, frames: str, count: int, tmp_path: Path) -> None:
    """Rows without variance, as one video alone has, are mapped to the mean sentence."""
    names = [f"train{number}" for number in range(count)] + ["val0", "val1", "test0", "test1"]
    rng = np.random.default_rng(0)
    drawn = {name: rng.standard_normal((3, 16), np.float32) for name in names}
    still = {name: rows[:1].repeat(3, 0) for name, rows in drawn.items()}
    videos = {"drawn": drawn, "still": still, "equal": {name: np.ones_like(rows) for name, rows in drawn.items()}}
    captions = {
        split: [Caption(f"{name}#0", name, "someone") for name in names if name.startswith(split)]
        for split in ("train", "val", "test")
    }
    queries = [(f"{name}#0", rng.standard_normal((4, 8))) for name in names]
    write_layout(
        tmp_path / "tvr", TextData(captions), videos=videos[frames].items(), queries=queries, feature="i3d_resnet"
    )
    options = ["--data-root", str(tmp_path), "--data.cache_dir", str(tmp_path / "cache"), "--fit.kernel", kind]
    options += ["--fit.penalties", "[1, 1e9]"]  # both are tried
    output = tmp_path / "run"
    assert main(["train", "-q", "--preset", "linear-tvr", *options, "--output", str(output), "--device", "cpu"]) == 0
    path = load_pretrained(output / "best").get_submodule("path")
    mapped = path.encode_video(torch.from_numpy(videos[frames]["test0"][None]), torch.ones(1, 3).bool()).frames
    assert mapped.isfinite().all()
    if frames == "equal":
        words = sentences(torch.tensor(np.stack([rows for _, rows in queries[:count]])), torch.ones(count, 4).bool())
        torch.testing.assert_close(mapped[0], words.mean(0).expand(mapped.shape[1:]).float(), atol=1e-5, rtol=0)


def test_equal_scores_count_against_the_fit() -> None:
    """Two videos that are alike: the right one is the second."""
    rows = torch.ones(2, 1, 1)
    part = Part(rows, rows.new_zeros(()), rows[..., 0] > 0, torch.ones(2, 1, 3), torch.tensor([[True], [False]]))
    assert sumr([part], (torch.ones(1, 3), torch.zeros(3))) == 300


@pytest.mark.parametrize(("kernel", "width", "kind"), [("gaussian", 1.0, "gaussian"), ("either", 0.01, "linear")])
def test_a_path_is_the_map_that_was_fitted(
    kernel: str, width: float, kind: Any, splits: Splits, cache: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Chosen and fitted by a configuration, in float32, of fewer landmarks than rows; no Gaussian fits if narrow."""
    caplog.set_level("INFO", "prvr.training.closed_form")
    fit = FIT["fit"] | {"windows": [[4, 6]], "penalties": [1.0], "iterations": 1, "kernel": kernel, "widths": [width]}
    config = make_config(cache, **ALONE | {"fit": fit})
    model, tensors = fit_path(config, splits.train)
    chosen = {"width": width if kind == "gaussian" else None, "penalty": 1.0, "temperature": 0.1}
    assert model.path == PathConfig((4, 6), kind, landmarks=100, **chosen)
    assert f"fit: {model.path.text}" in caplog.messages
    assert not any("at an end" in line for line in caplog.messages)
    path, wanted = fit_choice(Captions(splits.train, CPU, torch.float64), model.path, config.fit)
    frames = splits.train.video(3)[1][None]
    found = []
    for dtype, some in ((torch.float32, tensors), (torch.float64, wanted)):
        module = KernelPath(replace(model, path=path)).to(dtype)
        module.load_state_dict(some)
        found.append(module.encode_video(frames.to(dtype), torch.ones(frames.shape[:2]).bool()).frames.double())
    torch.testing.assert_close(*found, atol=2e-3, rtol=0)


def test_the_split_that_selects_has_a_say_and_one_that_is_reported_has_none(runs: Runs, splits: Splits) -> None:
    """On the few videos that it is fitted to, the smaller penalty is the better one; on others it is the worse."""
    few = splits.train.subset(range(20))
    fit = FIT["fit"] | {"windows": [[2]], "widths": [0.7], "penalties": [0.001, 300.0]}
    for name, val, penalty in (("paper", None, 300.0), ("paper-val", few, 0.001), ("val", None, 0.001)):
        runs.splits = Splits(few, few, few, val)
        config = runs.config(**ALONE | {"fit": fit, "train": {"epochs": 0, "protocol": name.split("-")[0]}})
        captions, selection = Captions(few, CPU), few if penalty < 1 else None
        assert choose(config, captions, None if selection is None else captions).penalty == penalty
        result = runs.train(config, name=name)
        _, tensors = fit_path(config, few, selection=selection)
        saved = load_pretrained(result.output / "best").get_submodule("path").state_dict()
        assert all(torch.equal(saved[name], tensor) for name, tensor in tensors.items())


def test_a_run_that_is_a_fit(runs: Runs, splits: Splits, capsys: pytest.CaptureFixture[str]) -> None:
    """It has a folder as all runs, is better than chance, says what it has chosen, loads, and resumes to nothing."""
    config = runs.config(**ALONE)
    result = runs.train(config)
    assert (result.epochs, result.best_epoch) == (0, -1)
    assert result.report.text_to_video.sumr > result.report.chance + 20
    loaded = load_pretrained(runs.path / "best")
    assert (evaluate(loaded, splits.report).ranks == result.report.ranks).all()
    card = (runs.path / "best" / "README.md").read_text()
    assert "Fitted in closed form" in card
    assert f"Kernel path: {loaded.config.path.text}." in card
    assert re.search(r"windows of [\d, ]+ frames, gaussian kernel, width 1, penalty 10?, temperature 0.1", card)
    assert main(["evaluate", str(runs.path), "--device", "cpu"]) == 0
    assert f"\nkernel path: {loaded.config.path.text}\n" in capsys.readouterr().out
    assert (runs.resume().report.ranks == result.report.ranks).all()
    with pytest.raises(TrainingError, match=r"a kernel regression; .* model\.start=kernel"):
        runs.train(train__start_from=str(runs.path), train__epochs=0, name="deep")


def test_a_path_older_than_the_values_of_its_fit_loads(runs: Runs, splits: Splits, tmp_path: Path) -> None:
    report = runs.train(runs.config(**ALONE)).report
    load_pretrained(runs.path / "best").save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    values = json.loads(file.read_text())
    for name in ("width", "penalty", "temperature"):
        assert values["path"].pop(name) is not None
    file.write_text(json.dumps(values))
    assert (evaluate(load_pretrained(tmp_path), splits.report).ranks == report.ranks).all()


def test_blocks_beside_a_path_have_to_earn_their_share(
    runs: Runs, splits: Splits, straight: RunResult, straight_runs: StraightRuns
) -> None:
    """The share that is best where the epoch is selected, if its lead exceeds the standard error; else none."""
    alone = runs.train(runs.config(**ALONE | RUNS["kernel"]), name="alone")
    start = runs.train(runs.config(**RUNS["kernel"], train__epochs=0), name="start")
    assert (start.report.ranks == alone.report.ranks).all()
    assert start.best_score == alone.best_score  # the path's: no gate is chosen for blocks that are not trained
    assert "Gate:" not in (start.output / "best" / "README.md").read_text()
    result = straight_runs["kernel"]
    assert losses(straight.history) == losses(result.history)  # drawn and trained alike
    assert result.best_score == straight.best_score  # an epoch is selected by its blocks
    kept = load_pretrained(result.output / "best")
    assert (evaluate(path_alone(kept), splits.report).ranks == alone.report.ranks).all()
    assert (evaluate(blocks_alone(kept), splits.report).ranks == straight.report.ranks).all()
    ranks = {}
    for gate in (0.0, *runs.config().fit.gates):
        tried = load_pretrained(result.output / "best")
        tried.path.gate.fill_(gate)
        report = evaluate(tried, splits.selection)
        ranks[gate] = report.text_to_video.sumr, report.ranks
    best = max(ranks, key=lambda gate: ranks[gate][0])
    lead = paired_test(ranks[0.0][1], ranks[best][1], splits.selection.query_to_video, level=0.683)["sumr"]
    assert float(kept.path.gate) == pytest.approx(best if lead.interval.low > 0 else 0)
    assert f"in the score is {float(kept.path.gate):g}." in (result.output / "best" / "README.md").read_text()


def test_widths_of_0_are_those_of_the_data_and_what_does_not_go_together_is_refused(
    runs: Runs, splits: Splits, cache: str
) -> None:
    config = runs.config(**ALONE, model__video_dim=0, model__query_dim=0)
    runs.train(config)
    written = load_config(runs.path / "config.yaml").model
    assert (written.video_dim, written.query_dim) == (512, 48)
    with pytest.raises(InputError, match=r"frames and words of one space.*prvr convert features"):
        fit_path(make_config(cache, **ALONE | {"fit": {"toward": "identity"}}), splits.train)
    with pytest.raises(ConfigError, match="has no blocks to train"):
        make_config(cache, **FIT, model__branches="none")
    with pytest.raises(ConfigError, match=r"fit\.features.*Fourier features gave way to kernels"):
        make_config(cache, fit={"features": [0]})
    assert load_config("linear-tvr") == load_config("kernel-tvr")  # earlier names
    assert make_config(cache, model__start="linear") == make_config(cache, model__start="kernel")
