"""Laws of the retrievers, and every part a configuration can choose."""

import dataclasses
import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import prvr
from prvr.config import (
    LOSSES,
    STREAMS,
    BlockConfig,
    Compat,
    LossConfig,
    ModelConfig,
    RegisterConfig,
    StreamConfig,
)
from prvr.models import Retriever, project_bounds
from prvr.models.blocks import EuclideanMixer, GaussianWindows, TransformerBlocks, gaussian_window
from prvr.models.rows import Sequences
from prvr.objective import Objective
from prvr.published.hlformer.parts import printed_window
from prvr.types import VideoEmbedding

E, L = "euclidean", "lorentz"
SIZES: dict[str, Any] = {
    "video_dim": 10,
    "query_dim": 6,
    "hidden": 16,
    "heads": 2,
    "num_clips": 4,
    "max_frames": 12,
    "max_words": 7,
    "lorentz_dim": 15,
}
SMALL = SIZES | {"blocks": tuple(BlockConfig(space, width) for space in (E, L) for width in (None, 4.0))}


def make_batch(lengths: list[int], seed: int = 0, dtype: torch.dtype = torch.float64, pad_to: int = 0) -> prvr.Batch:
    """Videos of the given numbers of frames, two captions each; padding is filled with nonsense."""
    generator = torch.Generator().manual_seed(seed)
    longest, videos = max(*lengths, pad_to), len(lengths)
    frames = torch.full((videos, longest, 10), 1e3, dtype=dtype)
    clips = torch.empty(videos, 4, 10, dtype=dtype)
    words = torch.full((2 * videos, 7, 6), 1e3, dtype=dtype)
    for v, length in enumerate(lengths):
        own = torch.Generator().manual_seed(1000 * length)
        frames[v, :length] = torch.randn(length, 10, generator=own, dtype=dtype)
        clips[v] = torch.randn(4, 10, generator=own, dtype=dtype)
    counts = torch.randint(1, 8, (2 * videos,), generator=generator)
    for q, count in enumerate(counts.tolist()):
        words[q, :count] = torch.randn(count, 6, generator=generator, dtype=dtype)
    return prvr.Batch(
        clips=clips,
        frames=frames,
        frame_mask=torch.arange(longest) < torch.tensor(lengths)[:, None],
        words=words,
        word_mask=torch.arange(7) < counts[:, None],
        query_to_video=torch.arange(videos).repeat_interleave(2),
        teacher_frames=torch.randn(2 * videos, longest, generator=generator, dtype=dtype),
    )


def build(**changes: Any) -> Retriever:
    torch.manual_seed(0)
    return Retriever(ModelConfig(**(SMALL | changes))).double().eval()


@pytest.mark.parametrize("window", ["multiply", "add"])
def test_stacked_blocks_are_the_sequential_ones(window: str) -> None:
    """K blocks in one computation against K plain blocks one after the other."""
    torch.manual_seed(0)
    model = ModelConfig(video_dim=1, query_dim=1, hidden=8, heads=2, window=window, dropout=0.0)
    blocks = TransformerBlocks(EuclideanMixer(model, 3), 3, 8, 0.0).double()
    for parameter in blocks.parameters():
        nn.init.normal_(parameter, std=0.3)
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    registers = torch.randn(2, 2, 8, dtype=torch.float64)
    widths = (None, 2.0, 8.0)
    windows = GaussianWindows(widths, 6, logarithm=window == "add").double()
    found = blocks(x, Sequences.padded(mask), windows(5), registers)
    weight, bias = blocks.mixer.qkv.weight, blocks.mixer.qkv.bias
    for k, width in enumerate(widths):
        g = gaussian_window(6, width)[:5, :5]
        tokens = torch.cat([x, registers], 1)
        q = F.linear(x, weight[k, 0], bias[k, 0])
        key, value = (F.linear(tokens, weight[k, j], bias[k, j]) for j in (1, 2))
        heads = []
        for h in range(2):
            part = slice(4 * h, 4 * h + 4)
            logits = q[..., part] @ key[..., part].mT / 2.0
            logits[..., :5] = logits[..., :5] * g if window == "multiply" else logits[..., :5] + g.log()
            logits[..., :5] = logits[..., :5].masked_fill(~mask[:, None], -torch.inf)
            heads.append(logits.softmax(-1) @ value[..., part])
        y = F.layer_norm(x + torch.cat(heads, -1), (8,), blocks.norm1.weight[k], blocks.norm1.bias[k])
        inner = F.relu(F.linear(y, blocks.expand.weight[k], blocks.expand.bias[k]))
        out = y + F.linear(inner, blocks.contract.weight[k], blocks.contract.bias[k])
        expected = F.layer_norm(out, (8,), blocks.norm2.weight[k], blocks.norm2.bias[k])
        torch.testing.assert_close(found[k], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("sigma", [2.0, 8.0, None])
def test_the_printed_window_is_equation_10(sigma: float | None) -> None:
    """And the centred one its own, whose positions are shares of the length."""
    windows = GaussianWindows([sigma, 1e-3], 9, window=printed_window).double()
    centred = GaussianWindows([sigma, 1e-3], 9).double()
    for i, j in itertools.product(range(7), repeat=2):
        expected = math.exp(-((j - i) ** 2) / (math.inf if sigma is None else sigma**2)) / (2 * math.pi)
        assert windows(7)[0, i, j].item() == pytest.approx(expected, rel=1e-14)
        expected = 1.0 if sigma is None else math.exp(-(((j - i) / 8) ** 2) / (2 * (sigma / 9) ** 2))
        assert centred(7)[0, i, j].item() == pytest.approx(expected, rel=1e-14)
    logarithms = GaussianWindows([sigma, 1e-3], 9, logarithm=True, window=printed_window).double()(9)
    torch.testing.assert_close(logarithms[0].exp(), windows(9)[0], rtol=1e-12, atol=0)
    assert logarithms.isfinite().all(), "a window too narrow for any number still has finite gradients"
    assert GaussianWindows([None], 9, window=printed_window)(9) is not None, "1 / 2 pi of the logits, not no window"


@pytest.mark.parametrize("reads", ["difference", "absolute", "features"])
def test_motion_is_the_plain_loop_and_starts_as_the_model_without_it(reads: Any) -> None:
    batch, moving = make_batch([9, 3]), build(motion=reads)
    assert torch.equal(moving(batch).scores.total, build()(batch).scores.total)
    moving(batch).scores.total.sum().backward()
    assert all(bool(branch.motion.weight.grad.any()) for branch in (moving.clips, moving.frames))
    motion = moving.frames.motion  # type: ignore[union-attr]
    nn.init.normal_(motion.weight)
    lengths, x = [5, 1, 3], torch.randn(3, 6, 10, dtype=torch.float64)
    mask = torch.arange(6) < torch.tensor(lengths)[:, None]
    rows = []
    for v, length in enumerate(lengths):
        for t in range(length):
            change = x[v, min(t + 1, length - 1)] - x[v, max(t - 1, 0)]
            read = {"difference": change, "absolute": change.abs(), "features": x[v, t]}[reads]
            rows.append(math.sqrt(10) * motion.weight @ read)
    torch.testing.assert_close(motion(x, Sequences.packed(mask))[0], torch.stack(rows), rtol=0, atol=1e-12)
    torch.testing.assert_close(motion(x, Sequences.padded(mask))[mask], torch.stack(rows), rtol=0, atol=1e-12)
    every = motion(x, Sequences.padded(torch.ones(3, 6, dtype=torch.bool)))
    torch.testing.assert_close(motion(x, Sequences(None, 6)), every, rtol=0, atol=0)


ABLATIONS: dict[str, dict[str, Any]] = {
    "motion, frames": {"motion": "absolute", "branches": "frames"},
    "clips": {"branches": "clips"},
    "lorentz, learned": {
        "blocks": (BlockConfig(L, 2.0), BlockConfig()),
        "lorentz_magnitude": "bounded",
        "lorentz_activation": "relu",
        "lorentz_curvature": 0.5,
        "lorentz_curvature_learned": True,
    },
    "printed, added": {"compat": Compat(window="printed")},
    "pooled": {"registers": RegisterConfig(kind="pooled", num=3)},
    "condition": {"registers": RegisterConfig(kind="condition", num=1)},
    "prior": {"registers": RegisterConfig(kind="prior", num=3)},
    "prior_sample": {"registers": RegisterConfig(kind="diffusion", num=5, steps=6, sampling_steps=2)},
    "gaussian": {"registers": RegisterConfig(kind="diffusion", steps=1, start="gaussian", loss_timesteps="random")},
    "flow": {"registers": RegisterConfig(kind="diffusion", num=2, steps=4, scheduler="flow")},
    "ddpm, released noise": {
        "registers": RegisterConfig(kind="diffusion", steps=3, scheduler="ddpm", variance="beta", clip=False),
        "compat": Compat(register_noise="start", register_constants="float32", register_times="random"),
    },
}
REGISTERS = RegisterConfig(kind="diffusion", num=2, steps=3)


def _step(model: ModelConfig, loss: LossConfig) -> dict[str, Tensor]:
    """One training step with dropout on; every parameter that has a gradient must have a finite one and move."""
    torch.manual_seed(0)
    retriever = Retriever(model).train()
    objective = Objective(loss, model, retriever.registers).train()
    batch = make_batch([12, 5, 1], dtype=torch.float32)
    pairs = len(batch.words), len(batch.clips)
    batch = dataclasses.replace(batch, teacher=torch.arange(pairs[0] * pairs[1]).view(pairs).sin())
    optimizer = torch.optim.SGD([*retriever.parameters(), *objective.parameters()], lr=0.1)
    before = [p.detach().clone() for p in retriever.parameters()]
    terms = objective(retriever(batch), batch)
    terms["total"].backward()
    gradients = [p.grad for p in retriever.parameters() if p.grad is not None]
    assert all(gradient.isfinite().all() for gradient in gradients)
    optimizer.step()
    project_bounds(retriever, objective)
    losses = {name if name in LOSSES.names else name.split("_")[0] for name in terms}
    assert losses == {*objective.active, "total"}, "named are those terms that are computed"
    assert all(p.isfinite().all() for p in retriever.parameters())
    moved = [not torch.equal(a, b) for a, b in zip(before, retriever.parameters(), strict=True)]
    assert sum(moved) >= 15, "text-only losses still reach the whole query encoder"
    return terms


@pytest.mark.parametrize("name", list(ABLATIONS))
def test_every_part_builds_and_steps(name: str) -> None:
    model = ModelConfig(**(SMALL | ABLATIONS[name]))
    trained = {term: 1e-3 for term in ("prior_kl", "diffusion") if set(LOSSES[term].needs) <= model.provides}
    terms = _step(model, LossConfig({"query_structure": 0.01, "entailment": 1e-3, **trained}))
    assert ("diffusion" in terms) == (model.registers.kind == "diffusion")
    diffused = model.registers.kind == "diffusion" and model.registers.start != "gaussian"
    assert ("prior_kl" in terms) == (diffused or model.registers.kind == "prior")
    assert ("triplet_frames" in terms) == (model.branches != "clips")


@pytest.mark.parametrize("term", LOSSES.names)
def test_each_loss_alone(term: str) -> None:
    weights = dict.fromkeys(LOSSES.names, 0.0) | {term: 0.5}
    pooling = "key_clip" if "key_clip" in LOSSES[term].needs else "none"
    query = "words" if "words" in LOSSES[term].needs else "pooled"
    changes = {"registers": REGISTERS, "frame_pooling": pooling, "frame_query": query}
    rows = {"merged": "merged", "frame_rows": "frames"}
    if own := [rows[need] for need in LOSSES[term].needs if need in rows]:
        changes = {"clip_construction": own[0], "blocks": (BlockConfig(), BlockConfig(E, 4.0))}
    model = ModelConfig(**(SMALL | changes))
    terms = _step(model, LossConfig(weights))
    assert 2 * terms["total"].item() == pytest.approx(sum(value.item() for value in terms.values()), rel=1e-5)


def test_losses_as_printed_are_chosen_by_their_forms() -> None:
    """The terms take the function and the scores that the form names; the first step is finite with all of them."""
    model = ModelConfig(**SMALL)
    torch.manual_seed(0)
    retriever, batch = Retriever(model).eval(), make_batch([12, 5, 1], dtype=torch.float32)
    output = retriever(batch)
    positives, cosines = batch.labels.positives, (output.scores.clips, output.scores.frames)
    _step(model, LossConfig({"diversity": {"form": "pairs"}}))
    both = {f"info_nce_{branch}": {"weight": 1.0, "form": "pairs"} for branch in ("clips", "frames")}
    terms = Objective(LossConfig(both), model)(output, batch)
    for name, scores in zip(("info_nce_clips", "info_nce_frames"), cosines, strict=True):
        torch.testing.assert_close(terms[name], prvr.losses.info_nce_pairs_loss(scores, positives))
    triplet = LossConfig({"triplet": {"weight": 1.0, "form": "pairs"}})
    terms = Objective(triplet, model)(output, batch, negatives="hardest")
    expected = prvr.losses.triplet_pairs_loss(
        output.scores.clips, batch.labels.ground_truth, positives, triplet["triplet"].margin, "hardest"
    )
    torch.testing.assert_close(terms["triplet_clips"], expected)


def test_registers_are_those_of_the_algorithm_as_printed() -> None:
    """DreamPRVR's supplement, Algorithm 1: fresh noise, an unclipped estimate, sqrt(beta_t) as the scale of z."""
    steps, num = 5, 3
    registers = RegisterConfig(
        kind="diffusion", num=num, steps=steps, start="prior_sample", scheduler="ddpm", variance="beta", clip=False
    )
    generator = build(registers=registers).registers
    assert generator is not None
    features = torch.randn(2, 4, 16, dtype=torch.float64)
    found = generator(features, generator=torch.Generator().manual_seed(3), return_chain=True)
    draws = torch.Generator().manual_seed(3)
    z = [torch.randn(2, num, 16, generator=draws, dtype=torch.float64) for _ in range(steps)]
    f = [math.cos((t / steps + 0.008) / 1.008 * math.pi / 2) ** 2 for t in range(steps + 1)]
    beta = [min(0.999, 1 - f[t + 1] / f[t]) for t in range(steps)]
    abar = [math.prod(1 - b for b in beta[: t + 1]) for t in range(steps)]
    prior = generator.prior(features)
    q = prior.mean[:, None] + torch.exp(prior.logvar / 2)[:, None] * z[0]
    for k, t in enumerate(reversed(range(steps))):
        e = generator.denoiser(q, torch.full((2,), t), found.condition)
        q = (q - beta[t] / math.sqrt(1 - abar[t]) * e) / math.sqrt(1 - beta[t])
        q = q + math.sqrt(beta[t]) * z[k + 1] if t > 0 else q
        torch.testing.assert_close(found.chain[k], q, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "millions"), [("hlformer-tvr", 29.91), ("dreamprvr-tvr", 37.62), ("gmmformer-tvr", 12.85)]
)
def test_parameters_are_as_many_as_the_authors(name: str, millions: float) -> None:
    config = prvr.load_config(name)
    retriever = Retriever(config.model)
    objective = Objective(config.loss, config.model, retriever.registers)
    count = sum(p.numel() for module in (retriever, objective) for p in module.parameters())
    assert count / 1e6 == pytest.approx(millions, abs=0.006)


def streamed(fusion: str, counts: list[int]) -> tuple[Retriever, prvr.Batch]:
    """A retriever with a second stream, and videos with some rows of it; padding is filled with nonsense."""
    retriever = build(stream=StreamConfig("subtitles", dim=5, max_rows=6, fusion=fusion, weight=0.3))
    mask = torch.arange(max(counts)) < torch.tensor(counts)[:, None]
    rows = torch.randn(*mask.shape, 5, dtype=torch.float64).masked_fill(~mask[..., None], 1e3)
    return retriever, dataclasses.replace(make_batch([5, 12, 3, 7]), stream=rows, stream_mask=mask)


@pytest.mark.parametrize("fusion", STREAMS.names)
def test_a_second_stream_counts_where_a_video_has_one_alone_and_in_parts(fusion: str) -> None:
    retriever, batch = streamed(fusion, [2, 0, 6, 1])
    assert batch.stream is not None and batch.stream_mask is not None  # noqa: PT018
    with torch.no_grad():
        text, video, _ = retriever.encode(batch)
        whole = retriever.score(text, video, dots=True)
        retriever.stream, stream = None, retriever.stream
        alone = retriever.score(text, video, dots=True)
        retriever.stream = stream
        torch.testing.assert_close(whole.total[:, 1], alone.total[:, 1], rtol=0, atol=0)
        assert bool((whole.frames != alone.frames).any() and (whole.frames_dot != alone.frames_dot).any())
        for v, count in enumerate([2, 0, 6, 1]):
            videos = (batch.clips, batch.frames, batch.frame_mask, batch.stream, batch.stream_mask)
            clips, frames, mask, rows, valid = (tensor[v : v + 1] for tensor in videos)
            own = retriever.encode_video(clips, frames, mask, rows[:, : max(1, count)], valid[:, : max(1, count)])
            score = retriever.score(text, VideoEmbedding.cat([retriever.for_scoring(own)])).total
            torch.testing.assert_close(score[:, 0], whole.total[:, v], rtol=1e-9, atol=1e-9)
        two = VideoEmbedding.cat([video[:2], video[2:]])
        torch.testing.assert_close(retriever.score(text, two).total, whole.total)
    with pytest.raises(prvr.InputError, match=r"model.stream reads rows of 'subtitles', 5 wide: these"):
        retriever.encode_video(batch.clips, batch.frames, batch.frame_mask)
