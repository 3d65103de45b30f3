"""What a denoiser declares, tangents through it, and options where a wrong reading would not show by default."""

import copy

import pytest
import torch
from diffusers.schedulers.scheduling_ddim import DDIMScheduler

from regdiff import ConditionalDiffusion, KLToTarget, TransformerDenoiser, make_scheduler
from regdiff.registers import Gaussian, RegisterDenoiser


def declares(kind):
    denoiser = RegisterDenoiser(dim=4, steps=6)
    denoiser.prediction_type = kind
    return denoiser


@pytest.mark.parametrize(("name", "kind"), [("ddim", "epsilon"), ("ddim", "sample"), ("flow", "flow")])
def test_a_declared_prediction_type_must_be_the_schedulers(name, kind):
    scheduler = make_scheduler(name, 6, prediction_type=kind)
    diffusion = ConditionalDiffusion(declares(kind), scheduler)
    message = f"denoiser: is for 'v_prediction' .`prediction_type`., but the scheduler has '{kind}'"
    with pytest.raises(ValueError, match=message):
        ConditionalDiffusion(declares("v_prediction"), scheduler)
    with pytest.raises(ValueError, match=message):
        diffusion.denoiser = declares("v_prediction")
    diffusion.denoiser = RegisterDenoiser(dim=4, steps=6)  # one that declares nothing is taken


@pytest.mark.parametrize("masked", [False, True])
def test_tangents_through_the_transformer_are_differences(masked):
    denoiser = TransformerDenoiser(16, 10, condition_dim=2, register_dim=3).double()
    for parameter in denoiser.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    x, tangent = torch.randn(2, 2, 5, 3, dtype=torch.float64)
    condition = torch.randn(2, 7, 2, dtype=torch.float64)
    masks = (torch.arange(7) < torch.tensor([[7], [4]]), torch.arange(5) < torch.tensor([[3], [5]]))

    def call(x):
        if masked:
            return denoiser(x, torch.tensor([0, 9]), (condition, masks[0]), masks[1])
        return denoiser(x, torch.tensor([0, 9]), condition)

    value, ours = torch.func.jvp(call, (x,), (tangent,))
    torch.testing.assert_close(value, call(x))
    expected = (call(x + 1e-5 * tangent) - call(x - 1e-5 * tangent)) / 2e-5
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)
    mapped = torch.vmap(lambda t: torch.func.jvp(call, (x,), (t,))[1])(torch.stack([tangent, 2 * tangent]))
    torch.testing.assert_close(mapped, torch.stack([ours, 2 * ours]))


@pytest.mark.parametrize("to_one", [True, False])
def test_set_alpha_to_one_decides_where_the_last_step_leads(to_one):
    """To the clean sample, or to the noise of timestep 0 (Song et al. 2021, as diffusers has it)."""
    options = {"clip_sample": False, "set_alpha_to_one": to_one, "prediction_type": "sample"}
    scheduler = make_scheduler("ddim", 8, **options)
    assert isinstance(scheduler, DDIMScheduler)
    clean, x = torch.randn(2, 3, 2, dtype=torch.float64)
    diffusion = ConditionalDiffusion(lambda x, t, c: clean, scheduler, eta=0.0)
    schedule = diffusion.schedule
    ours = diffusion.sample(x, None, timesteps=[5])
    eps = (x - schedule.signal[5] * clean) / schedule.sigma[5]
    torch.testing.assert_close(ours, clean if to_one else schedule.signal[0] * clean + schedule.sigma[0] * eps)


def test_the_gradient_of_the_divergence_reaches_both_its_numbers():
    """Of 1/2 (m^2 + e^l - 1 - l) it is m and (e^l - 1) / 2, over the rows."""
    mean, logvar = torch.randn(2, 3, 4, dtype=torch.float64).requires_grad_().unbind()
    mean, logvar = mean.detach().requires_grad_(), logvar.detach().requires_grad_()
    Gaussian(mean, logvar).kl().backward()
    torch.testing.assert_close(mean.grad, mean.detach() / 3)
    torch.testing.assert_close(logvar.grad, (logvar.detach().exp() - 1) / 6)


@pytest.mark.parametrize("temperature", [1.0, 7.0])
def test_the_gradient_of_the_kl_to_a_target_reaches_prediction_and_sample(temperature):
    """Of the prediction it is temperature (softmax - target); of the target log(y) + 1 - log softmax."""
    scores, target = torch.randn(2, 3, 5, dtype=torch.float64).unbind()
    scores, target = scores.requires_grad_(), target.softmax(-1).detach().requires_grad_()
    KLToTarget(temperature)(scores, target).sum().backward()
    logits = (temperature * scores.detach()).log_softmax(-1)
    torch.testing.assert_close(scores.grad, temperature * (logits.exp() - target.detach()))
    torch.testing.assert_close(target.grad, target.detach().log() + 1 - logits)


@pytest.mark.parametrize("original", [2, 3, 6])
@pytest.mark.parametrize("name", ["lcm", "tcd"])
def test_a_distilled_denoiser_is_asked_at_the_steps_it_was_distilled_for(name, original):
    """They are k T / K - 1 for k = 1 ... K, the last of them T - 1 (Luo et al. 2023, section 4.3)."""
    diffusion = ConditionalDiffusion(
        lambda x, t, c: x, make_scheduler(name, 12, original_inference_steps=original), eta=0.0
    )
    taught = [k * 12 // original - 1 for k in range(original, 0, -1)]
    assert [stage.timestep for stage in diffusion.stages(original)] == taught
    for steps in range(1, original + 1):
        assert {stage.timestep for stage in diffusion.stages(steps)} <= set(taught)
        assert diffusion.stages(steps)[0].timestep == 11
    with pytest.raises(ValueError, match=f"expected 1 to {min(original + 1, 12) - 1}, the original_inference_steps"):
        diffusion.stages(original + 1)


def test_options_of_their_own_values_are_kept_by_a_copy():
    diffusion = ConditionalDiffusion(
        lambda x, t, c: 0.5 * x,
        make_scheduler("ddim", 8, set_alpha_to_one=False, clip_sample_range=0.4),
        eta=0.3,
        use_clipped_model_output=False,
        weighting="min_snr",
        snr_gamma=2.0,
    )
    x = 2 * torch.randn(3, 2)
    for other in (copy.deepcopy(diffusion), diffusion.with_scheduler(diffusion.scheduler)):
        first, second = (d.sample(x, None, 4, generator=torch.Generator().manual_seed(1)) for d in (diffusion, other))
        assert torch.equal(first, second)
        assert (other.weighting, other.snr_gamma) == ("min_snr", 2.0)
