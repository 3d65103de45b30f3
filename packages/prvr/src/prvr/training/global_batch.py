"""One step on a batch that is encoded in parts: chunk after chunk, process beside process.

The losses compare every query with every video of the batch, encoders look at one video or query at a time. So the
embeddings of all parts come first; then the losses, and their gradient with respect to the embeddings; then every part
goes backwards from that gradient, encoded a second time where its activations were not kept (GradCache: Gao et al.,
"Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", 2021). Neither chunks nor processes change
the result: the negatives are those of the whole batch.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from prvr.losses import Negatives
from prvr.models import Retriever
from prvr.objective import Objective
from prvr.types import Batch, Labels, VideoEmbedding
from regdiff import Registers

__all__ = ["Encoded", "backward_in_parts"]

Context = Callable[[], contextlib.AbstractContextManager]


@dataclass(frozen=True)
class Encoded:
    """What a retriever makes of some queries and videos: all that the losses look at."""

    text: Tensor
    video: VideoEmbedding
    registers: Registers | None = None

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that losses differentiate, by name: one row per query in "text", one per video in the rest."""
        prior = None if self.registers is None else self.registers.prior
        named = {
            "text": self.text,
            "clips": self.video.clips,
            "frames": self.video.frames,
            "tokens": None if self.registers is None else self.registers.tokens,
            "condition": None if self.registers is None else self.registers.condition,
            "start": None if self.registers is None else self.registers.start,
            "mean": None if prior is None else prior.mean,
            "logvar": None if prior is None else prior.logvar,
        }
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def with_tensors(self, tensors: dict[str, Tensor], frame_mask: Tensor | None) -> "Encoded":
        """The same structure with other tensors."""
        registers = self.registers
        if registers is not None:
            prior = registers.prior
            if prior is not None:
                prior = replace(prior, mean=tensors["mean"], logvar=tensors["logvar"])
            registers = Registers(tensors["tokens"], tensors["condition"], prior, tensors.get("start"))
        video = VideoEmbedding(tensors.get("clips"), tensors.get("frames"), frame_mask, tensors.get("tokens"))
        return Encoded(tensors["text"], video, registers)


def backward_in_parts(
    retriever: Retriever,
    objective: Objective,
    chunks: Sequence[Batch],
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
        raise ValueError(f"chunks, seeds: got {len(chunks)} and {given}, expected at least one chunk, a seed for each")
    for module in (retriever, objective):
        module.zero_grad(set_to_none=True)

    def encode(i: int) -> Encoded:
        if seeds is not None:
            torch.manual_seed(seeds[i])
        with autocast():
            return _encode(retriever, chunks[i])

    keep = len(chunks) == 1
    with torch.set_grad_enabled(keep):
        parts = [encode(i) for i in range(len(chunks))]
    leaves = [{name: _leaf(t) for name, t in part.tensors().items()} for part in parts]
    whole = _across_processes(
        _joined([part.with_tensors(own, part.video.frame_mask) for part, own in zip(parts, leaves, strict=True)])
    )
    terms = objective(
        retriever.output(whole.text, whole.video, whole.registers), labels, negatives=negatives, generator=generator
    )
    terms["total"].backward()
    # Every process computed the same losses: what they gave to parameters directly is to count once in the sum below.
    _divide(_gradients(retriever, objective), _processes())
    for i, own in enumerate(leaves):
        outputs = (parts[i] if keep else encode(i)).tensors()
        reached = {name: t.grad for name, t in own.items() if t.grad is not None and outputs[name].requires_grad}
        torch.autograd.backward(
            [outputs[name] for name in reached], [g.to(outputs[name].dtype) for name, g in reached.items()]
        )
    _sum_over_processes(_gradients(retriever, objective))
    return {name: value.detach() for name, value in terms.items()}


def _encode(retriever: Retriever, batch: Batch) -> Encoded:
    text = retriever.encode_text(batch.words, batch.word_mask)
    return Encoded(text, *retriever._encode_video(batch.clips, batch.frames, batch.frame_mask))


def _leaf(tensor: Tensor) -> Tensor:
    """A place for the gradient, in float32 at least: losses exponentiate."""
    return tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32)).requires_grad_()


def _joined(parts: Sequence[Encoded]) -> Encoded:
    """One after the other; frames are padded to the longest part."""
    if len(parts) == 1:
        return parts[0]
    video = VideoEmbedding.cat([part.video for part in parts])
    tensors = [part.tensors() for part in parts]
    joined = {name: torch.cat([own[name] for own in tensors]) for name in tensors[0] if name != "frames"}
    if video.frames is not None:
        joined["frames"] = video.frames
    return parts[0].with_tensors(joined, video.frame_mask)


def _processes() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _across_processes(own: Encoded) -> Encoded:
    """The encodings of all processes in the order of ranks; only the own ones lead back to the leaves.

    The gradient with respect to the own rows is complete without any exchange, since each process computes all losses.
    """
    if _processes() == 1:
        return own
    tensors, mask = own.tensors(), own.video.frame_mask
    frames = 0 if own.video.frames is None else own.video.frames.shape[1]
    size = torch.tensor([len(own.text), len(own.video), frames], device=own.text.device)
    sizes = [torch.empty_like(size) for _ in range(_processes())]
    dist.all_gather(sizes, size)
    table = torch.stack(sizes).tolist()
    longest = max(row[2] for row in table)

    def gather(tensor: Tensor, rows: list[int]) -> Tensor:
        """Rows of every process, the own ones with their graph."""
        padded = F.pad(tensor.detach(), [0, 0] * (tensor.ndim - 1) + [0, max(rows) - len(tensor)]).contiguous()
        parts = [torch.empty_like(padded) for _ in rows]
        dist.all_gather(parts, padded)
        parts = [part[:count] for part, count in zip(parts, rows, strict=True)]
        parts[dist.get_rank()] = tensor
        return torch.cat(parts)

    gathered = {}
    for name, tensor in tensors.items():
        if name == "frames":
            tensor = F.pad(tensor, (0, 0, 0, longest - frames))
        gathered[name] = gather(tensor, [row[0 if name == "text" else 1] for row in table])
    if mask is not None:
        mask = F.pad(mask.to(torch.uint8), (0, longest - mask.shape[1]))
        mask = gather(mask, [row[1] for row in table]).bool()
    return own.with_tensors(gathered, mask)


def _gradients(*modules: nn.Module) -> list[Tensor]:
    return [p.grad for module in modules for p in module.parameters() if p.grad is not None]


def _divide(gradients: list[Tensor], by: int) -> None:
    if by > 1 and gradients:
        torch._foreach_div_(gradients, by)


def _sum_over_processes(gradients: list[Tensor]) -> None:
    """Adds up gradients of all processes, in one exchange per dtype."""
    if _processes() == 1:
        return
    for dtype in dict.fromkeys(g.dtype for g in gradients):
        same = [g for g in gradients if g.dtype == dtype]
        flat = torch.cat([g.reshape(-1) for g in same])
        dist.all_reduce(flat)
        for gradient, total in zip(same, flat.split([g.numel() for g in same]), strict=True):
            gradient.copy_(total.view_as(gradient))
