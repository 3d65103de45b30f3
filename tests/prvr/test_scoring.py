"""Scores against plain loops, and the moment they point to."""

from fractions import Fraction
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from accelerator import DEVICE, Accelerator
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from prvr.published.diffusionret.token_retriever import token_alignment
from prvr.scoring import at_steps, best_moment, max_scores, normalised, word_scores
from prvr.types import VideoEmbedding


@given(st.integers(0, 10_000), st.booleans())
def test_maxima_are_the_plain_loop(seed: int, masked: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    text = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    tokens = torch.randn(4, 6, 5, generator=generator, dtype=torch.float64)
    lengths = torch.randint(1, 7, (4,), generator=generator) if masked else torch.full((4,), 6)
    mask = torch.arange(6) < lengths[:, None] if masked else None
    cosine, dot = max_scores(text, tokens, mask)
    alone, nothing = max_scores(text, tokens, mask, dots=False)
    assert nothing is None
    assert dot is not None
    for q in range(3):
        for v in range(4):
            rows = tokens[v, : lengths[v]]
            assert cosine[q, v].item() == pytest.approx(F.cosine_similarity(text[q], rows).max().item(), abs=1e-12)
            assert alone[q, v].item() == pytest.approx(cosine[q, v].item(), abs=1e-12)
            assert dot[q, v].item() == pytest.approx((rows @ text[q]).max().item(), abs=1e-12)


def test_zero_rows_score_zero_with_finite_gradients() -> None:
    text = torch.tensor([[-1.0, 0.0]], requires_grad=True)
    tokens = torch.tensor([[[1.0, 0.0], [0.0, 0.0]]], requires_grad=True)
    cosine, dot = max_scores(text, tokens)
    assert cosine.tolist() == [[0.0]]
    gradients = torch.autograd.grad(cosine.sum() + dot.sum(), [text, tokens])
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)


def test_a_moment_ends_where_the_score_falls() -> None:
    assert best_moment(torch.tensor([0.0, 0.0, 0.8, 1.0, 0.9, 0.0, 0.9, 0.0]), 80.0) == (20.0, 50.0)
    assert best_moment(torch.tensor([0.5]), 7.0) == (0.0, 7.0)


def test_rows_normalised_once_give_the_same_cosines_bit_by_bit() -> None:
    generator = torch.Generator().manual_seed(0)
    text = torch.randn(7, 6, generator=generator)
    frames, clips = torch.randn(5, 9, 6, generator=generator), torch.randn(5, 3, 6, generator=generator)
    mask = torch.arange(9) < torch.tensor([[9], [1], [4], [8], [2]])
    video = VideoEmbedding(clips=clips, frames=frames, frame_mask=mask)
    once = normalised(video)
    assert normalised(once) is once
    assert VideoEmbedding.cat([once[:2], once[2:]]).unit
    assert not VideoEmbedding.cat([once[:2], video[2:]]).unit
    for tokens, unit, keep in ((clips, once.clips, None), (frames, once.frames, mask)):
        of_unit = max_scores(text, unit, keep, dots=False, unit=True)[0]
        assert torch.equal(of_unit, max_scores(text, tokens, keep, dots=False)[0])
    assert normalised(VideoEmbedding(clips=clips.bfloat16())).clips.dtype == torch.float32
    with pytest.raises(ValueError, match="need the rows as they were"):
        max_scores(text, once.clips, None, dots=True, unit=True)


class Bytes(TorchDispatchMode):
    """Counts the bytes that operators write: all of them, and the most that one of them does."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[int] = [0]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not func.is_view:
            self.written.append(result.numel() * result.itemsize)
        return result


def stored(videos: int, length: int, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit rows in half precision as an index stores them, and a mask of the valid ones."""
    generator = torch.Generator().manual_seed(0)
    rows = F.normalize(torch.randn(videos, length, dim, generator=generator), dim=-1).half()
    rows[-2:] = rows[:2]  # equal videos have equal scores, also of two blocks
    mask = torch.arange(length) < torch.randint(1, length + 1, (videos, 1), generator=generator)
    mask[-2:] = mask[:2]
    return rows, mask


@pytest.mark.parametrize("queries", [1, 5])
def test_scores_of_stored_half_precision_keep_no_copy_of_it(queries: int) -> None:
    rows, mask = stored(4096, 32, 256)
    text = torch.randn(queries, 256, generator=torch.Generator().manual_seed(1))
    expected = (F.normalize(text, dim=-1) @ rows.flatten(0, 1).float().mT).view(queries, *mask.shape)
    expected = expected.masked_fill(~mask, -torch.inf).amax(-1)
    with Bytes() as count:
        scores = max_scores(text, rows, mask, dots=False, unit=True)[0]
    assert max(count.written) <= 2**26 < rows.numel() * 4  # never all in float32
    torch.testing.assert_close(scores, expected, atol=1e-6, rtol=0)
    assert torch.equal(scores.topk(10).indices, expected.topk(10).indices)
    assert torch.equal(scores[:, -2:], scores[:, :2])


@pytest.mark.parametrize("queries", [1, 5])
def test_on_a_card_stored_half_precision_is_multiplied_as_it_is(queries: int) -> None:
    rows, mask = stored(512, 32, 64)
    text = torch.randn(queries, 64, generator=torch.Generator().manual_seed(1))
    expected = max_scores(text, rows, mask, dots=False, unit=True)[0]
    with Accelerator():
        query, tokens, valid = (argument.to(DEVICE) for argument in (text, rows, mask))
        with Bytes() as count:
            scores = max_scores(query, tokens, valid, dots=False, unit=True)[0]
        # Products with both halves of the query, their sum, the mask: numbers of float32 for each row and query.
        assert sum(count.written) <= 4 * mask.numel() * (4 * queries + 3) < 4 * rows.numel()
        assert scores.dtype == torch.float32
        torch.testing.assert_close(scores.cpu(), expected, atol=3e-7, rtol=0)
        assert torch.equal(scores.cpu().topk(10).indices, expected.topk(10).indices)
        with torch.enable_grad():  # the operator has no gradient
            query.requires_grad_()
            assert max_scores(query, tokens, valid, dots=False, unit=True)[0].requires_grad


@given(st.integers(1, 40), st.integers(1, 90))
def test_each_step_takes_the_clip_of_its_middle(clips: int, steps: int) -> None:
    expected = [
        next(c for c in range(clips) if Fraction(2 * t + 1, 2 * steps) < Fraction(c + 1, clips)) for t in range(steps)
    ]
    assert at_steps(torch.arange(clips).double(), steps).tolist() == expected


@pytest.mark.parametrize("dots", [False, True])
@pytest.mark.parametrize("both", [False, True])
def test_late_interaction_by_blocks_is_the_plain_form_with_its_gradients(
    both: bool, dots: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values, gradients and those of gradients, with padding, equal products, and a weight for each word and frame."""
    if both and dots:
        return
    draw = torch.Generator().manual_seed(0)
    inputs = [torch.randn(5, 4, 3, generator=draw).double(), torch.randn(6, 7, 3, generator=draw).double()]
    inputs[1][:, 1] = inputs[1][:, 0]  # ties
    word_mask, frame_mask = (
        torch.arange(x.shape[1]) < torch.randint(1, x.shape[1] + 1, (len(x), 1), generator=draw) for x in inputs
    )
    inputs += [torch.rand(5, 4, generator=draw).double(), torch.rand(6, 7, generator=draw).double()]
    words, frames, word_weights, frame_weights = (x.requires_grad_() for x in inputs)

    def plain() -> torch.Tensor:
        a, b = (words, frames) if dots else (F.normalize(words, dim=-1), F.normalize(frames, dim=-1))
        cosines = torch.einsum("qwd,vfd->qwvf", a, b)
        best = cosines.masked_fill(~frame_mask, -torch.inf).max(3).values
        score = (best * (word_weights * word_mask)[:, :, None]).sum(1)
        if not both:
            return score
        best = cosines.masked_fill(~word_mask[:, :, None, None], -torch.inf).max(1).values
        return (score + (best * frame_weights * frame_mask).sum(2)) / 2

    def ours() -> torch.Tensor:
        if both:
            return token_alignment(words, word_mask, frames, frame_mask, word_weights, frame_weights)
        return word_scores(words, word_mask, word_weights, frames, frame_mask, dots=dots)

    read = [words, frames, word_weights, *[frame_weights] * both]
    upstream = torch.randn(5, 6, generator=draw).double()
    for block, kept in product((1, 3 * 28, 2**24), (0, 2**23)):
        monkeypatch.setattr("prvr.scoring._BLOCK", 8 * block)
        monkeypatch.setattr("prvr.scoring._KEPT", kept)
        results = []
        for score in (plain(), ours()):
            first = torch.autograd.grad((score * upstream).sum(), read, create_graph=True)
            second = torch.autograd.grad(torch.stack([x.square().sum() for x in first]).sum(), read)
            results.append([score, *first, *second])
        for expected, found in zip(*results, strict=True):
            torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)


def test_late_interaction_keeps_memory_linear_in_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prvr.scoring._BLOCK", 8 * 7 * 4)
    monkeypatch.setattr("prvr.scoring._KEPT", 16 * 4 * 16 - 1)
    kept = []
    for videos in (16, 32):
        words, frames = torch.randn(videos, 4, 3, requires_grad=True), torch.randn(videos, 7, 3, requires_grad=True)
        mask, weights, sizes = torch.ones(videos, 4, dtype=torch.bool), torch.rand(videos, 4), {}

        def keep(tensor: torch.Tensor, sizes: dict[int, int] = sizes) -> torch.Tensor:
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            score = word_scores(words, mask, weights, frames)
        kept.append(sum(sizes.values()))
        score.sum().backward()
    assert kept[1] <= 2 * kept[0]
