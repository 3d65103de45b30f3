"""Generalised pooling, the prior and the textual perturbation, against plain loops and closed forms."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regdiff.registers import AttentionReadout, Gaussian, GeneralizedPooling, PriorSampler, TextualPerturbation


def random_mask(rows: int, length: int) -> torch.Tensor:
    """Any pattern with at least one valid position a row."""
    mask = torch.rand(rows, length) < 0.5
    mask[torch.arange(rows), torch.randint(length, (rows,))] = True
    return mask


def test_pooling_by_plain_loops():
    pooling = GeneralizedPooling(length=9, code_dim=4).double()
    x = torch.randn(2, 7, 3).double()
    gru, table = pooling.gru, pooling.rank_table

    def run(suffix, codes):
        """One direction of a GRU, gate by gate."""
        w_i, w_h = getattr(gru, f"weight_ih_l0{suffix}"), getattr(gru, f"weight_hh_l0{suffix}")
        b_i, b_h = getattr(gru, f"bias_ih_l0{suffix}"), getattr(gru, f"bias_hh_l0{suffix}")
        state, states = torch.zeros(4).double(), []
        for code in codes:
            (ri, zi, ni), (rh, zh, nh) = (w_i @ code + b_i).chunk(3), (w_h @ state + b_h).chunk(3)
            z = torch.sigmoid(zi + zh)
            state = (1 - z) * torch.tanh(ni + torch.sigmoid(ri + rh) * nh) + z * state
            states.append(state)
        return states

    ahead, back = run("", table[:7]), run("_reverse", table[:7].flip(0))[::-1]
    score = torch.stack([pooling.score((a + b) / 2)[0] for a, b in zip(ahead, back, strict=True)]) / 0.1
    weights = score.softmax(0)
    for row in range(2):
        for channel in range(3):
            ordered = sorted(x[row, :, channel].tolist(), reverse=True)
            expected = sum(w * v for w, v in zip(weights.tolist(), ordered, strict=True))
            assert pooling(x)[row, channel].item() == pytest.approx(expected, rel=1e-12)


@given(seed=st.integers(0, 1000), rows=st.integers(1, 5), length=st.integers(1, 12))
def test_padding_changes_nothing(seed, rows, length):
    """Row by row, every masked reduction equals the same one over the valid positions alone, in any mask pattern."""
    torch.manual_seed(seed)
    x, mask = torch.randn(rows, length, 6).double(), random_mask(rows, length)
    x[~mask] = 1e6 * torch.randn(int((~mask).sum()), 6).double() if seed % 2 else math.nan
    x.requires_grad_()
    pooling, readout = GeneralizedPooling(12, 4).double(), AttentionReadout(6).double()
    prior = PriorSampler(6, 12).double()
    for row in range(rows):
        alone = x[row : row + 1, mask[row]]
        torch.testing.assert_close(pooling(x, mask)[row], pooling(alone)[0])
        torch.testing.assert_close(readout(x, mask)[row], readout(alone)[0])
        torch.testing.assert_close(prior(x, mask).mean[row], prior(alone).mean[0])
        torch.testing.assert_close(prior(x, mask).logvar[row], prior(alone).logvar[0])
    (gradient,) = torch.autograd.grad(prior(x, mask).mean.sum() + pooling(x, mask).sum(), x)
    assert gradient.isfinite().all()
    assert not gradient[~mask].any()


def test_kl_against_torch_distributions():
    mean, logvar = torch.randn(5, 7).double(), torch.randn(5, 7).double()
    normal = torch.distributions.Normal(mean, (0.5 * logvar).exp())
    standard = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
    expected = torch.distributions.kl_divergence(normal, standard).sum(-1).mean()
    torch.testing.assert_close(Gaussian(mean, logvar).kl(), expected)


def test_sample_is_reparameterised():
    mean, logvar = torch.randn(2, 2, 3)
    gaussian = Gaussian(mean, logvar)
    noise = torch.randn(2, 4, 3)
    drawn = gaussian.sample(4, noise=noise)
    torch.testing.assert_close(drawn, mean[:, None] + logvar.exp().sqrt()[:, None] * noise)
    a, b, c = (gaussian.sample(4, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


@pytest.mark.parametrize("num", [1, 4])
def test_perturbation_by_plain_loops(num):
    features, drawn = torch.randn(3, 6).double(), [torch.randn(3, num, 6).double() for _ in range(2)]
    output = TextualPerturbation(0.2)(features, num, z_alpha=drawn[0], z_beta=drawn[1])
    for b in range(3):
        values = features[b].tolist()
        m = sum(values) / 6
        squares = sum((v - m) ** 2 for v in values)
        for n in range(num):
            for i in range(6):
                alpha = 1 + 0.2 * math.sqrt(squares / 5) * drawn[0][b, n, i].item()
                beta = m + 0.2 * math.sqrt(squares / 5) * drawn[1][b, n, i].item()
                expected = alpha * (values[i] - m) / math.sqrt(squares / 6 + 1e-5) + beta
                assert output[b, n, i].item() == pytest.approx(expected, rel=1e-12)


def test_perturbation_draws_and_gradient():
    features = torch.randn(2, 64).requires_grad_()
    perturb = TextualPerturbation(0.1)
    a, b = (perturb(features, 4, torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(a, b)
    assert not torch.allclose(a[:, 0], a[:, 1])
    exact = TextualPerturbation(0.0)(features, 2)
    # The normalised part is all that carries gradient: its sum over coordinates is constant, and so beta is detached.
    (gradient,) = torch.autograd.grad(exact.sum(), features, retain_graph=True)
    assert gradient.abs().max() < 1e-5
    (gradient,) = torch.autograd.grad((exact * torch.randn(64)).sum(), features)
    assert gradient.abs().max() > 1e-2


class WithoutReserve(torch.autograd.Function):
    """What cuDNN says of a gradient through a recurrent layer that did not run in training mode."""

    @staticmethod
    def forward(ctx, states):
        return states.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("cudnn RNN backward can only be called in training mode")


@pytest.mark.parametrize("mask", [None, torch.arange(5) < torch.tensor([[5], [2]])])
def test_a_gradient_in_eval_mode_needs_no_training_mode_of_cudnn(mask, monkeypatch):
    plain = torch.nn.modules.rnn._VF.gru

    def like_cudnn(*arguments):
        states, last = plain(*arguments)
        training = arguments[-3 if isinstance(arguments[2], list) else -2]
        return (states if training else WithoutReserve.apply(states)), last

    pooling, x = GeneralizedPooling(length=5).eval(), torch.randn(2, 5, 4)
    expected = pooling(x, mask)
    monkeypatch.setattr(torch.nn.modules.rnn._VF, "gru", like_cudnn)
    pooled = pooling(x, mask)
    pooled.sum().backward()
    assert torch.equal(pooled, expected)
    assert pooling.gru.weight_hh_l0.grad.abs().sum() > 0
    assert not pooling.training


def test_lengths_lie_on_the_cpu_whatever_the_default_device_is():
    pooling, x = GeneralizedPooling(length=5), torch.randn(2, 5, 4)
    mask = torch.arange(5) < torch.tensor([[5], [2]])
    expected = pooling(x, mask)
    with torch.device("meta"):  # stands for a GPU, which torch refuses for lengths as well
        assert torch.equal(pooling(x, mask), expected)
