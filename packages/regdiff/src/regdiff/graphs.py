"""CUDA graphs of a function that is called again and again with tensors of the same kind."""

from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from regdiff.masks import is_concrete

#: Graphs that one `Graphs` keeps, each with the memory of its steps.
KEPT = 16


def graphable(module: nn.Module, inputs: Any) -> bool:
    """Whether what a module does may be kept as a CUDA graph: on a card, without gradients, of tensors alone.

    Args:
        module: No Python code but its own may be asked to run, such as hooks.
        inputs: A pytree.
    """
    return (
        not (module.training or torch.is_grad_enabled() or torch.is_autocast_enabled("cuda"))
        and all(isinstance(leaf, Tensor) and leaf.is_cuda and is_concrete(leaf) for leaf in tree_leaves(inputs))
        and not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
        and torch.backends.cuda.is_built()  # not so where a card is pretended
        and not torch.cuda.is_current_stream_capturing()
    )


class Graphs:
    """Graphs by all that they depend on. What comes once is not worth one: it is made at the second call."""

    def __init__(self) -> None:
        self._made: dict[tuple[Any, ...], Any] = {}

    def __call__(
        self, run: Callable[[Any], Tensor], inputs: Any, options: tuple[Any, ...], weights: Sequence[Tensor]
    ) -> Tensor:
        """run(inputs), from a graph where there is one.

        Args:
            run: Works on the device alone.
            inputs: A pytree of tensors.
            options: What else the result depends on, hashable.
            weights: Tensors that `run` reads besides: seen when changed in place, others make a new graph.
        """
        leaves, structure = tree_flatten(inputs)
        key = (
            *(*options, str(structure), get_ident()),
            *((tensor.shape, tensor.dtype) for tensor in (*leaves, *weights)),
            *(weight.data_ptr() for weight in weights),
            *(torch.cuda.current_stream(), torch.is_inference_mode_enabled(), torch.get_float32_matmul_precision()),
        )
        if key not in self._made:
            if len(self._made) >= KEPT:
                self._made.clear()
            self._made[key] = None
            return run(inputs)
        if self._made[key] is None:
            self._made[key] = torch.cuda.make_graphed_callables(run, (tree_map(torch.clone, inputs),))
        return self._made[key](inputs).clone()
