"""The gradients of a batch that is encoded in parts: chunk by chunk, and by several processes.

The losses compare every query with every video of the batch, encoders look at one video or query at a time. So the
embeddings of all parts come first; then the losses, and their gradient with respect to the embeddings; then every part
goes backwards from that gradient, encoded a second time where its activations were not kept (GradCache: Gao et al.,
"Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", 2021). Neither chunks nor processes change
the result: the negatives are those of the whole batch.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from prvr.errors import InputError
from prvr.losses import Negatives
from prvr.models import PixelBatch
from prvr.objective import Objective
from prvr.text import TextEmbedding, Texts
from prvr.training.processes import process_count, sum_over_processes
from prvr.types import Batch, Labels, RetrieverOutput, VideoEmbedding
from regdiff import Registers

__all__ = ["Encoded", "backward_in_parts"]

Context = Callable[[], contextlib.AbstractContextManager]


@runtime_checkable
class EncodesInParts(Protocol):
    """Every retriever: it encodes a batch, and makes what the losses look at from encodings of several."""

    def encode(self, batch: Any, /) -> tuple[Any, VideoEmbedding, Any]:
        """Queries, videos and registers of a batch."""
        ...

    def output(self, text: Any, video: VideoEmbedding, registers: Any, /) -> RetrieverOutput:
        """The output of the model, which the losses read, from encodings of a whole batch."""
        ...

    def zero_grad(self, set_to_none: bool = True) -> None:
        """The method of `torch.nn.Module`."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]:
        """The method of `torch.nn.Module`."""
        ...


_OF_QUERIES = ("text", "words", "word_weights", "word_mask")
"""Tensors with one row per query; all others have one per video."""
_AS_LONG_AS = {"frames": "frames", "frame_mask": "frames"} | dict.fromkeys(_OF_QUERIES[1:], "words")
"""Tensors that are padded along their second axis, and the axis that they share."""


@dataclass(frozen=True)
class Encoded:
    """Encoded queries and videos: everything that the losses read."""

    text: Texts
    video: VideoEmbedding
    registers: Registers | None = None

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that losses differentiate, by name."""
        prior = None if self.registers is None else self.registers.prior
        with_words = self.text if isinstance(self.text, TextEmbedding) else None
        named = {
            "text": self.text if isinstance(self.text, Tensor) else self.text.sentence,
            "words": None if with_words is None else with_words.words,
            "word_weights": None if with_words is None else with_words.weights,
            "clips": self.video.clips,
            "frames": self.video.frames,
            "tokens": None if self.registers is None else self.registers.tokens,
            "condition": None if self.registers is None else self.registers.condition,
            "start": None if self.registers is None else self.registers.start,
            "mean": None if prior is None else prior.mean,
            "logvar": None if prior is None else prior.logvar,
        }
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def masks(self) -> dict[str, Tensor]:
        """The masks of frames and words."""
        word_mask = self.text.mask if isinstance(self.text, TextEmbedding) else None
        named = {"frame_mask": self.video.frame_mask, "word_mask": word_mask}
        return {name: mask for name, mask in named.items() if mask is not None}

    def with_tensors(self, tensors: dict[str, Tensor]) -> "Encoded":
        """The same structure with other tensors and masks."""
        text = tensors["text"]
        if isinstance(self.text, TextEmbedding):
            text = TextEmbedding(text, tensors["words"], tensors["word_mask"], tensors["word_weights"])
        registers = self.registers
        if registers is not None:
            prior = registers.prior
            if prior is not None:
                prior = replace(prior, mean=tensors["mean"], logvar=tensors["logvar"])
            registers = Registers(tensors["tokens"], tensors["condition"], prior, tensors.get("start"))
        video = VideoEmbedding(
            tensors.get("clips"), tensors.get("frames"), tensors.get("frame_mask"), tensors.get("tokens")
        )
        return Encoded(text, video, registers)


def backward_in_parts(
    retriever: EncodesInParts,
    objective: Objective,
    chunks: Sequence[Batch | PixelBatch],
    labels: Labels,
    *,
    negatives: Negatives = "random",
    generator: torch.Generator | None = None,
    seeds: Sequence[int] | None = None,
    autocast: Context = contextlib.nullcontext,
) -> dict[str, Tensor]:
    """The loss terms of a whole batch; its gradients become the `.grad` of retriever and objective.

    Where torch.distributed runs with several processes, each brings its own chunks, in the order of ranks, and all
    call this with the same labels and equal generators: afterwards all hold the same gradients, those of one process
    with all the chunks.

    Args:
        retriever, objective: of which the gradients are; what stood in `.grad` is dropped.
        chunks: the parts of the batch that this process encodes, at least one; a single one keeps its activations.
        labels: of the whole batch: all chunks of all processes, one after the other.
        negatives, generator: see `Objective`.
        seeds: of dropout and other draws of the encoders, one per chunk; None leaves the global generators as they
            are, which several chunks cannot.
        autocast: makes the context to encode in; losses are computed in float32 outside.

    Returns:
        The terms of the objective, detached.

    Raises:
        ValueError: no chunk, or several without seeds.
    """
    if not chunks or (len(chunks) > 1 and seeds is None) or (seeds is not None and len(seeds) != len(chunks)):
        given = "none" if seeds is None else len(seeds)
        raise InputError(f"chunks, seeds: got {len(chunks)} and {given}, expected at least one chunk, a seed for each")
    for module in (retriever, objective):
        module.zero_grad(set_to_none=True)

    def encode(i: int) -> Encoded:
        if seeds is not None:
            torch.manual_seed(seeds[i])
        with autocast():
            return Encoded(*retriever.encode(chunks[i]))

    keep = len(chunks) == 1
    with torch.set_grad_enabled(keep):
        parts = [encode(i) for i in range(len(chunks))]
    leaves = [{name: _leaf(t) for name, t in part.tensors().items()} for part in parts]
    whole = _across_processes(
        _joined([part.with_tensors(own | part.masks()) for part, own in zip(parts, leaves, strict=True)])
    )
    terms = objective(
        retriever.output(whole.text, whole.video, whole.registers), labels, negatives=negatives, generator=generator
    )
    terms["total"].backward()
    # Every process computed the same losses: what they gave to parameters directly is to count once in the sum below.
    _divide(_gradients(retriever, objective), process_count())
    for i, own in enumerate(leaves):
        outputs = (parts[i] if keep else encode(i)).tensors()
        reached = {name: t.grad for name, t in own.items() if t.grad is not None and outputs[name].requires_grad}
        torch.autograd.backward(
            [outputs[name] for name in reached], [g.to(outputs[name].dtype) for name, g in reached.items()]
        )
    sum_over_processes(_gradients(retriever, objective))
    return {name: value.detach() for name, value in terms.items()}


def _leaf(tensor: Tensor) -> Tensor:
    """A leaf that receives the gradient, in float32 at least: losses exponentiate."""
    return tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32)).requires_grad_()


def _joined(parts: Sequence[Encoded]) -> Encoded:
    """Concatenates parts; frames and words are padded to the longest part."""
    if len(parts) == 1:
        return parts[0]
    named = [part.tensors() | part.masks() for part in parts]
    longest = {kind: max(own[kind].shape[1] for own in named) for kind in ("frames", "words") if kind in named[0]}
    return parts[0].with_tensors(
        {name: torch.cat([_lengthened(name, own[name], longest) for own in named]) for name in named[0]}
    )


def _lengthened(name: str, tensor: Tensor, longest: dict[str, int]) -> Tensor:
    """Pads with zeros after the last frame or word, up to the longest."""
    extra = longest[_AS_LONG_AS[name]] - tensor.shape[1] if name in _AS_LONG_AS else 0
    return F.pad(tensor, [0, 0] * (tensor.ndim - 2) + [0, extra]) if extra else tensor


def _across_processes(own: Encoded) -> Encoded:
    """The encodings of all processes in the order of ranks; only the own ones lead back to the leaves.

    The gradient with respect to the own rows is complete without any exchange, since each process computes all losses.
    """
    if process_count() == 1:
        return own
    tensors, masks = own.tensors(), own.masks()
    kinds = [kind for kind in ("frames", "words") if kind in tensors]
    size = torch.tensor([len(own.text), len(own.video), *(tensors[k].shape[1] for k in kinds)], device=own.text.device)
    sizes = [torch.empty_like(size) for _ in range(process_count())]
    dist.all_gather(sizes, size)
    table = torch.stack(sizes).tolist()
    longest = {kind: max(row[2 + i] for row in table) for i, kind in enumerate(kinds)}

    def gather(tensor: Tensor, rows: list[int]) -> Tensor:
        """Rows of every process, the own ones with their graph."""
        padded = F.pad(tensor.detach(), [0, 0] * (tensor.ndim - 1) + [0, max(rows) - len(tensor)]).contiguous()
        parts = [torch.empty_like(padded) for _ in rows]
        dist.all_gather(parts, padded)
        parts = [part[:count] for part, count in zip(parts, rows, strict=True)]
        parts[dist.get_rank()] = tensor
        return torch.cat(parts)

    def gathered(name: str, tensor: Tensor) -> Tensor:
        return gather(_lengthened(name, tensor, longest), [row[0 if name in _OF_QUERIES else 1] for row in table])

    return own.with_tensors(
        {name: gathered(name, tensor) for name, tensor in tensors.items()}
        | {name: gathered(name, mask.to(torch.uint8)).bool() for name, mask in masks.items()}
    )


def _gradients(*modules: EncodesInParts | nn.Module) -> list[Tensor]:
    return [p.grad for module in modules for p in module.parameters() if p.grad is not None]


def _divide(gradients: list[Tensor], by: int) -> None:
    if by > 1 and gradients:
        torch._foreach_div_(gradients, by)
