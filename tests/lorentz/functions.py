"""Every public function of vectors, with arguments drawn up by its own signature: the laws of functions run on all.

A point has the axis `n` last in its annotation, space coordinates `d`. A new function takes part by its export.
"""

import importlib
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any, get_args

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Operation = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Inputs = Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]
OTHERS = {"origin", "initial_temperature", "check_point", "topk", "cdist"}
"""Functions of numbers, of values that are read, and another name for `pairwise_dist`."""


def functions(lf: ModuleType) -> dict[str, Callable[..., Any]]:
    """Those of `lorentz.functional`, of this import of it, and of `lorentz.models`."""
    models = importlib.import_module("lorentz.models")
    own = {name: value for name, value in vars(models).items() if getattr(value, "__module__", "") == models.__name__}
    named = {name: getattr(lf, name) for name in lf.__all__} | own
    return {
        name: function
        for name, function in named.items()
        if inspect.isfunction(function) and name not in OTHERS and name[0] != "_"
    }


def axes_of(function: Callable[..., Any]) -> dict[str, list[str]]:
    """The axes that each argument is annotated with, of those without a default and of weights."""
    axes = {}
    for name, parameter in inspect.signature(function).parameters.items():
        annotation = get_args(parameter.annotation)[0] if name in ("weights", "scale") else parameter.annotation
        if parameter.default is inspect.Parameter.empty or name == "weights":
            axes[name] = getattr(annotation, "dim_str", "").split()
    return axes


def in_ball(x: Tensor, c: Tensor | float) -> Tensor:
    """A point of the ball of curvature -c for any numbers."""
    return 0.9 * x[..., 1:].tanh() / ((x.shape[-1] - 1) * c) ** 0.5


def arguments(
    function: Callable[..., Any],
    x: Tensor,
    y: Tensor,
    v: Tensor,
    c: Tensor | float,
    axes_of_each: dict[str, list[str]] | None = None,
) -> dict[str, Any]:
    """What a function takes: the points x and y, the ambient vector v, or what they make by the names of arguments.

    A compiled test reads the axes beforehand, because Dynamo cannot trace annotations that are a union.
    """
    points = {"x": x, "y": y, "u": x, "v": v, "w": v, "q": x, "k": y, "general": x, "specific": y, "loc": x}
    points |= {"direction": v, "a": v.cos()}  # the normal of a plane is not 0
    eye = torch.eye(v.shape[-1] - 1, dtype=v.dtype, device=v.device)
    values = {
        "t": 2.0 * v[..., :1].sigmoid(),
        "r": 1.5 * v[..., :1].sigmoid(),
        "directions": eye[:2],
        "matrix": eye[:2],
    }
    values |= {"heads": len(eye), "temperature": 1.0 + c, "scale": 0.5 + v[..., 1:].sigmoid()}
    chosen = {}
    for name, axes in (axes_of_each or axes_of(function)).items():
        if name == "weights" and axes[-2:] == ["m", "n"]:  # without a matrix product, which autocast would round
            chosen[name] = (v[..., :2, None, :] * v[..., None, :, :]).abs().sum(-1)
        elif name == "weights":
            chosen[name] = v[..., 0].sigmoid()
        elif name in ("p", "q") and axes[-1] == "d":
            chosen[name] = in_ball(x if name == "p" else y, c)
        elif name in points:
            of_ball = "p" in inspect.signature(function).parameters and name == "x"
            chosen[name] = in_ball(y, c) if of_ball else points[name][..., int(axes[-1] == "d") :]
        else:
            chosen[name] = values[name]
    return chosen


def operations(lf: ModuleType) -> dict[str, Operation]:
    """The functions under one signature: two points x, y, an ambient vector v and the curvature c."""
    distributions = importlib.import_module("lorentz.distributions")

    def of(function: Callable[..., Any], **options: Any) -> Operation:
        curved = {"c"} & inspect.signature(function).parameters.keys()
        axes = axes_of(function)
        return lambda x, y, v, c: function(
            **arguments(function, x, y, v, c, axes), **dict.fromkeys(curved, c), **options
        )

    def log_prob(x: Tensor, y: Tensor, v: Tensor, c: Tensor) -> Tensor:
        normal = distributions.WrappedNormal(x, 0.5 + v[..., 1:].sigmoid(), c, validate_args=False)
        return normal.log_prob(y)

    every = {name: of(function) for name, function in functions(lf).items()}
    del every["split_heads"], every["join_heads"]
    return every | {
        "pairwise_dist_exact": of(lf.pairwise_dist, exact=True),
        "centroid_native": of(lf.centroid, precision="native"),
        "frechet_mean": lambda x, y, v, c: lf.frechet_mean(torch.stack([x, y], -2), v[..., :2].sigmoid(), c),
        "lorentz_attention": lambda x, y, v, c: lf.lorentz_attention(
            x, y, y, c, temperature=1.0 + c, attn_bias=-lf.pairwise_dist(x, y)
        ),
        "heads": lambda x, y, v, c: lf.join_heads(lf.split_heads(v[..., 1:], v.shape[-1] - 1, c), c),
        "log_prob": log_prob,
    }


class Operators(TorchDispatchMode):
    """What torch's operators do inside: their names, dtypes of floating point, and the largest number of elements."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.dtypes: set[torch.dtype] = set()
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.names.add(func.name())
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, Tensor):
                self.largest = max(self.largest, tensor.untyped_storage().nbytes() // tensor.element_size())
                self.dtypes |= {tensor.dtype} if tensor.is_floating_point() else set()
        return result
