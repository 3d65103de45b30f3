"""ConditionalDiffusion: closed forms, laws of the forward and reverse process, and its refusals."""

import copy

import pytest
import torch
from diffusers.schedulers.scheduling_ddim import DDIMScheduler

from regdiff import ConditionalDiffusion, make_scheduler
from regdiff.schedule import float64_alphas_cumprod

SHAPE = (3, 2, 4)


def cosine(steps: int, kind=DDIMScheduler, **options):
    options = {"clip_sample": False, "timestep_spacing": "trailing"} | options
    return kind(num_train_timesteps=steps, beta_schedule="squaredcos_cap_v2", **options)


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


@pytest.mark.parametrize("beta_schedule", ["linear", "scaled_linear"])
def test_other_schedules_agree_with_diffusers_in_float32(beta_schedule):
    scheduler = DDIMScheduler(num_train_timesteps=50, beta_schedule=beta_schedule)
    ours = float64_alphas_cumprod(scheduler)
    torch.testing.assert_close(ours.float(), scheduler.alphas_cumprod, rtol=2e-6, atol=0)
    assert not torch.equal(ours, scheduler.alphas_cumprod.double())


def test_trained_betas_and_unknown_schedules():
    betas = [0.1, 0.2, 0.3]
    ours = float64_alphas_cumprod(DDIMScheduler(num_train_timesteps=3, trained_betas=betas))
    torch.testing.assert_close(ours, torch.tensor([0.9, 0.72, 0.504], dtype=torch.float64), rtol=1e-15, atol=0)
    rescaled = DDIMScheduler(num_train_timesteps=20, rescale_betas_zero_snr=True)
    assert torch.equal(float64_alphas_cumprod(rescaled), rescaled.alphas_cumprod.double())


def test_loss_over_all_timesteps_is_the_mean_of_single_ones():
    weight = draw(4, 4)

    def denoiser(sample, timestep, condition):
        return sample @ weight + condition["a"][0].view(-1, 1, 1) * timestep.view(-1, 1, 1) + condition["scale"]

    condition = {"a": (draw(3),), "scale": torch.tensor(0.3, dtype=torch.float64), "name": "kept"}
    target, diffusion = draw(*SHAPE), ConditionalDiffusion(denoiser, cosine(6))
    one = draw(*SHAPE)
    each = draw(6, *SHAPE)
    for noise, of in ((one, lambda t: one), (each, lambda t: each[t])):
        singles = [diffusion.loss(target, condition, of(t), torch.full((3,), t)) for t in range(6)]
        together = diffusion.loss(target, condition, noise, "all")
        torch.testing.assert_close(together, torch.stack(singles).mean(), rtol=1e-12, atol=0)


def test_loss_draws_every_timestep_and_repeats_with_a_seed():
    seen = []

    def denoiser(sample, timestep, condition):
        seen.append(timestep)
        return sample

    diffusion = ConditionalDiffusion(denoiser, cosine(4))
    target = draw(200, 2, 4)
    a, b = (diffusion.loss(target, None, generator=torch.Generator().manual_seed(5)) for _ in range(2))
    assert a == b
    assert torch.equal(seen[0], seen[1])
    assert seen[0].unique().tolist() == [0, 1, 2, 3]


def test_noise_forms():
    diffusion = ConditionalDiffusion(lambda sample, *_: 0.5 * sample, cosine(4))
    x, noise = draw(*SHAPE), draw(*SHAPE)
    reused = diffusion.sample(x, None, noise=noise)
    assert torch.equal(reused, diffusion.sample(x, None, noise=noise.expand(4, *SHAPE)))
    per_step = torch.stack([noise, noise, noise + 1, noise])
    assert not torch.allclose(reused, diffusion.sample(x, None, noise=per_step))
    last = torch.stack([noise, noise, noise, noise + 1])
    torch.testing.assert_close(reused, diffusion.sample(x, None, noise=last))  # no noise after the last step


def test_what_happens_to_the_scheduler_later_changes_nothing():
    scheduler = cosine(10)
    diffusion = ConditionalDiffusion(lambda sample, *_: sample, scheduler)
    first = diffusion.sample(torch.ones(SHAPE), None, 4, noise=torch.zeros(SHAPE))
    scheduler.alphas_cumprod.zero_()
    assert torch.equal(first, diffusion.sample(torch.ones(SHAPE), None, 4, noise=torch.zeros(SHAPE)))


def test_a_schedule_used_while_validating_still_trains():
    weight = torch.ones(4, requires_grad=True)
    diffusion = ConditionalDiffusion(lambda sample, *_: sample * weight, cosine(4, prediction_type="v_prediction"))
    target = torch.randn(SHAPE).requires_grad_()
    with torch.inference_mode():
        diffusion.loss(target.detach(), None)
    diffusion.loss(target, None).backward()
    assert weight.grad is not None
    assert target.grad is not None


def test_loss_takes_the_noise_of_each_rows_timestep():
    """With random timesteps, noise (T, *sample) gives row i that of its own t, as sampling does at that step."""
    seen = []

    def denoiser(sample, timestep, condition):
        seen.append((sample, timestep))
        return sample

    diffusion = ConditionalDiffusion(denoiser, cosine(6))
    target, noise = draw(*SHAPE).requires_grad_(), draw(6, *SHAPE).requires_grad_()
    loss = diffusion.loss(target, None, noise, generator=torch.Generator().manual_seed(0))
    (noised, times), rows = seen[0], range(SHAPE[0])
    assert len(set(times.tolist())) > 1
    own = torch.stack([noise[times[i], i] for i in rows])
    assert torch.equal(noised, diffusion.add_noise(target, own, times))
    assert torch.equal(loss, ((noised - own) ** 2).mean())
    loss.backward()
    assert [(t, i) for t in range(6) for i in rows if noise.grad[t, i].any()] == sorted(
        (times[i].item(), i) for i in rows
    )


def test_callback_sees_each_step_and_may_replace_x():
    diffusion = ConditionalDiffusion(lambda sample, *_: 0.5 * sample, cosine(10), eta=0.0)
    seen = []
    x = draw(*SHAPE)
    chain = diffusion.sample(x, None, timesteps=[8, 5, 1], return_chain=True, callback=lambda *step: seen.append(step))
    assert [step[:2] for step in seen] == [(0, 8), (1, 5), (2, 1)]
    assert torch.equal(torch.stack([step[2] for step in seen]), chain)
    # Replacing x after a step is starting from there
    other = draw(*SHAPE)
    replaced = diffusion.sample(x, None, timesteps=[8, 5, 1], callback=lambda i, t, y: other if i == 0 else None)
    assert torch.equal(replaced, diffusion.sample(other, None, timesteps=[5, 1]))


def test_another_sampler_for_the_same_denoiser():
    def denoiser(sample, timestep, condition):
        return torch.tanh(sample)

    def loss_fn(prediction, target):
        return (prediction - target).abs()

    trained = make_scheduler("ddpm", 20, clip_sample=False)
    diffusion = ConditionalDiffusion(
        denoiser, trained, loss_fn=loss_fn, eta=0.0, weighting="min_snr", snr_gamma=2.0, condition_dropout=0.5
    )
    other = diffusion.with_scheduler(make_scheduler("ddim", 20, clip_sample=False))
    assert (diffusion.capabilities.name, other.capabilities.name) == ("ddpm", "ddim")
    for option in ("denoiser", "loss_fn", "eta", "weighting", "snr_gamma", "condition_dropout"):
        assert getattr(other, option) is getattr(diffusion, option)
    x = draw(*SHAPE)
    euler = diffusion.with_scheduler(make_scheduler("euler", 20, clip_sample=False)).sample(x, None, 5)
    torch.testing.assert_close(other.sample(x, None, 5), euler, rtol=1e-4, atol=1e-4)
    for scheduler, message in (
        (make_scheduler("ddim", 21), "has num_train_timesteps 21, expected 20"),
        (make_scheduler("ddim", 20, prediction_type="sample"), "has prediction_type 'sample', expected 'epsilon'"),
        (make_scheduler("ddim", 20, beta_schedule="linear"), "noise schedule of DDIMScheduler differs"),
        (make_scheduler("flow", 20), "has prediction_type 'flow'"),
    ):
        with pytest.raises(ValueError, match=message):
            diffusion.with_scheduler(scheduler)


def identity(sample, timestep, condition):
    return sample


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d, x: d.sample(x, None, num_steps=6), r"num_steps: got 6, expected 1 to 5"),
        (lambda d, x: d.sample(x, None, num_steps=0), r"num_steps: got 0"),
        (lambda d, x: d.sample(x, None, timesteps=[1, 3]), r"strictly descending integers in \[0, 5\)"),
        (lambda d, x: d.sample(x, None, timesteps=[5, 3]), r"timesteps: got \[5, 3\]"),
        (lambda d, x: d.sample(x, None, timesteps=[]), r"timesteps: got \[\]"),
        (lambda d, x: d.sample(x, None, num_steps=2, timesteps=[1, 0]), r"not both"),
        (lambda d, x: d.sample(x, None, noise=x[:1]), r"noise: got shape \(1, 2, 4\), expected \(3, 2, 4\)"),
        (lambda d, x: d.sample(x, {"a": torch.ones(2, 4)}), r"condition: got a tensor of shape \(2, 4\)"),
        (lambda d, x: d.loss(x, None, timesteps="every"), r"timesteps: got 'every'"),
        (lambda d, x: d.loss(x, None, timesteps=torch.tensor([1])), r"one per row, \(3,\)"),
        (lambda d, x: d.loss(x, None, timesteps=torch.tensor([0, -1, 2])), r"timesteps: got -1, expected .* \[0, 5\)"),
        (lambda d, x: d.loss(x, None, timesteps=torch.tensor([0, 5, 2])), r"timesteps: got 5, expected .* \[0, 5\)"),
        (lambda d, x: d.loss(x, None, timesteps=torch.tensor([0.0, 1.0, 2.0])), r"timesteps: got torch.float32"),
        (lambda d, x: d.loss(x, None, noise=x.expand(4, *SHAPE)), r"noise: got shape \(4, 3, 2, 4\)"),
        (lambda d, x: d.loss(x, None, noise=x.expand(4, *SHAPE), timesteps="all"), r"noise: .* or \(5, 3, 2, 4\)"),
        (lambda d, x: d.sample(x, None, 3, noise=x.expand(5, *SHAPE)), r"noise: .* or \(3, 3, 2, 4\) \(one per step\)"),
        (lambda d, x: d.sample(x * torch.nan, None), r"initial: got nan or infinite values"),
        (lambda d, x: d.sample(x / 0, None), r"initial: got nan or infinite values"),
        (lambda d, x: d.sample(x, None, callback=lambda i, t, y: y[:1]), r"callback: returned shape \(1, 2, 4\)"),
        (lambda d, x: d.loss(x, torch.ones(4)), r"condition: .* first axis of 3"),
        (lambda d, x: d.loss(x, None, timesteps=[0, 1, 2, 3]), r"timesteps: got shape \(4,\), expected one per row"),
        (lambda d, x: d.loss(x, None, timesteps=4), r"timesteps: got shape \(\), expected one per row"),
        (lambda d, x: d.loss(x, None, timesteps=[0, 5, 2]), r"timesteps: got 5, expected .* \[0, 5\)"),
        (lambda d, x: d.add_noise(x, x, torch.tensor([0, -1, 2])), r"timesteps: got -1, expected .* \[0, 5\)"),
        (lambda d, x: d.add_noise(x, x, torch.tensor([0, 5, 2])), r"timesteps: got 5, expected .* \[0, 5\)"),
        (
            lambda d, x: d.sample(x, None, num_steps=2.5),
            r"num_steps: got 2.5, expected 1 to 5, .* an integer",
        ),
        (
            lambda d, x: d.sample(x, None, num_steps="3"),
            r"num_steps: got '3', expected 1 to 5, .* an integer",
        ),
        (lambda d, x: d.sample(x, None, timesteps=[3.5, 1]), r"timesteps: got \[3.5, 1\], expected .*integers"),
        (lambda d, x: d.sample(x, None, generator=7), r"generator: got 7, expected a torch.Generator"),
        (lambda d, x: d.loss(x, None, generator=7), r"generator: got 7, expected a torch.Generator"),
        (lambda d, x: d.sample(x, x, guidance_scale="2"), r"guidance_scale: got '2', expected a finite number"),
    ],
)
def test_bad_calls_say_what_is_expected(call, message, unchecked):
    diffusion = ConditionalDiffusion(identity, cosine(5))
    with pytest.raises(ValueError, match=message):
        call(diffusion, draw(*SHAPE))


def test_a_denoiser_of_another_shape_is_named():
    for call in (ConditionalDiffusion.sample, ConditionalDiffusion.loss):
        diffusion = ConditionalDiffusion(lambda sample, *_: sample[..., :1], cosine(5))
        with pytest.raises(ValueError, match=r"denoiser: returned shape \(3, 2, 1\), expected \(3, 2, 4\)"):
            call(diffusion, draw(*SHAPE), None)


def test_bad_construction_says_what_is_supported(unchecked):
    with pytest.raises(ValueError, match="eta: got 2"):
        ConditionalDiffusion(identity, cosine(5), eta=2.0)
    for option, value in {"snr_gamma": 0.0, "condition_dropout": 1.5, "weighting": "snr", "loss_fn": "mse"}.items():
        with pytest.raises(ValueError, match=f"{option}: got"):
            ConditionalDiffusion(identity, cosine(5), **{option: value})
    with pytest.raises(ValueError, match="denoiser: got int, expected a network"):
        ConditionalDiffusion(3, cosine(5))
    with pytest.raises(ValueError, match="eta=0 is deterministic"):
        ConditionalDiffusion(identity, cosine(5), eta=0.0).sample(draw(*SHAPE), None, noise=draw(*SHAPE))


def test_one_module_serves_several_dtypes():
    """What was computed for one precision is not taken for the other."""
    diffusion = ConditionalDiffusion(lambda x, t, c: 0.3 * x, cosine(6), weighting="min_snr", snr_gamma=0.7)
    target, noise = draw(2, *SHAPE)
    timesteps = torch.tensor([5, 0, 3])
    fresh = copy.deepcopy(diffusion)
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.float32):
        loss = diffusion.loss(target.to(dtype), None, noise.to(dtype), timesteps)
        noised = diffusion.add_noise(target.to(dtype), noise.to(dtype), timesteps)
        assert loss.dtype == noised.dtype == dtype
    signal, sigma = (v[timesteps].view(3, 1, 1) for v in (diffusion.schedule.signal, diffusion.schedule.sigma))
    exact = diffusion.add_noise(target, noise, timesteps)
    torch.testing.assert_close(exact, signal * target + sigma * noise, rtol=1e-14, atol=1e-14)
    assert torch.equal(diffusion.loss(target, None, noise, timesteps), fresh.loss(target, None, noise, timesteps))


@pytest.mark.parametrize("masked", [False, True])
def test_sample_and_loss_run_under_vmap(masked):
    """Nothing that they check reads a value there."""
    scheduler = make_scheduler("ddim", 10)
    diffusion = ConditionalDiffusion(
        lambda x, t, c, mask=None: torch.tanh(x + c) / (1 + t.view(-1, 1, 1)), scheduler, eta=0.0
    )
    x, condition, noise, target = torch.randn(4, 5, *SHAPE).clamp(-1, 1).double()
    mask = torch.rand(5, *SHAPE[:2]) < 0.6 if masked else None
    timesteps = torch.randint(10, (5, 3))

    def sample(x, condition, mask=None):
        return diffusion.sample(x, condition, 4, mask=mask)

    def loss(target, condition, noise, timesteps, mask=None):
        return diffusion.loss(target, condition, noise, timesteps, mask=mask)

    masks = (mask,) if masked else ()
    mapped = torch.vmap(sample)(x, condition, *masks)
    each = torch.stack([sample(*row) for row in zip(x, condition, *masks, strict=True)])
    torch.testing.assert_close(mapped, each)
    mapped = torch.vmap(torch.func.grad(loss))(target, condition, noise, timesteps, *masks)
    rows = zip(target, condition, noise, timesteps, *masks, strict=True)
    torch.testing.assert_close(mapped, torch.stack([torch.func.grad(loss)(*row) for row in rows]))
