"""Losses and gradients of one step, to be compared between devices, precisions and ways of computing them."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import torch

from prvr.config import Config
from prvr.data.on_device import matrix_products
from prvr.models import build_retriever
from prvr.objective import Objective
from prvr.training.processes import make_accelerator
from prvr.training.retrieval import in_float32
from prvr.types import Batch


def terms_and_gradients(
    config: Config, batch: Batch, device: torch.device
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Loss terms and gradients of one step, on the CPU."""
    with ExitStack() as stack:
        precision = config.train.precision
        accelerator = stack.enter_context(make_accelerator(precision, Path(), device, ()))
        stack.enter_context(matrix_products(precision))
        torch.manual_seed(0)
        retriever = build_retriever(config.model).to(device).train()
        objective = Objective(config.loss, config.model, retriever.registers).to(device).train()
        with accelerator.autocast():
            output = retriever(batch.to(device))
        if precision == "bf16":
            output = in_float32(output)
        generator = torch.Generator().manual_seed(2)
        terms = objective(output, batch.to(device), negatives="random", generator=generator)
        terms["total"].backward()
        gradients = {name: p.grad.cpu() for name, p in retriever.named_parameters() if p.grad is not None}
        return {name: term.detach().cpu() for name, term in terms.items()}, gradients


def largest_gap(ours: Mapping[str, torch.Tensor], plain: Mapping[str, torch.Tensor]) -> float:
    """The largest difference, of the largest value."""
    largest = max(float(value.abs().max()) for value in plain.values())
    return max(float((ours[name] - value).abs().max()) for name, value in plain.items()) / largest
