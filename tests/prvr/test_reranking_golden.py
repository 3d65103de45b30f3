"""The released DiffusionRet numbers, through the public classes.

What the packed subset holds is tested everywhere; the whole reference, where DIFFUSIONRET_REFERENCE names it.
"""

import numpy as np
import pytest
import torch
from diffusionret import GOLDEN
from golden import check_close

from prvr.published import CheckpointError
from prvr.published.diffusionret.candidate_reranker import CandidateReranker
from prvr.published.diffusionret.network import beta_schedule
from prvr.published.diffusionret.released import released_token_alignment
from prvr.published.diffusionret.run_config import RerankerCompat, RerankerConfig
from prvr.published.diffusionret.token_retriever import token_alignment

ARRAYS = GOLDEN.arrays
DTYPES = [torch.float64, torch.float32]
# float64 is off by the authors' schedule constants in float32; float32 by rounding.
LIMITS = {torch.float64: 1e-6, torch.float32: 1e-5}
GRADIENTS = {"query": "q_proj", "decoder_in": "decoder.0", "time_in": "embed_timestep.time_embed.0"}

released = pytest.mark.parametrize(
    ("direction", "dtype"), [(direction, dtype) for direction in GOLDEN.directions for dtype in DTYPES]
)


@released
def test_denoiser(direction, dtype):
    reranker = GOLDEN.reranker(direction, dtype)
    x, timestep = GOLDEN.tensor("in/x", dtype), GOLDEN.tensor("in/timesteps")
    prediction = reranker.denoise(x, timestep, *GOLDEN.inputs(direction, dtype))
    check_close(prediction, ARRAYS[f"out64/denoiser_{direction}"], LIMITS[dtype], "denoise")


@released
def test_loss_and_gradients(direction, dtype):
    reranker = GOLDEN.reranker(direction, dtype)
    noise, timesteps = GOLDEN.tensor("in/noise", dtype), GOLDEN.tensor("in/timesteps")
    x_start, inputs = GOLDEN.tensor("in/x_start", dtype), GOLDEN.inputs(direction, dtype)
    loss = reranker.loss(x_start, *inputs, noise=noise, timesteps=timesteps)
    check_close(loss, ARRAYS[f"out64/kl_loss_{direction}"], LIMITS[dtype], "loss")
    assert torch.equal(loss, reranker.loss(x_start > 0, *inputs, noise=noise, timesteps=timesteps))
    loss.backward()
    for ours, theirs in GRADIENTS.items():
        key = f"out64/grad/{direction}/{theirs}.weight"
        if key in ARRAYS:
            check_close(reranker.denoiser.get_submodule(ours).weight.grad, ARRAYS[key], LIMITS[dtype], theirs)


@released
def test_sampling_with_all_steps(direction, dtype):
    reranker, inputs = GOLDEN.reranker(direction, dtype), GOLDEN.inputs(direction, dtype)
    chain = reranker.sample(*inputs, initial=GOLDEN.initial(direction, dtype), return_chain=True)
    check_close(chain[-1], ARRAYS[f"out64/ddim50_{direction}"], LIMITS[dtype], "last")
    assert len(chain) == 50
    if f"out64/ddim50_{direction}_chain" in ARRAYS:
        check_close(chain, ARRAYS[f"out64/ddim50_{direction}_chain"], LIMITS[dtype], "chain")
    alone = reranker.sample(*inputs, initial=GOLDEN.initial(direction, dtype))
    assert torch.equal(alone, chain[-1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("respacing", [key for key in ("10", "ddim10") if f"out64/ddim_respaced_{key}_t2v" in ARRAYS])
def test_sampling_with_fewer_steps(respacing, dtype):
    reranker, inputs = GOLDEN.reranker("t2v", dtype), GOLDEN.inputs("t2v", dtype)
    timesteps = ARRAYS[f"respaced/{respacing}/timestep_map"][::-1].tolist()
    expected = ARRAYS[f"out64/ddim_respaced_{respacing}_t2v"]
    initial = GOLDEN.initial("t2v", dtype)
    check_close(reranker.sample(*inputs, initial=initial, timesteps=timesteps), expected, LIMITS[dtype], respacing)
    if respacing == "10":
        check_close(reranker.sample(*inputs, initial=initial, num_steps=10), expected, LIMITS[dtype], respacing)


def test_fewer_steps_are_spaced_as_released():
    direction = GOLDEN.directions[-1]
    reranker, inputs = GOLDEN.reranker(direction, torch.float64), GOLDEN.inputs(direction, torch.float64)
    initial, listed = GOLDEN.initial(direction, torch.float64), [49, 44, 38, 33, 27, 22, 16, 11, 5, 0]
    found = reranker.sample(*inputs, initial=initial, num_steps=10)
    assert torch.equal(found, reranker.sample(*inputs, initial=initial, timesteps=listed))


@released
def test_reranking(direction, dtype):
    reranker = GOLDEN.reranker(direction, dtype)
    scores, draws = GOLDEN.tensor("rerank/base_sim", dtype), GOLDEN.tensor("rerank/in/init_noise", dtype)
    half = len(draws) // 2  # batches of four rows: those of t2v, then those of v2t
    if direction == "v2t":
        scores, draws = scores.mT, draws[half:]
    else:
        draws = draws[:half]
    expected = ARRAYS[f"rerank/{direction}"]
    combined = reranker.rerank(
        scores,
        GOLDEN.tensor("rerank/in/cls", dtype),
        GOLDEN.tensor("rerank/in/video_feat", dtype),
        GOLDEN.tensor("rerank/in/video_mask") > 0,
        initial=draws.reshape(len(expected), -1),
    )
    check_close(combined, expected, 1e-5, "rerank")
    assert (combined > scores).sum(1).tolist() == [4] * len(scores)


@pytest.mark.parametrize("dtype", DTYPES)
def test_token_alignment(dtype):
    words, frames = GOLDEN.tensor("in/wti_text_feat", dtype), GOLDEN.tensor("in/wti_video_feat", dtype)
    word_mask, frame_mask = GOLDEN.tensor("in/wti_text_mask") > 0, GOLDEN.tensor("in/wti_video_mask") > 0
    weights = GOLDEN.token_weights("text", words, word_mask), GOLDEN.token_weights("video", frames, frame_mask)
    scores = released_token_alignment(words, word_mask, frames, frame_mask, *weights)
    check_close(scores, ARRAYS["out64/wti_similarity"], LIMITS[dtype], "alignment")
    correct = token_alignment(words, word_mask, frames, frame_mask, *weights)
    assert (correct <= scores + 1e-6).all()  # padding, which counts 0 there, can only raise a maximum
    assert (correct < scores - 1e-3).any()


@pytest.mark.skipif("rerank/in/text_feat" not in ARRAYS, reason="in the whole reference only")
def test_token_alignment_of_the_reranked_scores():
    words, frames = GOLDEN.tensor("rerank/in/text_feat"), GOLDEN.tensor("rerank/in/video_feat")
    word_mask, frame_mask = GOLDEN.tensor("rerank/in/text_mask") > 0, GOLDEN.tensor("rerank/in/video_mask") > 0
    weights = GOLDEN.token_weights("text", words, word_mask), GOLDEN.token_weights("video", frames, frame_mask)
    scores = released_token_alignment(words, word_mask, frames, frame_mask, *weights)
    check_close(scores, ARRAYS["rerank/base_sim"], 1e-6, "base_sim")


def test_schedules():
    diffusion = GOLDEN.reranker(GOLDEN.directions[0], torch.float64).process.sampling
    np.testing.assert_allclose(diffusion.alphas_cumprod.numpy(), ARRAYS["sched/alphas_cumprod"], rtol=1e-12)
    linear = beta_schedule(RerankerConfig(width=8, steps=50, schedule="linear"))
    np.testing.assert_allclose(linear, ARRAYS["sched/linear_betas_50"], rtol=1e-12)


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_betas_are_scaled_and_capped(schedule):
    configs = [RerankerConfig(width=4, steps=10, schedule=schedule, beta_scale=scale) for scale in (0.5, 1.0, 2.0)]
    half, plain, double = (beta_schedule(each) for each in configs)
    assert double == [min(0.999, 2 * beta) for beta in plain]
    assert [h for h, beta in zip(half, plain, strict=True) if beta < 0.999] == [b / 2 for b in plain if b < 0.999]
    assert max(plain) == 0.999
    for betas, each in zip((half, plain, double), configs, strict=True):
        kept = CandidateReranker(each).process.training.alphas_cumprod
        torch.testing.assert_close(kept, (1 - torch.tensor(betas, dtype=torch.float64)).cumprod(0))


def test_released_weights_have_any_prefix_and_must_fit():
    config = ARRAYS["config"]
    state = {name.removeprefix("v2t/"): v for name, v in GOLDEN.state.items() if name.startswith("v2t/")}
    table = {"embed_timestep.sequence_pos_encoder.pe": torch.zeros(5, 1, 32)}
    for prefix, extra in (("", {}), ("module.v2t_denoiser.", {"module.t2v_denoiser.q_proj.weight": torch.zeros(1)})):
        named = {prefix + name: value for name, value in (state | table).items()} | extra
        loaded = CandidateReranker.load_released(named, config, "v2t")
        assert torch.equal(loaded.denoiser.query.weight, state["q_proj.weight"])
        assert not loaded.training
    for tensors, options, message in (
        ({k: v for k, v in state.items() if k != "proj.bias"}, config, r"lacks tensors: proj\.bias"),
        (state | {"extra.weight": torch.zeros(1)}, config, r"unknown tensors: extra\.weight"),
        ({f"t2v/{k}": v for k, v in state.items()}, config, r"v2t denoiser.*found 't2v/q_proj\.weight'"),
        (state | {"decoder.2.bias": torch.zeros(3)}, config, r"decoder\.2\.bias has shape \(3,\)"),
        (state, {"width": 32}, "lacks 'diffusion_steps'"),
        (state, config | {"width": 512}, "width=512, the weights have 32"),
    ):
        with pytest.raises(CheckpointError, match=message):
            CandidateReranker.load_released(tensors, options, "v2t")


def test_a_denoiser_has_as_many_parameters_as_the_paper_says():
    """2.50 M, in units of 2^20."""
    reranker = CandidateReranker(RerankerConfig(width=512, compat=RerankerCompat(decoder="released")))
    assert round(sum(p.numel() for p in reranker.parameters()) / 2**20, 2) == 2.50
