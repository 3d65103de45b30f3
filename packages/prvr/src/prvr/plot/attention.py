"""Whether the attentions of a retriever look at content, and whether its registers change anything."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from prvr.evaluation.report import BlockUse
from prvr.models.blocks import Mixer, RegisterTokens, Window, key_mask
from prvr.models.rows import Sequences
from prvr.types import FirstStage


def logit_spread(
    logits: Float[Tensor, "k v h l s"], queries: Bool[Tensor, "v l"] | None, keys: Bool[Tensor, "v 1 1 s"] | None
) -> tuple[Float[Tensor, " k"], Float[Tensor, " k"]]:
    """Deviation over keys, and entropy as a share of that of equal weights, of the logits of each block.

    Args:
        logits: before the window.
        queries: True = valid; None = all.
        keys: the same of keys, as `key_mask` makes it.

    Examples:
        >>> logits = torch.tensor([[0.0, 0.0], [3.0, 5.0]]).reshape(2, 1, 1, 1, 2)
        >>> deviation, entropy = logit_spread(logits, None, None)
        >>> deviation.tolist(), [round(share, 2) for share in entropy.tolist()]
        ([0.0, 1.0], [1.0, 0.53])
    """
    valid = torch.ones_like(logits, dtype=torch.bool) if keys is None else keys.expand_as(logits)
    count = valid.sum(-1)
    mean = logits.masked_fill(~valid, 0).sum(-1, keepdim=True) / count[..., None]
    deviation = ((logits - mean).masked_fill(~valid, 0).square().sum(-1) / count).sqrt()
    weights = logits.masked_fill(~valid, -torch.inf).softmax(-1)
    entropy = torch.special.entr(weights).sum(-1) / count.clamp_min(2).log()
    counted = (deviation.new_ones(()) if queries is None else queries[:, None]).expand_as(deviation)
    total = counted.flatten(1).sum(1)
    return tuple((x * counted).flatten(1).sum(1) / total for x in (deviation, entropy))  # pyright: ignore[reportReturnType]


@contextmanager
def watched(model: FirstStage) -> Iterator[list[BlockUse]]:
    """Collects what each block of attention does on the first batch that it reads inside the `with` statement.

    Compiled blocks are left alone. Registers are keys without places, so their order changes nothing by construction.
    """
    uses: list[BlockUse] = []
    handles: dict[str, RemovableHandle] = {}

    @torch.no_grad()
    def record(name: str, module: Any, args: tuple[Tensor, Sequences, Window, RegisterTokens], output: Tensor) -> None:
        if torch.compiler.is_compiling():
            return
        handles.pop(name).remove()
        x, sequences, window, registers = args
        extra, others = 0, list[Tensor]()
        if registers is not None:
            extra = registers.shape[1]
            if len(registers) > 1:
                others = [registers.roll(1, 0), registers.mean(1, keepdim=True).expand_as(registers)]
        logits = module.content_logits(x, sequences, registers).float()
        numbers = [*logit_spread(logits, sequences.mask, key_mask(sequences.mask, extra))]
        for other in others:  # how much the output changes, relative to its length
            change = module.forward(x, sequences, window, other) - output
            numbers.append(_lengths(change) / _lengths(output))
        rows = torch.stack(numbers, -1).tolist()
        uses.extend(BlockUse(f"{name} {place}", *row) for place, row in enumerate(rows))

    for name, module in model.named_modules() if isinstance(model, nn.Module) else ():
        if isinstance(module, Mixer) and isinstance(module, nn.Module):
            handles[name] = module.register_forward_hook(partial(record, name))
    try:
        yield uses
    finally:
        for handle in handles.values():
            handle.remove()


def _lengths(rows: Float[Tensor, "k ..."]) -> Float[Tensor, " k"]:
    return rows.float().flatten(1).norm(dim=1)
