"""A split through a model, once: what evaluation, moments and re-ranking begin with."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from prvr.data.packed import PackedSplit
from prvr.text import Texts, cat_texts
from prvr.types import Scores, VideoEmbedding

__all__ = ["EncodedSplit", "Progress", "TextVideoModel", "device_of", "encode_split", "evaluation_mode"]

Progress = Callable[[str, int, int], None]
"""Called with (what is being done, steps done, steps in all)."""


@runtime_checkable
class TextVideoModel(Protocol):
    """What can be evaluated: a module that encodes texts and videos and scores them (`prvr.Retriever` is one)."""

    def encode_text(self, words: Tensor, word_mask: Tensor, /) -> Texts:
        """`(q, w, e)` words and `(q, w)` mask to `(q, d)`, or to embeddings that keep the words."""
        ...

    def encode_video(self, clips: Tensor, frames: Tensor, frame_mask: Tensor, /) -> VideoEmbedding:
        """`(v, c, f)` clips, `(v, l, f)` frames and `(v, l)` mask to embeddings."""
        ...

    def score(self, text: Any, video: VideoEmbedding, /) -> Scores:
        """Similarity of every text, as `encode_text` gave them, with every video."""
        ...

    def modules(self) -> Iterator[nn.Module]:
        """As of any `torch.nn.Module`."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]:
        """As of any `torch.nn.Module`."""
        ...

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """As of any `torch.nn.Module`."""
        ...

    def eval(self) -> Any:
        """As of any `torch.nn.Module`."""
        ...


@dataclass(frozen=True)
class EncodedSplit:
    """Embeddings of a split: all queries, and the gallery in parts, in order, as it was encoded."""

    text: Texts
    videos: tuple[VideoEmbedding, ...]

    @property
    def slices(self) -> list[slice]:
        """Which videos each part holds."""
        stops = list(accumulate(len(part) for part in self.videos))
        return [slice(start, stop) for start, stop in pairwise([0, *stops])]


def encode_split(
    retriever: TextVideoModel,
    split: PackedSplit,
    *,
    device: torch.device | str | None = None,
    video_batch: int = 64,
    query_batch: int = 256,
    seed: int = 0,
    progress: Progress | None = None,
) -> EncodedSplit:
    """Encodes every video and every query of a split once.

    Runs in evaluation mode without gradients; afterwards the modes of all modules and the random state are as before.

    Args:
        retriever: the model; moved to `device`.
        split: a packed split.
        device: where to compute and keep the embeddings; default: where the model's parameters are.
        video_batch: how many videos are encoded at a time.
        query_batch: how many queries are encoded at a time.
        seed: of whatever the model samples (registers that start from a prior): the same seed, the same embeddings.
        progress: called with ("videos" or "queries", done, total).
    """
    where = device_of(retriever, device)
    with evaluation_mode(retriever, where, seed):
        videos, texts, done = [], [], 0
        for batch in split.video_batches(video_batch):
            clips, frames, mask = (tensor.to(where) for tensor in batch[:3])
            videos.append(retriever.encode_video(clips, frames, mask))
            done += len(batch.indices)
            if progress is not None:
                progress("videos", done, len(split.video_ids))
        done = 0
        for batch in split.query_batches(query_batch):
            texts.append(retriever.encode_text(batch.words.to(where), batch.word_mask.to(where)))
            done += len(batch.indices)
            if progress is not None:
                progress("queries", done, len(split.query_ids))
        return EncodedSplit(cat_texts(texts), tuple(videos))


def device_of(retriever: TextVideoModel, device: torch.device | str | None) -> torch.device:
    """The device that was asked for, else that of the model's parameters."""
    if device is not None:
        return torch.device(device)
    first = next(retriever.parameters(), None)
    return torch.device("cpu") if first is None else first.device


@contextmanager
def evaluation_mode(retriever: TextVideoModel, device: torch.device, seed: int) -> Iterator[None]:
    """Evaluation mode, no gradients, seeded; modes of all modules and the random state are restored."""
    modes = [(module, module.training) for module in retriever.modules()]
    retriever.to(device)
    retriever.eval()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.inference_mode():
            torch.manual_seed(seed)
            yield
    finally:
        for module, training in modes:
            module.training = training
