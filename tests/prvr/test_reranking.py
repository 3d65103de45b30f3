"""What holds of every re-ranker, whatever its weights: laws, and its equations as plain loops."""

import pytest
import torch
from diffusionret import FRAMES, NUM, RELEASED, ROWS, STEPS, WIDTH, config, gallery, loop_scores, make, pairs

from prvr.published.diffusionret import network
from prvr.published.diffusionret.candidate_reranker import CandidateReranker
from prvr.published.diffusionret.run_config import RerankerCompat, RerankerConfig

both_ways = pytest.mark.parametrize("direction", ["t2v", "v2t"])


@both_ways
@pytest.mark.parametrize("compat", [RerankerCompat(), RELEASED, RerankerCompat(decoder="released")])
def test_the_network_is_its_equations(direction, compat):
    reranker = make(direction, compat=compat, attention_temperature=0.7, loss_temperature=1.3)
    inputs, x = pairs(direction), torch.randn(ROWS, NUM).double()
    timestep = torch.tensor([0, 4, 9])
    found = reranker.denoise(x, timestep, *inputs)
    for row in range(ROWS):
        scores = loop_scores(reranker, x[row], int(timestep[row]), *(part[row] for part in inputs))
        if compat.output == "distribution":
            scores = (1.3 * scores).softmax(0)
        torch.testing.assert_close(found[row], scores, rtol=1e-6, atol=1e-7)  # the step's code is stored in float32


@both_ways
def test_padding_changes_nothing(direction):
    reranker, (text, frames, mask) = make(direction), pairs(direction)
    extra = torch.full((*frames.shape[:-2], 3, WIDTH), torch.nan).double()
    padded = torch.cat([frames.masked_fill(~mask[..., None], torch.inf), extra], -2)
    longer = torch.cat([mask, torch.zeros(*mask.shape[:-1], 3, dtype=torch.bool)], -1)
    x, timestep = torch.randn(ROWS, NUM).double(), torch.tensor([0, 5, 9])
    torch.testing.assert_close(
        reranker.denoise(x, timestep, text, padded, longer), reranker.denoise(x, timestep, text, frames, mask)
    )
    right = torch.eye(ROWS, NUM, dtype=torch.bool)
    reranker.loss(right, text, padded, longer, noise=x, timesteps=timestep).backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in reranker.parameters())
    certain = make(direction, loss_temperature=1e4)  # the logarithm of a probability of 0
    certain.loss(~right, text, frames, mask).backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in certain.parameters())


@both_ways
def test_samples_are_distributions_and_one_candidate_is_certain(direction):
    reranker = make(direction)
    sample = reranker.sample(*pairs(direction))
    assert (sample >= 0).all()
    torch.testing.assert_close(sample.sum(-1), torch.ones(ROWS).double())
    alone = reranker.sample(*pairs(direction, num=1))
    torch.testing.assert_close(alone, torch.ones(ROWS, 1).double())
    assert reranker.loss(torch.ones(ROWS, 1, dtype=torch.bool), *pairs(direction, num=1)).abs() < 1e-12


@pytest.mark.parametrize(("released", "negative"), [(False, 0), (True, 0), (True, -1)])
def test_the_loss_is_its_formula(released, negative):
    compat, temperature = (RELEASED, 100.0) if released else (RerankerCompat(), 1.0)
    inputs, noise, timesteps = pairs("t2v"), torch.randn(ROWS, NUM).double(), torch.tensor([0, 4, 9])
    right = torch.zeros(ROWS, NUM, dtype=torch.bool)
    right[0, 2] = right[1, :2] = right[2, 5] = True
    clean = right.double() if released else right.double() / right.sum(1, keepdim=True)
    clean = clean.masked_fill(~right, negative)
    for kind in ("kl", "mse"):
        reranker = make(compat=compat, loss_temperature=temperature, loss=kind, negative=negative)
        abar = reranker.process.training.alphas_cumprod[timesteps][:, None]
        noised = abar.sqrt() * clean + (1 - abar).sqrt() * noise
        predicted = reranker.denoise(noised, timesteps, *inputs)
        if kind == "mse":
            expected = ((predicted - clean) ** 2).mean()
        else:
            says = (temperature * predicted).log_softmax(1) if released else predicted.log()
            truth = right / right.sum(1, keepdim=True)
            expected = (truth * (truth.clamp_min(1e-30).log() - says)).sum(1).mean()
        given = {"noise": noise, "timesteps": timesteps}
        torch.testing.assert_close(reranker.loss(right, *inputs, **given), expected)
        torch.testing.assert_close(reranker.loss(clean, *inputs, **given), expected)


def test_ddpm_is_ddim_with_noise_and_obeys_its_seed():
    inputs, x = pairs("t2v"), torch.randn(ROWS, NUM).double()
    ddpm = make(sampler="ddpm")
    draws = [ddpm.sample(*inputs, initial=x, generator=torch.Generator().manual_seed(s)) for s in (0, 0, 1)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    noise = torch.randn(2, ROWS, NUM).double()
    high, low = (float(ddpm.process.sampling.alphas_cumprod[t]) for t in (8, 3))
    clean = ddpm.denoise(x, torch.full((ROWS,), 8), *inputs)
    variance = (1 - low) / (1 - high) * (1 - high / low)  # of the posterior (Ho et al. 2020, eq. 7)
    direction = (x - high**0.5 * clean) / (1 - high) ** 0.5
    after = low**0.5 * clean + (1 - low - variance) ** 0.5 * direction + variance**0.5 * noise[0]
    chain = ddpm.sample(*inputs, initial=x, timesteps=[8, 3], noise=noise, return_chain=True)
    torch.testing.assert_close(chain[0], after)


@pytest.mark.parametrize(("spacing", "first"), [("trailing", STEPS - 1), ("linspace", 0), ("leading", 0)])
def test_where_a_single_step_looks(spacing, first):
    reranker, inputs, x = make(spacing=spacing), pairs("t2v"), torch.randn(ROWS, NUM).double()
    expected = reranker.denoise(x, torch.full((ROWS,), first), *inputs)
    torch.testing.assert_close(reranker.sample(*inputs, initial=x, num_steps=1), expected)
    fewer = make(spacing=spacing, sampling_steps=1)
    fewer.load_state_dict(reranker.state_dict())
    torch.testing.assert_close(fewer.sample(*inputs, initial=x), expected)


@both_ways
def test_the_control_without_diffusion(direction):
    reranker = make(direction, process="one_step")
    inputs, none = pairs(direction), torch.zeros(ROWS, dtype=torch.int64)
    expected = reranker.denoise(torch.zeros(ROWS, NUM).double(), none, *inputs)
    assert torch.equal(reranker.sample(*inputs), expected)
    assert torch.equal(reranker.sample(*inputs, return_chain=True), expected[None])
    right = torch.eye(ROWS, NUM, dtype=torch.bool)
    torch.testing.assert_close(reranker.loss(right, *inputs), -expected[right].log().mean())
    make(direction).load_state_dict(reranker.state_dict())  # the same network


@both_ways
def test_saved_and_loaded_it_is_the_same(direction, tmp_path):
    reranker = CandidateReranker(config(compat=RELEASED, trained_on="hlformer-tvr"), direction).eval()
    reranker.save_pretrained(tmp_path)
    again = CandidateReranker.from_pretrained(tmp_path)
    assert (again.config, again.direction) == (reranker.config, direction)
    inputs = [part.float() if part.is_floating_point() else part for part in pairs(direction)]
    x = torch.randn(ROWS, NUM)
    assert torch.equal(again.sample(*inputs, initial=x), reranker.sample(*inputs, initial=x))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "config.json", "model.safetensors"]


@pytest.mark.usefixtures("unchecked")
def test_configurations_that_cannot_be():
    for changes, message in (
        ({"sampling_steps": 11}, "sampling_steps=11 is larger than steps=10"),
        ({"process": "one_step", "sampling_steps": 2}, "needs process='diffusion'"),
    ):
        with pytest.raises(ValueError, match=message):
            RerankerConfig(**{"width": 4, "steps": 10} | changes)


def test_the_gather_is_bounded_and_shares_frames(monkeypatch):
    scores, text, frames, mask = gallery(texts=11, videos=5)  # videos that many texts ask for
    for direction, given in (("t2v", scores), ("v2t", scores.mT)):
        reranker = make(direction)
        expected = reranker.rerank(given, text, frames, mask)
        for block, shared in ((1, 8), (2, 1), (2, 3)):
            monkeypatch.setattr(network, "_BLOCK", block * FRAMES * WIDTH)
            monkeypatch.setattr(network, "_SHARED", shared)
            torch.testing.assert_close(reranker.rerank(given, text, frames, mask), expected)
        monkeypatch.undo()
