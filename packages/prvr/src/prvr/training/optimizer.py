"""The released optimiser, parameter groups that know stacked tensors, and the learning rate's schedule."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from prvr.config import DECAYS, Config, OptimConfig
from prvr.errors import InputError


def warmup_linear(progress: float, warmup: float) -> float:
    """Share of the learning rate at `progress` of the run: rises to 1 at `warmup`, then falls linearly to 0 at 1.

    Args:
        progress: steps taken divided by all steps, >= 0.
        warmup: share of the run that warms up, in [0, 1).

    Examples:
        >>> [warmup_linear(x, 0.25) for x in (0.0, 0.125, 0.25, 1.0, 2.0)]
        [0.0, 0.5, 1.0, 0.0, 0.0]
    """
    if progress < warmup:
        return progress / warmup
    return max((1.0 - progress) / (1.0 - warmup), 0.0)


def warmup_cosine(progress: float, warmup: float) -> float:
    """Share of the learning rate at `progress` of the run: rises to 1 at `warmup`, then (1 + cos(pi progress)) / 2.

    The cosine is that of the whole run, so that it starts a little below 1; after the run it is 0.

    Args:
        progress, warmup: as in `warmup_linear`.

    Examples:
        >>> [round(warmup_cosine(x, 0.25), 3) for x in (0.0, 0.125, 0.25, 0.5, 1.0, 2.0)]
        [0.0, 0.5, 0.854, 0.5, 0.0, 0.0]
    """
    if progress < warmup:
        return progress / warmup
    return (1.0 + math.cos(math.pi * min(progress, 1.0))) / 2


_SCHEDULES: dict[str, Callable[[float, float], float]] = {"linear": warmup_linear, "cosine": warmup_cosine}


class BertAdam(torch.optim.Optimizer):
    r"""Adam as the first BERT code had it: every tensor clipped on its own, no bias correction, decay in the update.

    For each tensor $p$ with gradient $g$, at its step $t$ counted from 0:

    $$g \leftarrow g \min(1, G / (\lVert g \rVert + 10^{-6})), \quad
      m \leftarrow \beta_1 m + (1 - \beta_1) g, \quad v \leftarrow \beta_2 v + (1 - \beta_2) g^2,$$
    $$p \leftarrow p - \eta \, s(t / T) \left( m / (\sqrt{v} + \epsilon) + \lambda p \right)$$

    with the schedule $s$ of `warmup_linear` or `warmup_cosine`: step 0 of a run with warm-up changes nothing, nor does
    any step from $T$ on. A tensor without a gradient is left alone, decay included. The PRVR systems (MS-SL, GMMFormer,
    HLFormer, DreamPRVR) and DiffusionRet were all trained with it.

    Args:
        params: tensors, or groups. A group may carry `stacked`: how many leading axes number separate tensors
            (default 0), each of which is clipped on its own; and `schedule`, "linear" (default) or "cosine".
        lr: peak learning rate.
        betas: decay rates of the two moments.
        eps: added to the root of the second moment.
        weight_decay: $\lambda$, multiplied with the learning rate.
        max_grad_norm: $G$; 0 or less switches clipping off.
        warmup: share of `total_steps` that warms up, in [0, 1).
        total_steps: $T$; None keeps the learning rate constant.

    Raises:
        ValueError: a value out of range, or a tensor with fewer axes than its group's `stacked`.

    Examples:
        >>> import torch
        >>> weight = torch.nn.Parameter(torch.ones(2))
        >>> optimizer = BertAdam([weight], lr=0.1, total_steps=10, warmup=0.1, weight_decay=0.0)
        >>> for _ in range(3):
        ...     optimizer.zero_grad()
        ...     weight.square().sum().backward()
        ...     optimizer.step()
        >>> bool((weight < 1).all())
        True
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        max_grad_norm: float = 1.0,
        warmup: float = 0.01,
        total_steps: int | None = None,
    ) -> None:
        limits = {
            f"lr={lr}: expected a positive number": 0 < lr < math.inf,
            f"betas={betas}: expected two numbers in [0, 1)": all(0 <= beta < 1 for beta in betas),
            f"eps={eps}, weight_decay={weight_decay}: expected numbers of at least 0": min(eps, weight_decay) >= 0,
            f"warmup={warmup}: expected a share of all steps in [0, 1)": 0 <= warmup < 1,
            f"total_steps={total_steps}: expected at least 1, or None": total_steps is None or total_steps >= 1,
        }
        if problems := [text for text, holds in limits.items() if not holds]:
            raise InputError("; ".join(problems))
        defaults = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay, "warmup": warmup}
        defaults |= {"max_grad_norm": max_grad_norm, "total_steps": total_steps, "schedule": "linear", "stacked": 0}
        super().__init__(params, defaults)
        self.rates: Sequence[Tensor] | None = None
        """Learning rates of the `rules` of a step that is captured, which does not count itself."""
        if flat := [
            tuple(p.shape) for group in self.param_groups for p in group["params"] if p.ndim < group["stacked"]
        ]:
            raise InputError(f"a tensor of shape {flat[0]} has fewer axes than its group's `stacked`")

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of every tensor that has a gradient; a closure is not supported."""
        for index, ((number, _), params) in enumerate(self.rules().items()):
            rate = self.count(number, params) if self.rates is None else self.rates[index]
            _update(self.param_groups[number], params, rate, [self.state[p] for p in params])

    def rules(self) -> dict[tuple[int, int], list[nn.Parameter]]:
        """The tensors that have a gradient, by the number of their group and of their steps: they are updated alike."""
        rules: dict[tuple[int, int], list[nn.Parameter]] = {}
        for number, group in enumerate(self.param_groups):
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["exp_avg"] = torch.zeros_like(p, memory_format=torch.preserve_format)
                    state["exp_avg_sq"] = torch.zeros_like(p, memory_format=torch.preserve_format)
                # Each tensor counts its own steps, as the authors' does: they differ where a gradient was missing.
                rules.setdefault((number, state["step"]), []).append(p)
        return rules

    def count(self, number: int, params: Sequence[nn.Parameter]) -> float:
        """Counts a step of tensors of a group that are updated alike; returns its learning rate."""
        rate = _scheduled(self.param_groups[number], self.state[params[0]]["step"])
        for p in params:
            self.state[p]["step"] += 1
        return rate

    def scheduled_lr(self) -> float:
        """The learning rate that the next step of the most advanced tensor will use."""
        steps = [state["step"] for state in self.state.values() if state]
        return _scheduled(self.param_groups[0], max(steps, default=0))


def _scheduled(group: dict[str, Any], step: int) -> float:
    total = group["total_steps"]
    return group["lr"] if total is None else group["lr"] * _SCHEDULES[group["schedule"]](step / total, group["warmup"])


def _update(
    group: Mapping[str, Any], params: list[Any], rate: float | Tensor, states: Sequence[Mapping[str, Any]]
) -> None:
    """The update of BertAdam; not on a CPU, and by a rate that is a tensor, in one pass over parameters and moments."""
    beta1, beta2 = group["betas"]
    grads: list[Any] = [*_clipped([p.grad for p in params], group["max_grad_norm"], group["stacked"])]
    first, second = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq"))
    decay, eps = group["weight_decay"], group["eps"]
    if params[0].device.type != "cpu" or isinstance(rate, Tensor):  # AdamW, so late that its corrections are 1
        late = [torch.full((), 1e9, device=params[0].device)] * len(params)
        numbers: Any = {"lr": rate, "beta1": beta1, "beta2": beta2, "weight_decay": decay, "eps": eps}
        torch._fused_adamw_(params, grads, first, second, [], late, **numbers, amsgrad=False, maximize=False)
        return
    torch._foreach_lerp_(first, grads, 1 - beta1)
    torch._foreach_mul_(second, beta2)
    torch._foreach_addcmul_(second, grads, grads, value=1 - beta2)
    denominator = torch._foreach_sqrt(second)
    torch._foreach_add_(denominator, eps)
    update = torch._foreach_div(first, denominator)
    if decay > 0:
        torch._foreach_add_(update, params, alpha=decay)
    torch._foreach_add_(params, update, alpha=-rate)


def _clipped(
    grads: list[Tensor], max_norm: float, stacked: int
) -> "list[Float[Tensor, '...']] | tuple[Float[Tensor, '...'], ...]":
    """Gradients scaled to at most `max_norm`, each slice along the `stacked` leading axes by its own norm."""
    if max_norm <= 0 or not grads:
        return grads
    if stacked == 0:
        scales = list(torch._foreach_norm(grads))
    else:
        scales = []
        for g in grads:
            axes = tuple(range(stacked, g.ndim))  # none left: every number is a tensor of its own
            scales.append(torch.linalg.vector_norm(g, dim=axes, keepdim=True) if axes else g.abs())
    torch._foreach_add_(scales, 1e-6)
    torch._foreach_reciprocal_(scales)
    torch._foreach_mul_(scales, max_norm)
    torch._foreach_clamp_max_(scales, 1.0)
    return torch._foreach_mul(grads, scales)


def parameter_groups(
    retriever: nn.Module, objective: nn.Module, optim: OptimConfig, backbone: nn.Module | None = None
) -> list[dict[str, Any]]:
    """All trainable parameters in groups of equal weight decay, equal stacking and equal learning rate.

    A module that stores several tensors in one parameter says so by an attribute `stacked_dims`: how many leading axes
    number them. `decay="matrices"` decays every tensor of two or more axes (stacking not counted); `"released"` decays
    what the authors' optimiser decays, by their names, and falls back to matrices for parameters they do not have.

    Args:
        retriever: the retriever.
        objective: the objective.
        optim: decay and learning rates.
        backbone: a pretrained part of the retriever, which is trained at `optim.backbone_lr`.

    Returns:
        Groups with the keys `params`, `weight_decay`, `stacked`, those of a backbone, which come last, with `lr` too;
        each parameter is in exactly one.
    """
    pretrained = set() if backbone is None else {id(p) for p in backbone.parameters()}
    chosen = DECAYS[optim.decay].part([retriever, objective])
    groups: dict[tuple[bool, bool, int], list[nn.Parameter]] = {}
    seen: set[int] = set()
    for root in (retriever, objective):
        for module in root.modules():
            stacked = int(getattr(module, "stacked_dims", 0))
            for p in module.parameters(recurse=False):
                if not p.requires_grad or id(p) in seen:
                    continue
                seen.add(id(p))
                decays = chosen.get(id(p), p.ndim - stacked >= 2)
                groups.setdefault((id(p) not in pretrained, decays, min(stacked, p.ndim)), []).append(p)
    return [
        {"params": params, "weight_decay": optim.weight_decay if decays else 0.0, "stacked": stacked}
        | ({} if new else {"lr": optim.backbone_lr})
        for (new, decays, stacked), params in sorted(groups.items(), key=lambda item: item[0], reverse=True)
    ]


def by_axes(modules: Sequence[nn.Module]) -> dict[int, bool]:
    """Nothing: the number of axes decides for every parameter."""
    return {}


def build_optimizer(
    config: Config | OptimConfig,
    retriever: nn.Module,
    objective: nn.Module,
    total_steps: int,
    backbone: nn.Module | None = None,
) -> tuple[torch.optim.Optimizer, LRScheduler | None]:
    """The configured optimiser; for AdamW also its schedule, to be stepped after each optimiser step.

    BertAdam keeps its own schedule and clips each tensor; AdamW expects the caller to clip the global norm, as
    `optim.clip` may for BertAdam too. `backbone` is a pretrained part of the retriever, see `parameter_groups`.
    """
    optim = config if isinstance(config, OptimConfig) else config.optim
    groups = parameter_groups(retriever, objective, optim, backbone) or [{"params": []}]  # a fit trains nothing
    eps = {"bert_adam": 1e-6, "adamw": 1e-8}[optim.name] if optim.eps is None else optim.eps
    options: dict[str, Any] = {"lr": optim.lr, "betas": optim.betas, "eps": eps, "weight_decay": optim.weight_decay}
    if optim.name == "bert_adam":
        groups = [group | {"schedule": optim.schedule} for group in groups]
        options |= {"max_grad_norm": optim.max_grad_norm, "warmup": optim.warmup, "total_steps": total_steps}
        return BertAdam(groups, **options), None
    on_gpu = all(p.is_cuda for group in groups for p in group["params"])
    adamw = torch.optim.AdamW(groups, fused=on_gpu, capturable=on_gpu, **options)
    share = _SCHEDULES[optim.schedule]
    # Shifted by one: neither the first nor the last step is wasted on a learning rate of 0.
    return adamw, LambdaLR(adamw, lambda step: share((step + 1) / (total_steps + 1), optim.warmup))
