"""RegisterGenerator with classifier-free guidance: the null condition, its learning and its loading."""

import copy
import dataclasses

import torch

from regdiff import RegisterGenerator, make_register_generator

DIM, NUM, ROWS, LENGTH, STEPS = 8, 3, 5, 6, 5


def build(**options) -> RegisterGenerator:
    """Small random weights everywhere."""
    generator = make_register_generator(DIM, NUM, 2, steps=STEPS, **options)
    with torch.no_grad():
        for parameter in generator.parameters():
            parameter.normal_(std=0.2)
    return generator.double()


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    """Features and their mask, each row with its own pattern."""
    mask = torch.rand(ROWS, LENGTH) < 0.6
    mask[:, 2] = True
    return torch.randn(ROWS, LENGTH, DIM).double(), mask


def test_guidance_goes_from_the_null_condition_past_the_condition():
    generator, (x, mask) = build(condition_dropout=0.5, guidance_scale=3.0, num_sampling_steps=1).eval(), inputs()
    guided = generator(x, mask)
    assert torch.equal(generator(x, mask, guidance_scale=3.0).tokens, guided.tokens)
    assert torch.equal(generator(x, mask, guidance_scale=1.0).tokens, build_plain(generator)(x, mask).tokens)
    last = torch.full((ROWS,), STEPS - 1)
    conditional, null = (
        generator.denoiser(guided.start, last, c)
        for c in (guided.condition, generator.null_condition.expand_as(guided.condition))
    )
    eps = null + 3 * (conditional - null)
    abar = generator.diffusion.alphas_cumprod[-1]
    clean = ((guided.start - (1 - abar).sqrt() * eps) / abar.sqrt()).clamp(-1, 1)
    torch.testing.assert_close(guided.tokens, clean, rtol=1e-6, atol=1e-6)


def build_plain(generator: RegisterGenerator) -> RegisterGenerator:
    other = copy.deepcopy(generator)
    other.sampling = dataclasses.replace(other.sampling, guidance_scale=None)
    return other


def test_the_null_condition_is_the_registered_one_after_any_loading():
    generator, (x, mask) = build(condition_dropout=0.5, guidance_scale=3.0).eval(), inputs()
    other = build(condition_dropout=0.5, guidance_scale=3.0).eval()
    other.load_state_dict(generator.state_dict(), assign=True)
    assert torch.equal(other(x, mask).tokens, generator(x, mask).tokens)
    with torch.no_grad():
        other.null_condition.add_(1.0)
    changed = copy.deepcopy(other)(x, mask).tokens
    assert torch.equal(other(x, mask).tokens, changed)
    other.load_state_dict(generator.state_dict())
    torch.testing.assert_close(other(x, mask).tokens, generator(x, mask).tokens)


def test_guidance_without_a_learned_null_condition_uses_zeros():
    generator, (x, mask) = build(num_sampling_steps=1).eval(), inputs()
    assert generator.null_condition is None
    assert not torch.allclose(generator(x, mask, guidance_scale=2.0).tokens, generator(x, mask).tokens)


def test_condition_dropout_trains_the_null_condition_only_by_the_loss():
    generator, (x, mask) = build(condition_dropout=0.999), inputs()
    generator(x, mask).tokens.sum().backward()
    assert generator.null_condition.grad is None
    generator.loss(torch.randn(ROWS, NUM, DIM).double(), generator(x, mask))["diffusion"].backward()
    assert generator.null_condition.grad.any()
