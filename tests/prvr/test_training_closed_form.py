"""The fit in closed form: plain loops, laws, and runs that consist of it or start from it."""

from typing import Any

import numpy as np
import pytest
import torch
from training_runs import RUNS, Runs, StraightRuns, losses, make_config

from prvr.config import ConfigError, PathConfig, load_config
from prvr.data import PackedSplit
from prvr.errors import InputError
from prvr.evaluation import evaluate
from prvr.models import Retriever, load_pretrained, path_alone
from prvr.models.linear_path import window_means
from prvr.training import RunResult, Splits, TrainingError
from prvr.training.closed_form import Captions, Choice, Features, choose, fit_map, fit_path, fourier, ridge

CPU = torch.device("cpu")
FIT: dict[str, Any] = {
    "model__start": "linear",
    "fit": {"windows": [[1, 4], [2]], "features": [0, 30], "penalties": [1.0, 10.0], "temperatures": [0.1]},
}
ALONE = FIT | {"model__branches": "none", "train": {"epochs": 0}}


@pytest.fixture(scope="module")
def captions(splits: Splits) -> Captions:
    """A few videos, in float64, read three at a time."""
    return Captions(splits.train.subset(range(8)), CPU, torch.float64, batch=3)


def rows_of(split: PackedSplit, video: int, windows: tuple[int, ...]) -> np.ndarray:
    frames = split.video(video)[1].double().numpy()
    count = len(frames)
    places = [(max(0, i - w // 2), min(count, i - w // 2 + w)) for w in windows for i in range(count)]
    return np.stack([frames[start:stop].mean(0) for start, stop in places])


def sentence_of(split: PackedSplit, query: int) -> np.ndarray:
    words = split.query(query).double().numpy()
    mean = (words / np.linalg.norm(words, axis=1, keepdims=True)).sum(0)
    return mean / np.linalg.norm(mean)


def test_a_fit_is_that_of_plain_loops(captions: Captions) -> None:
    split, windows, penalty, temperature = captions.split, (1, 4), 0.3, 0.1
    videos = range(len(split))
    every = np.concatenate([rows_of(split, video, (1,)) for video in videos])
    mean, deviation = every.mean(0), every.std(0)
    scale = np.divide(1, deviation, out=np.zeros_like(deviation), where=deviation > 1e-6)
    rows = [(rows_of(split, video, windows) - mean) * scale for video in videos]
    wanted = [[sentence_of(split, query) for query in split.queries_of(video).tolist()] for video in videos]

    def solve(shares: list[list[np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
        x, y, weight = [], [], []
        for video in videos:
            for sentence, share in zip(wanted[video], shares[video], strict=True):
                for row, part in zip(rows[video], share, strict=True):
                    x.append(row)
                    y.append(sentence)
                    weight.append(part)
        x, y, weight = np.array(x), np.array(y), np.array(weight) / sum(weight)
        middle, target = weight @ x, weight @ y
        spread = (x - middle).T @ (weight[:, None] * (x - middle))
        pairs = (x - middle).T @ (weight[:, None] * (y - target))
        width = len(spread)
        found = np.linalg.solve(spread + penalty * np.trace(spread) / width * np.eye(width), pairs)
        return found, target - middle @ found

    matrix, offset = solve([[np.full(len(rows[v]), 1 / len(rows[v])) for _ in wanted[v]] for v in videos])
    for _ in range(2):
        shares = []
        for video in videos:
            mapped = rows[video] @ matrix + offset
            mapped /= np.linalg.norm(mapped, axis=1, keepdims=True)
            logits = [np.exp(mapped @ sentence / temperature) for sentence in wanted[video]]
            shares.append([part / part.sum() for part in logits])
        matrix, offset = solve(shares)
    features = captions.standard()
    fitted = fit_map(captions, features, Choice(PathConfig(windows), penalty, temperature), 2)
    np.testing.assert_allclose(fitted[0], matrix, atol=1e-10)
    np.testing.assert_allclose(fitted[1], offset, atol=1e-10)


def test_limits_of_the_fit(captions: Captions) -> None:
    """Of large penalties, of one row for each video, and of Fourier features: a Gaussian kernel."""
    weight, bias = ridge(captions.sums(captions.standard(), (2,)), 1e9)
    assert float(weight.abs().max()) < 1e-8
    torch.testing.assert_close(bias, captions.sentences.mean(0), atol=1e-6, rtol=0)
    features, windows = captions.standard(), (1000,)
    plain = ridge(captions.sums(features, windows), 1.0)
    again = fit_map(captions, features, Choice(PathConfig(windows), 1.0, 0.01), 3)
    for one, same in zip(plain, again, strict=True):
        torch.testing.assert_close(one, same, atol=1e-9, rtol=0)
    features = fourier(captions.standard(), captions, (1,), 20_000, 0)
    x = torch.stack([captions.split.video(v)[1][0].double() for v in range(4)])
    plain = Features(features.mean, features.scale)(x)
    sample = torch.cat([captions.split.video(v)[1].double() for v in range(8)])
    width = torch.pdist(Features(features.mean, features.scale)(sample)).median()
    kernel = (-torch.cdist(plain, plain).square() / (2 * width.square())).exp()
    torch.testing.assert_close(2 * features(x) @ features(x).mT / 20_000, kernel, atol=0.05, rtol=0)


def test_a_path_is_the_map_that_was_fitted(splits: Splits, cache: str) -> None:
    """Standardisation and Fourier features are folded into its tensors."""
    for count in (0, 30):
        fit = {"windows": [[4, 1]], "features": [count], "penalties": [1.0], "temperatures": [0.1], "iterations": 1}
        config = make_config(cache, **ALONE | {"fit": fit})
        model, tensors = fit_path(config, splits.train, dtype=torch.float64)
        retriever = Retriever(model)
        retriever.get_submodule("path").load_state_dict(tensors)
        captions = Captions(splits.train, CPU, torch.float64)
        features = fourier(captions.standard(), captions, (4, 1), count, 0)
        weight, bias = fit_map(captions, features, Choice(PathConfig((4, 1), count), 1.0, 0.1), 1)
        frames = splits.train.video(3)[1]
        given = retriever.encode_video(torch.zeros(1, 8, 512), frames[None], torch.ones(1, len(frames)).bool()).frames
        rows, _ = window_means(frames[None].double(), torch.ones(1, len(frames)).bool(), (4, 1))
        torch.testing.assert_close(given, (features(rows) @ weight + bias).float(), atol=1e-4, rtol=1e-4)


def test_the_split_that_selects_has_a_say_and_one_that_is_reported_has_none(runs: Runs, splits: Splits) -> None:
    """On the few videos that it is fitted to, the smaller penalty is the better one; on others it is the worse."""
    few = splits.train.subset(range(20))
    fit = {"windows": [[1]], "features": [0], "penalties": [10.0, 0.001], "temperatures": [0.1]}
    for name, val, penalty in (("paper", None, 10.0), ("paper-val", few, 0.001), ("val", None, 0.001)):
        runs.splits = Splits(few, few, few, val)
        config = runs.config(**ALONE | {"fit": fit, "train": {"epochs": 0, "protocol": name.split("-")[0]}})
        captions, selection = Captions(few, CPU), few if penalty < 1 else None
        assert choose(config, captions, None if selection is None else captions).penalty == penalty
        result = runs.train(config, name=name)
        _, tensors = fit_path(config, few, selection=selection)
        saved = load_pretrained(result.output / "best").get_submodule("path").state_dict()
        assert all(torch.equal(saved[name], tensor) for name, tensor in tensors.items())


def test_a_run_that_is_a_fit(runs: Runs, splits: Splits) -> None:
    """It has a folder as all runs, is better than chance, loads, and resumes to nothing."""
    config = runs.config(**ALONE)
    result = runs.train(config)
    assert (result.epochs, result.best_epoch) == (0, -1)
    assert result.report.text_to_video.sumr > result.report.chance + 20
    loaded = load_pretrained(runs.path / "best")
    assert (evaluate(loaded, splits.report).ranks == result.report.ranks).all()
    assert "Fitted in closed form" in (runs.path / "best" / "README.md").read_text()
    assert (runs.resume().report.ranks == result.report.ranks).all()
    with pytest.raises(TrainingError, match=r"a linear map; .* model\.start=linear"):
        runs.train(train__start_from=str(runs.path), train__epochs=0, name="deep")


def test_a_run_that_starts_linear_scores_as_the_fit_does_and_every_epoch_earns_its_place(
    runs: Runs, splits: Splits, straight: RunResult, straight_runs: StraightRuns
) -> None:
    alone = runs.train(runs.config(**ALONE | RUNS["linear"]), name="alone")
    start = runs.train(runs.config(**RUNS["linear"], train__epochs=0), name="start")
    assert (start.report.ranks == alone.report.ranks).all()
    result = straight_runs["linear"]
    assert result.best_score >= alone.best_score
    gates = [line["gate"] for line in result.history]
    kept = load_pretrained(result.output / "best")
    assert float(kept.path.gate) == pytest.approx(gates[result.best_epoch] if result.best_epoch >= 0 else 0)
    path = evaluate(path_alone(kept), splits.report)
    assert (path.ranks == alone.report.ranks).all()
    assert losses(straight.history) == losses(result.history)  # drawn and trained alike


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
