"""The gradients of a batch that is encoded in parts: chunk by chunk, and by several processes.

The losses compare every query with every video of the batch, encoders look at one video or query at a time. So the
embeddings of all parts come first; then the losses, and their gradient with respect to the embeddings; then every part
goes backwards from that gradient, encoded a second time where its activations were not kept (GradCache: Gao et al.,
"Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", 2021). Neither chunks nor processes change
the result: the negatives are those of the whole batch.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from prvr.errors import InputError
from prvr.losses import Negatives
from prvr.models import AnyRetriever
from prvr.objective import Objective
from prvr.training.processes import process_count, sum_over_processes
from prvr.types import Batch, Labels, Texts, VideoEmbedding, cat_padded, tensors_of, with_tensors
from regdiff.registers import Registers

Context = Callable[[], contextlib.AbstractContextManager]


@dataclass(frozen=True)
class _Encoded:
    """Encoded queries and videos: everything that the losses read."""

    text: Texts
    video: VideoEmbedding
    registers: Registers | None


def backward_in_parts(
    retriever: AnyRetriever,
    objective: Objective,
    chunks: Sequence[Batch],
    labels: Labels,
    *,
    negatives: Negatives = "random",
    warm_up: bool = False,
    generator: torch.Generator | None = None,
    seeds: Sequence[int],
    autocast: Context = contextlib.nullcontext,
) -> dict[str, Tensor]:
    """The loss terms of a whole batch; its gradients become the `.grad` of retriever and objective.

    Where torch.distributed runs with several processes, each brings its own chunks, in the order of ranks, and all
    call this with the same labels, with their `shares`, equal generators and chunks that are padded alike: afterwards
    all hold the same gradients, those of one process with all the chunks.

    Args:
        retriever, objective: the modules whose gradients are taken; what stood in `.grad` is dropped.
        chunks: the parts of the batch that this process encodes, at least one; a single one keeps its activations.
        labels: the labels of the whole batch: all chunks of all processes, one after the other.
        negatives, warm_up, generator: see `Objective`.
        seeds: the seeds of dropout and other draws of the encoders, one per chunk.
        autocast: makes the context to encode in; losses are computed in float32 outside.

    Returns:
        The terms of the objective, detached.
    """
    for module in (retriever, objective):
        module.zero_grad(set_to_none=True)

    def encode(i: int) -> _Encoded:
        torch.manual_seed(seeds[i])
        with autocast():
            return _Encoded(*retriever.encode(chunks[i]))

    keep = len(chunks) == 1
    with torch.set_grad_enabled(keep):
        parts = [encode(i) for i in range(len(chunks))]
    leaves = [{name: _leaf(tensor) for name, tensor in tensors_of(part).items()} for part in parts]
    whole = with_tensors(parts[0], _across_processes(_joined(leaves), labels.shares))
    output = retriever.output(whole.text, whole.video, whole.registers)
    terms = objective(output, labels, negatives=negatives, warm_up=warm_up, generator=generator)
    terms["total"].backward()
    # Every process computed the same losses: what they gave to parameters directly is to count once in the sum below.
    if process_count() > 1:
        for gradient in _gradients(retriever, objective):
            gradient.div_(process_count())
    for i, own in enumerate(leaves):
        outputs = tensors_of(parts[i] if keep else encode(i))
        reached = {name: t.grad for name, t in own.items() if t.grad is not None and outputs[name].requires_grad}
        torch.autograd.backward(
            [outputs[name] for name in reached], [g.to(outputs[name].dtype) for name, g in reached.items()]
        )
    sum_over_processes(_gradients(retriever, objective))
    return {name: value.detach() for name, value in terms.items()}


def _leaf(tensor: Tensor) -> Tensor:
    """A leaf that receives the gradient, in float32 at least: losses exponentiate. A mask is returned as it is."""
    if not tensor.is_floating_point():
        return tensor
    return tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32)).requires_grad_()


def _joined(parts: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Concatenates the tensors of parts; frames and words are padded to the longest part."""
    if len(parts) == 1:
        return parts[0]
    return {name: cat_padded([part[name] for part in parts]) for name in parts[0]}


def _across_processes(own: dict[str, Tensor], shares: Sequence[tuple[int, int]] | None) -> dict[str, Tensor]:
    """The encodings of all processes in the order of ranks; only the own ones lead back to the leaves.

    The gradient with respect to the own rows is complete without any exchange, since each process computes all losses.
    """
    if process_count() == 1:
        return own
    if shares is None:
        raise InputError("backward_in_parts: several processes need Labels.shares, the videos and queries of each")
    videos, queries = zip(*shares, strict=True)

    def gathered(name: str, tensor: Tensor) -> Tensor:
        """Rows of every process, the own ones with their graph."""
        rows = queries if name.startswith("text") else videos
        content = tensor.to(torch.uint8) if tensor.dtype == torch.bool else tensor.detach()
        padded = F.pad(content, [0, 0] * (content.ndim - 1) + [0, max(rows) - len(content)]).contiguous()
        parts = [torch.empty_like(padded) for _ in rows]
        dist.all_gather(parts, padded)
        parts = [part[:count].to(tensor.dtype) for part, count in zip(parts, rows, strict=True)]
        parts[dist.get_rank()] = tensor
        return torch.cat(parts)

    return {name: gathered(name, tensor) for name, tensor in own.items()}


def _gradients(*modules: nn.Module) -> list[Tensor]:
    return [p.grad for module in modules for p in module.parameters() if p.grad is not None]
