"""BertAdam against the authors' numbers and a plain loop; the groups; the schedule."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_training_global_batch import small
from torch import nn

from prvr.config import Config, validated
from prvr.models import Retriever
from prvr.objective import Objective
from prvr.published import names
from prvr.training import BertAdam, build_optimizer
from prvr.training.optimizer import parameter_groups, warmup_cosine, warmup_linear
from prvr.training.task import TrainingStep

GOLDEN = Path(__file__).parents[1] / "fixtures" / "prvr_bertadam.npz"


@pytest.mark.parametrize(("dtype", "tag", "tolerance"), [(torch.float64, "64", 1e-12), (torch.float32, "32", 1e-6)])
def test_bert_adam_gives_the_released_numbers(dtype: torch.dtype, tag: str, tolerance: float) -> None:
    golden = np.load(GOLDEN)
    names = ("W_decay", "b_nodecay", "s_decay")
    params = {name: nn.Parameter(torch.tensor(golden[f"{name}/init"]).to(dtype)) for name in names}
    groups = [
        {"params": [params["W_decay"], params["s_decay"]]},
        {"params": [params["b_nodecay"]], "weight_decay": 0.0},
    ]
    optimizer = BertAdam(groups, lr=0.05, warmup=0.25, total_steps=10, weight_decay=0.01)
    for step in range(14):
        for name, p in params.items():
            p.grad = torch.tensor(golden[f"{name}/grads"][step]).to(dtype)
        optimizer.step()
        for name, p in params.items():
            wanted = torch.tensor(golden[f"{name}/after{tag}"][step]).to(dtype)
            torch.testing.assert_close(p.detach(), wanted, rtol=tolerance, atol=tolerance)


def reference_step(
    p: np.ndarray, g: np.ndarray, m: np.ndarray, v: np.ndarray, lr: float, decay: float, beta2: float = 0.999
) -> np.ndarray:
    """One tensor, one step, from the equations; m and v are updated in place."""
    g = g * min(1.0, 1.0 / (np.sqrt((g**2).sum()) + 1e-6))
    m[...] = 0.9 * m + 0.1 * g
    v[...] = beta2 * v + (1 - beta2) * g**2
    return p - lr * (m / (np.sqrt(v) + 1e-6) + decay * p)


@given(
    shape=st.sampled_from([(3,), (3, 4), (3, 4, 2), (2, 3, 4)]),
    stacked=st.integers(0, 2),
    scale=st.floats(0.01, 100),
    seed=st.integers(0, 1000),
)
def test_stacked_slices_are_clipped_as_separate_tensors(shape, stacked, scale, seed) -> None:
    stacked = min(stacked, len(shape))
    generator = torch.Generator().manual_seed(seed)
    together = nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64))
    slices = together.detach().clone().flatten(0, stacked - 1) if stacked else together.detach().clone()[None]
    expected = [part.numpy().copy() for part in slices]
    moments = [(np.zeros_like(part), np.zeros_like(part)) for part in expected]
    optimizer = BertAdam([{"params": [together], "stacked": stacked}], lr=0.1, total_steps=None)
    for _ in range(3):
        together.grad = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
        grads = together.grad.flatten(0, stacked - 1) if stacked else together.grad[None]
        expected = [
            reference_step(p, g.numpy(), m, v, 0.1, 0.01) for p, g, (m, v) in zip(expected, grads, moments, strict=True)
        ]
        before = together.grad.clone()
        optimizer.step()
        assert torch.equal(before, together.grad)  # the gradient itself is not clipped in place
    np.testing.assert_allclose(together.detach().numpy().ravel(), np.stack(expected).ravel(), rtol=1e-12, atol=1e-12)


@given(total=st.integers(1, 50), warmup=st.floats(0, 0.9))
def test_the_schedules_are_a_triangle_and_the_cosine_of_the_whole_run(total: int, warmup: float) -> None:
    values = [warmup_linear(step / total, warmup) for step in range(total + 3)]
    assert all(0 <= v <= 1 for v in values)
    peak = int(np.argmax(values))
    assert values[: peak + 1] == sorted(values[: peak + 1])
    assert values[peak:] == sorted(values[peak:], reverse=True)
    assert values[total:] == [0.0, 0.0, 0.0]
    values = [warmup_cosine(step / total, warmup) for step in range(total + 3)]
    start = next(step for step in range(total + 1) if step / total >= warmup)
    assert values[:start] == pytest.approx([step / total / warmup for step in range(start)])
    assert values[start : total + 1] == pytest.approx(
        [0.5 + 0.5 * np.cos(np.pi * step / total) for step in range(start, total + 1)]
    )
    assert values[total:] == pytest.approx([0.0, 0.0, 0.0])


def tiny_config(**optim: object):
    return validated(Config, {"name": "tiny", "model": {"video_dim": 4, "query_dim": 4}, "optim": optim})


def test_adamw_warms_up_and_decays_without_a_wasted_step() -> None:
    model = nn.Linear(2, 2)
    config = tiny_config(lr=0.1, warmup=0.5)
    optimizer, scheduler = build_optimizer(config, model, nn.Module(), total_steps=9)
    assert isinstance(optimizer, torch.optim.AdamW)
    rates = []
    for _ in range(9):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    cosine = tiny_config(lr=0.1, warmup=0.0, schedule="cosine", betas=[0.8, 0.98], eps=1e-4)
    (group,) = build_optimizer(cosine, nn.Linear(2, 2, bias=False), nn.Module(), total_steps=3)[0].param_groups
    assert (group["betas"], group["eps"], group["lr"]) == ((0.8, 0.98), 1e-4, pytest.approx(0.05 * (1 + 0.5**0.5)))
    np.testing.assert_allclose(rates, 0.1 * np.array([0.2, 0.4, 0.6, 0.8, 1.0, 0.8, 0.6, 0.4, 0.2]), atol=1e-12)


@pytest.mark.parametrize("preset", ["gmmformer-tvr", "hlformer-tvr", "dreamprvr-tvr"])
def test_released_presets_clip_and_decay_as_the_authors_names_say(preset: str) -> None:
    config = small(preset)
    retriever = Retriever(config.model)
    roots = (retriever, Objective(config.loss, config.model, retriever.registers))
    groups = parameter_groups(*roots, config.optim)
    place = {id(p): (g["weight_decay"] > 0, g["stacked"]) for g in groups for p in g["params"]}
    checked = set()
    for root in roots:
        parameters = dict(root.named_parameters())
        for entry in names(root):
            if entry.ours in parameters:
                decays = not any(part in entry.authors for part in ("bias", "LayerNorm.bias", "LayerNorm.weight"))
                # A tensor of the authors is one slice of ours: what is clipped on its own must be just that slice.
                assert place[id(parameters[entry.ours])] == (decays, len(entry.index)), entry
                checked.add(id(parameters[entry.ours]))
    assert checked == set(place)


class Given:
    """A task of one weight and one bias whose gradient is given."""

    def __init__(self, gradient: torch.Tensor) -> None:
        self.gradient, self.networks = gradient, {"model": nn.Linear(2, 1)}

    def backward(self, *_: object) -> dict[str, torch.Tensor]:
        for p, part in zip(self.networks["model"].parameters(), self.gradient.split([2, 1]), strict=True):
            p.grad = part.view(p.shape).clone()
        return {"total": self.gradient.sum()}


@pytest.mark.parametrize(("clip", "norms"), [("auto", (1.0, 1.0)), ("whole", (0.6, 0.8))])
def test_bert_adam_may_clip_the_whole_gradient_first(clip: str, norms: tuple[float, float]) -> None:
    config = tiny_config(name="bert_adam", warmup=0.0, clip=clip)
    task: Any = Given(torch.tensor([0.0, 3.0, 4.0]))
    optimizer, scheduler = build_optimizer(config.optim, task.networks["model"], nn.Module(), total_steps=4)
    TrainingStep(config, task, optimizer, scheduler, torch.device("cpu"))(None, "", 0, 0, None)
    weight, bias = task.networks["model"].parameters()
    found = [optimizer.state[p]["exp_avg"].norm().item() / 0.1 for p in (weight, bias)]
    assert found == pytest.approx(norms, rel=1e-5)
