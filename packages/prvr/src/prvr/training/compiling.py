"""torch.compile for the parts of an encoder that are worth it: its stacks of attention blocks, each on its own."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from prvr.models.blocks import AttentionBlocks, TransformerBlocks

__all__ = ["compile_blocks"]


def compile_blocks(model: nn.Module, backend: str | Callable[..., Any] = "inductor") -> int:
    """Compile, in place and when first called, every stack of attention blocks of a model; weights stay as they are.

    Nearly all of a step's arithmetic is in them. What lies between, with shapes and sizes that the host decides, is
    left alone. Numbers of videos, rows and positions are dynamic: one graph serves all batches. Dropout draws other
    numbers than without.

    Args:
        model: a retriever.
        backend: of torch.compile.

    Returns:
        How many stacks there are.
    """
    options: dict[str, Any] = {"dynamic": True, "backend": backend}
    if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
        options["isolate_recompiles"] = True  # all stacks share one code: else they share one limit of graphs
    found = [module for module in model.modules() if isinstance(module, TransformerBlocks | AttentionBlocks)]
    for module in found:
        module.compile(**options)
    return len(found)
