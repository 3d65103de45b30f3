"""ConditionalDiffusion: closed forms, laws of the forward and reverse process, and its refusals."""

import pytest
import torch
from diffusers.schedulers.scheduling_ddim import DDIMScheduler

from regdiff import ConditionalDiffusion, make_scheduler

SHAPE = (3, 2, 4)


def cosine(steps: int, kind=DDIMScheduler, **options):
    options = {"clip_sample": False, "timestep_spacing": "trailing"} | options
    return kind(num_train_timesteps=steps, beta_schedule="squaredcos_cap_v2", **options)


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


@pytest.mark.parametrize("beta_schedule", ["linear", "scaled_linear"])
def test_other_schedules_are_those_of_diffusers_in_float64(beta_schedule):
    scheduler = make_scheduler("ddim", 50, beta_schedule=beta_schedule)
    ours = ConditionalDiffusion(lambda sample, *_: sample, scheduler).alphas_cumprod
    torch.testing.assert_close(ours.float(), scheduler.alphas_cumprod, rtol=2e-6, atol=0)
    assert not torch.equal(ours, scheduler.alphas_cumprod.double())


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
    a, b = (call(target, None, generator=torch.Generator().manual_seed(5)) for call in (diffusion, diffusion.loss))
    assert a == b
    assert torch.equal(seen[0], seen[1])
    assert seen[0].unique().tolist() == [0, 1, 2, 3]


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


def test_what_a_callback_puts_into_padding_is_left_out():
    diffusion, mask = ConditionalDiffusion(lambda x, t, c, mask: 0.5 * x, cosine(10), eta=0.0), torch.ones(3, 2).bool()
    mask[0, 1] = False
    out = diffusion.sample(draw(*SHAPE), None, timesteps=[8, 5], mask=mask, callback=lambda i, t, x: x + 1)
    assert not out[0, 1].any()
    assert out[mask].all()


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
        (make_scheduler("ddim", 20, beta_schedule="linear"), "noise schedule of DDIMScheduler differs"),
    ):
        with pytest.raises(ValueError, match=message):
            diffusion.with_scheduler(scheduler)


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


def test_one_module_serves_several_dtypes():
    """What was computed for one precision is not taken for the other."""
    diffusion = ConditionalDiffusion(lambda x, t, c: 0.3 * x, cosine(6))
    target, noise = draw(2, *SHAPE)
    timesteps = torch.tensor([5, 0, 3])
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        noised = diffusion.add_noise(target.to(dtype), noise.to(dtype), timesteps)
        assert noised.dtype == diffusion.loss(target.to(dtype), None, noise.to(dtype), timesteps).dtype == dtype
    signal, sigma = (v[timesteps].view(3, 1, 1) for v in (diffusion.schedule.signal, diffusion.schedule.sigma))
    torch.testing.assert_close(noised, signal * target + sigma * noise, rtol=1e-14, atol=1e-14)
