"""What the generator reads of a first stage: one vector per query, several per video, and which retriever it was."""

import hashlib
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from prvr.errors import InputError
from prvr.stages.diffusion.config import RerankerConfig
from prvr.stages.scores import EncodedSplit
from prvr.text import sentences
from prvr.types import VideoEmbedding


@dataclass(frozen=True)
class RerankerInputs:
    """Embeddings of a split as a `CandidateReranker` takes them.

    Args:
        text: `(q, d)`.
        frames: `(v, f, d)`.
        mask: `(v, f)` True = valid.
    """

    text: Float[Tensor, "q d"]
    frames: Float[Tensor, "v f d"]
    mask: Bool[Tensor, "v f"]


def reranker_inputs(encoded: EncodedSplit, config: RerankerConfig) -> RerankerInputs:
    """The embeddings of a split that `config.tokens` and `config.unit_length` ask for.

    Raises:
        ValueError: the retriever has no such embeddings, or they are of another width than the re-ranker's.
    """
    text, video = sentences(encoded.text), VideoEmbedding.cat(encoded.videos)
    wanted = {"frames": ("frames",), "clips": ("clips",), "both": ("clips", "frames")}[config.tokens]
    parts, masks = [], []
    for name in wanted:
        rows: Tensor | None = getattr(video, name)
        if rows is None:
            raise InputError(
                f"reranker.tokens={config.tokens!r}: this retriever has no {name} of videos; use "
                f"{'clips' if name == 'frames' else 'frames'}"
            )
        mask = video.frame_mask if name == "frames" else None
        masks.append(torch.ones(rows.shape[:2], dtype=torch.bool, device=rows.device) if mask is None else mask)
        parts.append(rows)
    # Copies: what was encoded in inference mode could not be learned from.
    text, frames, mask = text.clone(), torch.cat(parts, 1), torch.cat(masks, 1)
    for name, x in (("queries", text), ("videos", frames)):
        if x.shape[-1] != config.width:
            raise InputError(
                f"embeddings of {name} have width {x.shape[-1]}, this re-ranker was built for {config.width}: use the "
                "retriever it was trained on, or train one for this"
            )
    if config.unit_length:
        text, frames = F.normalize(text, dim=-1), F.normalize(frames, dim=-1)
    return RerankerInputs(text, frames, mask)


def fingerprint(retriever: nn.Module) -> str:
    """A name for a retriever's weights, for `RerankerConfig.trained_on`: equal where they are, wherever they lie.

    Examples:
        >>> one, other = nn.Linear(2, 3), nn.Linear(2, 3)
        >>> fingerprint(one) == fingerprint(one) != fingerprint(other)
        True
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(retriever.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return f"{type(retriever).__name__} {digest.hexdigest()[:16]}"
