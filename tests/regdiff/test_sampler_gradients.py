"""Gradients through the chain, with and without recomputation, and no tensor read back on the way."""

from collections import Counter

import pytest
import torch
from accelerator import DEVICE, Accelerator, Remote
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from regdiff import SCHEDULERS, ConditionalDiffusion, checked, make_scheduler
from regdiff.registers import RegisterDenoiser, make_register_generator

NAMES = list(SCHEDULERS)
TAKERS = [name for name in NAMES if SCHEDULERS[name].own_noise]


def build(name, denoiser, steps=4, **options):
    scheduler = make_scheduler(name, steps, clip_sample=False, **options)
    return ConditionalDiffusion(denoiser, scheduler, condition_dropout=0.1)  # so that it may be guided


def chain(name, weight, x, condition, noise=None):
    # A truncated start, where nothing is divided by a small signal.
    diffusion = build(name, lambda s, t, c: torch.tanh(s @ weight) + c * t.view(-1, 1, 1) / 4)
    seed = torch.Generator().manual_seed(1) if noise is None else None
    return diffusion.sample(x, condition, timesteps=[2, 1], noise=noise, generator=seed)


def inputs(noise):
    weight = 0.3 * torch.randn(4, 4, dtype=torch.float64)
    rest = [torch.randn(1, 2, 4, dtype=torch.float64) for _ in range(3 if noise else 2)]
    return [value.requires_grad_() for value in (weight, *rest)]


@pytest.mark.parametrize("name", NAMES)
def test_gradients_in_float64(name):
    """Gradients of the weights, the start, the condition, and the noise where it can be given."""
    assert SCHEDULERS[name].gradient
    assert torch.autograd.gradcheck(lambda *values: chain(name, *values), inputs(name in TAKERS))


@pytest.mark.parametrize("guidance_scale", [None, 3.0])
@pytest.mark.parametrize("name", NAMES)
def test_checkpoint_gives_the_same_gradients_from_fewer_saved_bytes(name, guidance_scale):
    denoiser = RegisterDenoiser(dim=16, steps=10, layers=4, dropout=0.1)
    diffusion = ConditionalDiffusion(denoiser, make_scheduler(name, 10), condition_dropout=0.1)
    x, condition = torch.randn(4, 3, 16), torch.randn(4, 3, 16)

    def run(checkpoint):
        torch.manual_seed(3)  # of dropout, too, which must be the same when it is recomputed
        denoiser.zero_grad()
        saved = {}

        def pack(tensor):
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        start, given = x.clone().requires_grad_(), condition.clone().requires_grad_()
        with saved_tensors_hooks(pack, lambda tensor: tensor):
            end = diffusion.sample(start, given, 8, guidance_scale=guidance_scale, checkpoint=checkpoint)
        end.square().mean().backward()
        return end, [start.grad, given.grad, *(p.grad for p in denoiser.parameters())], sum(saved.values())

    (end, gradients, kept), (end2, gradients2, kept2) = run(False), run(True)
    assert torch.equal(end, end2)
    for ours, theirs in zip(gradients, gradients2, strict=True):
        assert torch.equal(ours, theirs)
    assert kept2 < kept / 4


@pytest.mark.parametrize("name", NAMES)
def test_no_call_waits_for_an_accelerator(name):
    """Nothing is read back from it and, once the tables of the schedule lie there, nothing is copied to it."""
    with Accelerator() as device:
        net = nn.Linear(4, 4).to(DEVICE)
        diffusion = build(name, lambda x, t, c, mask=None: net(x) + c + t.view(-1, 1, 1), 10)
        x, mask = Remote(torch.randn(3, 2, 4)), Remote(torch.tensor([[True, True], [True, False], [False, False]]))
        diffusion.loss(x, x)
        device.reads.clear()
        end = diffusion.sample(x, x, 5, mask=mask, guidance_scale=2.0)
        assert (end.device, end.shape) == (DEVICE, (3, 2, 4))
        for timesteps in (None, "all", Remote(torch.tensor([0, 5, 9]))):
            loss = diffusion.loss(x, x, timesteps=timesteps, mask=mask)
            assert loss.device == DEVICE
            loss.backward()
        assert not device.reads
        end.sum().item()
        assert device.reads.total() == 1  # any step that read one would be counted


@pytest.mark.parametrize("train", [True, False])
def test_registers_do_not_wait_for_an_accelerator(train):
    with Accelerator() as device:
        generator = make_register_generator(8, 3, 2, steps=5, num_sampling_steps=3).to(DEVICE).train(train)
        features, mask = Remote(torch.randn(2, 6, 8)), Remote(torch.arange(6) < torch.tensor([[4], [6]]))
        targets = Remote(torch.randn(2, 3, 8))
        for warm in (False, True):
            device.reads.clear()
            registers = generator(features, mask)
            sum(generator.loss(targets, registers).values()).backward()
            assert not (device.reads if warm else device.reads - Counter({"to the accelerator": 2}))
    assert generator.prior.pooling.gru.weight_hh_l0_reverse.grad is not None


def test_checked_looks_at_values_of_an_accelerator():
    """Without it a timestep out of range ends all work on a real one; it is off by default, as it waits."""
    with Accelerator() as device:
        diffusion = ConditionalDiffusion(lambda x, t, c: x, make_scheduler("ddim", 10))
        x, outside = Remote(torch.zeros(3, 2, 4)), Remote(torch.tensor([0, 9, 10]))
        generator = make_register_generator(8, 3, 2, steps=5).to(DEVICE).eval()
        nan = Remote(torch.full((2, 6, 8), torch.nan))
        diffusion.sample(x / 0, x)
        generator(nan)
        diffusion.loss(x, x, timesteps=outside.clamp(max=9))
        device.reads.clear()
        diffusion.loss(x, x, timesteps=outside.clamp(max=9))
        assert not device.reads
        with checked():
            with pytest.raises(ValueError, match=r"timesteps: got 10, expected integers in \[0, 10\)"):
                diffusion.loss(x, x, timesteps=outside)
            with pytest.raises(ValueError, match="initial: got nan or infinite values"):
                diffusion.sample(x / 0, x)
            with pytest.raises(ValueError, match="features: the condition of row 0 is not finite"):
                generator(nan)
    with checked():  # what has no values passes
        double = torch.vmap(lambda x: diffusion.sample(x[None], None, 2, noise=x[None]))
        assert double(torch.randn(3, 4)).shape == (3, 1, 4)
