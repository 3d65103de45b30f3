"""Classifier-free guidance: the null condition, its share in training, and the formula in sampling."""

import math
from statistics import NormalDist

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regdiff import SCHEDULERS, ConditionalDiffusion, make_scheduler

NAMES = list(SCHEDULERS)


def denoiser(x, timestep, condition, mask=None):
    if mask is not None:  # registers see each other
        x = x - (x * mask[..., None]).sum(1, keepdim=True) / mask.sum(1).view(-1, 1, 1)
    return torch.tanh(x + condition["text"]) * (timestep.view(-1, 1, 1) + 1) / 6 + condition["scale"]


def given_condition(rows=3):
    return {"text": torch.randn(rows, 1, 4), "scale": torch.tensor(0.1), "name": "kept"}


@given(name=st.sampled_from(NAMES), scale=st.floats(-2, 8, width=32), masked=st.booleans())
def test_guidance_is_the_formula_of_two_calls(name, scale, masked):
    """One call with 2b rows = null + w (conditional - null) of two calls with b rows."""
    rows = []

    def counted(x, t, c, mask=None):
        rows.append(len(x))
        return denoiser(x, t, c, mask)

    def two_calls(x, t, c, mask=None):
        null = denoiser(x, t, {**c, "text": torch.zeros_like(c["text"])}, mask)
        return null + scale * (denoiser(x, t, c, mask) - null)

    x, condition, scheduler = torch.randn(3, 2, 4), given_condition(), make_scheduler(name, 6)
    mask = torch.tensor([[True, False], [True, True], [False, True]]) if masked else None
    ends = [
        ConditionalDiffusion(function, scheduler, condition_dropout=0.1).sample(
            x, condition, 4, generator=torch.Generator().manual_seed(0), guidance_scale=w, mask=mask
        )
        for function, w in ((counted, scale), (two_calls, None))
    ]
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-4)
    calls = 6 if SCHEDULERS[name].calls == 2 else 4  # Heun corrects two of four steps
    assert rows == [6 if scale != 1 else 3] * calls


def test_a_learned_null_condition():
    """It is what the null rows see in sampling and the dropped rows in training, and it learns."""
    learned = torch.randn(1, 1, 4, requires_grad=True)
    null = {"text": learned, "scale": None, "name": None}
    diffusion = ConditionalDiffusion(
        denoiser, make_scheduler("ddim", 6), condition_dropout=1.0, null_condition=null, eta=0.0
    )
    x, condition = torch.randn(3, 2, 4), given_condition()
    same = {**condition, "text": learned.expand(3, 1, 4)}
    torch.testing.assert_close(diffusion.sample(x, condition, guidance_scale=0.0), diffusion.sample(x, same))
    times, noise = torch.tensor([0, 2, 5]), torch.randn(3, 2, 4)
    plain = ConditionalDiffusion(denoiser, make_scheduler("ddim", 6))
    ours = diffusion.loss(x, condition, noise, times)
    torch.testing.assert_close(ours, plain.loss(x, same, noise, times))
    ours.backward()
    assert learned.grad.any()


@pytest.mark.parametrize("timesteps", [None, "all"])
def test_dropout_takes_the_stated_share_of_rows(timesteps):
    """Whole rows, each on its own, all leaves together; the share within its 1 - 1e-6 bound of a binomial."""
    share, seen = 0.3, []

    def recorder(x, t, c):
        seen.append(c)
        return x

    rows = 20_000 if timesteps is None else 2_000
    diffusion = ConditionalDiffusion(recorder, make_scheduler("ddim", 10), condition_dropout=share)
    mask = torch.ones(rows, 5, dtype=torch.bool)
    condition = (torch.ones(rows, 5, 2), torch.ones(rows, 3), mask)
    for training in (True, False):
        diffusion.train(training).loss(torch.zeros(rows, 1, 1), condition, timesteps=timesteps)
    assert seen[1][0].all()  # in eval mode no condition is dropped
    one, two, kept = seen[0]
    gone = (one == 0).all(dim=(1, 2))
    assert torch.equal(gone, (one == 0).any(2).any(1))
    assert torch.equal(gone, (two == 0).all(1))
    assert kept.all()
    bound = NormalDist().inv_cdf(1 - 5e-7) * math.sqrt(share * (1 - share) / len(gone))
    assert abs(gone.double().mean().item() - share) < bound
    if timesteps == "all":
        per_row = gone.view(10, rows).double().sum(0)
        assert per_row.unique().numel() > 3  # drawn for every timestep on its own


def test_dropout_repeats_with_a_seed():
    x, condition = torch.randn(50, 2, 4), given_condition(50)

    diffusion = ConditionalDiffusion(denoiser, make_scheduler("ddim", 6), condition_dropout=0.5)

    def loss(seed):
        generator = torch.Generator().manual_seed(seed)
        return diffusion.loss(x, condition, generator=generator)

    assert loss(0) == loss(0) != loss(1)


@pytest.mark.parametrize(
    ("condition", "null", "message"),
    [
        (torch.ones(2, dtype=torch.long), None, r"holds a torch.int64 tensor of shape \(2,\).*give null_condition"),
        (torch.ones(2, 3), (torch.ones(3),), "null_condition: got the structure"),
    ],
)
def test_conditions_without_a_null_are_refused(condition, null, message):
    diffusion = ConditionalDiffusion(
        lambda x, t, c: x, make_scheduler("ddim", 4), null_condition=null, condition_dropout=0.5
    )
    x = torch.randn(2, 3)
    with pytest.raises(ValueError, match=message):
        diffusion.loss(x, condition)


def test_classes_with_a_class_for_nothing():
    """Integers need a null of their own, here the class 0."""
    table = torch.randn(5, 3)
    diffusion = ConditionalDiffusion(
        lambda x, t, c: x + table[c], make_scheduler("euler", 4), null_condition=torch.tensor(0)
    )
    x, classes = torch.randn(2, 3), torch.tensor([3, 4])
    null = diffusion.sample(x, torch.zeros_like(classes))
    torch.testing.assert_close(diffusion.sample(x, classes, guidance_scale=0.0), null)
