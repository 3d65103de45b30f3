"""QB-Norm against the formula of its paper, query by query."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from prvr.errors import DataError
from prvr.published.qb_norm import QBNormSettings, QBNormStage, QueryBank, qb_norm
from prvr.stages import EncodedSplit
from prvr.types import VideoEmbedding, tensors_of


def loop(scores: torch.Tensor, bank: torch.Tensor, beta: float, top_k: int) -> list[list[float]]:
    """The dynamic inverted softmax, as published."""
    active = {v for row in bank.tolist() for v in sorted(range(len(row)), key=lambda v: -row[v])[:top_k]}
    result = []
    for row in scores.tolist():
        if row.index(max(row)) not in active:
            result.append(row)
            continue
        mass = [sum(math.exp(beta * p[v]) for p in bank.tolist()) for v in range(len(row))]
        result.append([math.exp(beta * s) / m for s, m in zip(row, mass, strict=True)])
    return result


@given(st.integers(0, 10_000), st.integers(1, 3), st.sampled_from([1.0, 20.0]))
def test_it_is_the_published_formula(seed: int, top_k: int, beta: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(6, 7, generator=generator, dtype=torch.float64) * 2 - 1
    bank = torch.rand(4, 7, generator=generator, dtype=torch.float64) * 2 - 1
    ours, true = qb_norm(scores, bank, beta, top_k), torch.tensor(loop(scores, bank, beta, top_k), dtype=torch.float64)
    for row, expected, plain in zip(ours, true, scores, strict=True):
        if torch.equal(expected, plain):
            assert torch.equal(row, plain)
        else:
            torch.testing.assert_close((beta * row).exp(), expected, rtol=1e-9, atol=0)


def test_banks_add_up() -> None:
    bank = torch.rand(9, 6)
    whole, parts = QueryBank.of(bank), [QueryBank.of(part) for part in bank.split(4)]
    added = parts[0] + parts[1] + parts[2]
    torch.testing.assert_close(added.log_mass, whole.log_mass)
    assert torch.equal(added.active, whole.active)


def test_a_bank_of_fewer_captions_is_spread_over_those_of_its_split() -> None:
    encoded = {"val": EncodedSplit(torch.eye(11), [])}
    for queries, chosen in ((3, [0, 5, 10]), (1, [0]), (10, [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]), (None, [*range(11)])):
        stage = QBNormStage.load(QBNormSettings(split="val", queries=queries), None, encoded.__getitem__)
        assert stage.texts.argmax(1).tolist() == chosen


def test_bad_input() -> None:
    for bad, message in ((torch.rand(4, 2), "3 columns, the bank 2"), (torch.full((4, 3), torch.nan), "NaN in row 0")):
        with pytest.raises(ValueError, match=message):
            QueryBank.of(bad).normalise(torch.rand(2, 3))


def test_a_bank_comes_back_whole_and_what_is_unknown_in_its_file_is_named(tmp_path: Path) -> None:
    rows = torch.arange(24.0).view(2, 3, 4)
    beside = {name: VideoEmbedding(frames=rows + shift) for shift, name in enumerate(("path", "stream"), 1)}
    for videos in (VideoEmbedding(rows, 2 * rows), VideoEmbedding(rows, **beside)):
        QBNormStage(torch.eye(3), videos).save(tmp_path)
        stage = QBNormStage.load(QBNormSettings(), tmp_path, None)
        before, after = tensors_of(videos), tensors_of(stage.videos)
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)
    file = tmp_path / "bank.safetensors"
    known = load_file(file)
    for name in ("video.merged.sizes", "video.stream.colour", "text.colour", "sound", "sound.frames"):
        save_file(known | {name: torch.ones(2)}, file)
        with pytest.raises(DataError, match=rf"bank\.safetensors: .*{name.rpartition('.')[2]}"):
            QBNormStage.load(QBNormSettings(), tmp_path, None)
    save_file({name: tensor for name, tensor in known.items() if name != "text"}, file)
    with pytest.raises(DataError, match="sentence"):
        QBNormStage.load(QBNormSettings(), tmp_path, None)
