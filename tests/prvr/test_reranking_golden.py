"""The released DiffusionRet numbers, through the public classes."""

import numpy as np
import pytest
import torch
from diffusionret import GOLDEN
from golden import check_close

from prvr.released import CheckpointError
from prvr.released.denoiser import released_token_alignment
from prvr.scoring import token_alignment
from prvr.stages import CandidateReranker, RerankerCompat, RerankerConfig
from prvr.stages.diffusion.process import beta_schedule

ARRAYS = GOLDEN.arrays
# float64 is off by the authors' schedule constants in float32; float32 by rounding.
LIMITS = {torch.float64: 1e-6, torch.float32: 1e-5}

every_dtype = pytest.mark.parametrize("dtype", LIMITS)


@every_dtype
def test_denoiser_and_loss(dtype):
    reranker, inputs, timesteps = GOLDEN.reranker(dtype), GOLDEN.inputs(dtype), GOLDEN.tensor("in/timesteps")
    x, noise, x_start = (GOLDEN.tensor(f"in/{name}", dtype) for name in ("x", "noise", "x_start"))
    check_close(reranker.denoise(x, timesteps, *inputs), ARRAYS["out64/denoiser_v2t"], LIMITS[dtype], "denoise")
    loss = reranker.loss(x_start, *inputs, noise=noise, timesteps=timesteps)
    check_close(loss, ARRAYS["out64/kl_loss_v2t"], LIMITS[dtype], "loss")
    assert torch.equal(loss, reranker.loss(x_start > 0, *inputs, noise=noise, timesteps=timesteps))


@every_dtype
def test_sampling_with_all_steps(dtype):
    reranker, inputs, initial = GOLDEN.reranker(dtype), GOLDEN.inputs(dtype), GOLDEN.tensor("in/ddim_init_v", dtype)
    chain = reranker.sample(*inputs, initial=initial, return_chain=True)
    check_close(chain[-1], ARRAYS["out64/ddim50_v2t"], LIMITS[dtype], "last")
    assert len(chain) == 50
    assert torch.equal(reranker.sample(*inputs, initial=initial), chain[-1])


def test_fewer_steps_are_spaced_as_released():
    reranker, inputs = GOLDEN.reranker(torch.float64), GOLDEN.inputs(torch.float64)
    initial, listed = GOLDEN.tensor("in/ddim_init_v", torch.float64), [49, 44, 38, 33, 27, 22, 16, 11, 5, 0]
    found = reranker.sample(*inputs, initial=initial, num_steps=10)
    assert torch.equal(found, reranker.sample(*inputs, initial=initial, timesteps=listed))


@every_dtype
def test_reranking(dtype):
    scores, draws = GOLDEN.tensor("rerank/base_sim", dtype).mT, GOLDEN.tensor("rerank/in/init_noise", dtype)
    inputs = GOLDEN.tensor("rerank/in/cls", dtype), GOLDEN.tensor("rerank/in/video_feat", dtype)
    mask, expected = GOLDEN.tensor("rerank/in/video_mask") > 0, ARRAYS["rerank/v2t"]
    initial = draws[len(draws) // 2 :].reshape(len(expected), -1)  # before them those of texts to videos
    combined = GOLDEN.reranker(dtype).rerank(scores, *inputs, mask, initial=initial)
    check_close(combined, expected, 1e-5, "rerank")
    assert (combined > scores).sum(1).tolist() == [4] * len(scores)


@every_dtype
def test_token_alignment(dtype):
    words, frames = GOLDEN.tensor("in/wti_text_feat", dtype), GOLDEN.tensor("in/wti_video_feat", dtype)
    word_mask, frame_mask = GOLDEN.tensor("in/wti_text_mask") > 0, GOLDEN.tensor("in/wti_video_mask") > 0
    weights = [GOLDEN.tensor(f"wti/{side}_weights", dtype) for side in ("text", "video")]
    scores = released_token_alignment(words, word_mask, frames, frame_mask, *weights)
    check_close(scores, ARRAYS["out64/wti_similarity"], LIMITS[dtype], "alignment")
    correct = token_alignment(words, word_mask, frames, frame_mask, *weights)
    assert (correct <= scores + 1e-6).all()  # padding, which counts 0 there, can only raise a maximum
    assert (correct < scores - 1e-3).any()


def test_schedules():
    diffusion = GOLDEN.reranker(torch.float64).process.sampling
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
    state = {name.removeprefix("v2t/"): v for name, v in GOLDEN.state.items()}
    table = {"embed_timestep.sequence_pos_encoder.pe": torch.zeros(5, 1, 32)}
    for prefix, extra in (("", {}), ("module.v2t_denoiser.", {"module.t2v_denoiser.q_proj.weight": torch.zeros(1)})):
        named = {prefix + name: value for name, value in (state | table).items()} | extra
        loaded = CandidateReranker.load_released(named, config, "v2t")
        assert torch.equal(loaded.denoiser.query.weight, state["q_proj.weight"])
        assert not loaded.training
    with pytest.raises(CheckpointError, match=r"v2t denoiser.*found 't2v/q_proj\.weight'"):
        CandidateReranker.load_released({f"t2v/{k}": v for k, v in state.items()}, config, "v2t")
    with pytest.raises(CheckpointError, match="width=512, the weights have 32"):
        CandidateReranker.load_released(state, config | {"width": 512}, "v2t")


def test_a_denoiser_has_as_many_parameters_as_the_paper_says():
    """2.50 M, in units of 2^20."""
    reranker = CandidateReranker(RerankerConfig(width=512, compat=RerankerCompat(decoder="released")))
    assert round(sum(p.numel() for p in reranker.parameters()) / 2**20, 2) == 2.50
