"""Frozen records that the parts exchange, and the protocols of exchangeable parts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from prvr.errors import InputError

if TYPE_CHECKING:
    from regdiff.registers import Registers  # brings the library of the Hugging Face hub, which takes its time

Direction = Literal["t2v", "v2t"]
"""t2v: a text asks and videos are ranked; v2t: a video asks and texts are ranked."""


@dataclass(frozen=True)
class JointRows:
    """Rows of a video in the joint space of its features and sentences.

    Args:
        beta: rows are moments, whose segments share their features that far (`prvr.published.tf_prvr`); None: rows are
            frames and means of them (`prvr.data.sampling.growing_means`).
    """

    beta: float | None = None


MEANS = JointRows()
"""Frames and means of them."""
Untrained = Literal["zero-shot", "training-free"]
"""The name of a retriever without parameters."""
UNTRAINED: dict[Untrained, JointRows] = {"zero-shot": MEANS, "training-free": JointRows(0.7)}
"""What each of these compares sentences with."""


def tensors_of(record: Any, prefix: str = "") -> dict[str, Tensor]:
    """The tensors of a record and of the records inside it, by dotted name.

    Args:
        record: a dataclass.
        prefix: put before each name.

    Examples:
        >>> list(tensors_of(VideoEmbedding(clips=torch.ones(1, 2, 3))))
        ['clips']
    """
    tensors: dict[str, Tensor] = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Tensor):
            tensors[prefix + field.name] = value
        elif is_dataclass(value):
            tensors |= tensors_of(value, f"{prefix}{field.name}.")
    return tensors


def with_tensors(record: Any, tensors: Mapping[str, Tensor], prefix: str = "") -> Any:
    """Copy of a record in which tensors are replaced, by their names in `tensors_of`."""
    changes = {}
    for field in fields(record):
        name, value = prefix + field.name, getattr(record, field.name)
        if name in tensors:
            changes[field.name] = tensors[name]
        elif is_dataclass(value):
            changes[field.name] = with_tensors(value, tensors, f"{name}.")
    return replace(record, **changes)


def pad_to(tensor: Shaped[Tensor, "b l ..."], length: int) -> Shaped[Tensor, "b m ..."]:
    """A tensor whose second axis is padded with zeros to at least `length`."""
    extra = length - tensor.shape[1]
    return F.pad(tensor, [0, 0] * (tensor.ndim - 2) + [0, extra]) if extra > 0 else tensor


def cat_padded(tensors: Sequence[Shaped[Tensor, "_ _ ..."]]) -> Shaped[Tensor, "b l ..."]:
    """Tensors joined along the first axis, after their second one is padded with zeros to the longest."""
    longest = max(tensor.shape[1] for tensor in tensors)
    return torch.cat([pad_to(tensor, longest) for tensor in tensors])


def to_device(record: Any, device: torch.device | str | None, dtype: torch.dtype | None) -> Any:
    """Copy of a record with its tensors on `device`, floating tensors in `dtype`."""
    # A copy to the host is waited for: else its numbers could be read before they have arrived.
    asynchronous = device is not None and torch.device(device).type != "cpu"

    def copied(tensor: Tensor) -> Tensor:
        return tensor.to(device, dtype if tensor.is_floating_point() else None, non_blocking=asynchronous)

    return with_tensors(record, {name: copied(tensor) for name, tensor in tensors_of(record).items()})


def _pinned(record: Any) -> Any:
    """Copy of a record with its tensors in page-locked memory."""
    return with_tensors(record, {name: tensor.pin_memory() for name, tensor in tensors_of(record).items()})


def expect_mask(name: str, mask: Tensor, ids: Sequence[str] = ()) -> None:
    """Refuses a mask that is not boolean, or (on the host; elsewhere this would mean waiting) has a row without True.

    Args:
        name: of the mask, for messages.
        mask: two axes.
        ids: of its rows, for messages.

    Raises:
        InputError: the message names the row.
    """
    if mask.dtype != torch.bool:
        raise InputError(f"{name} is {mask.dtype}, expected torch.bool (True = valid): use {name} > 0")
    if mask.device.type == "cpu" and not bool(mask.any(1).all()):
        row = int(mask.any(1).int().argmin())
        identity = f" ({ids[row]!r})" if len(ids) > row else ""
        raise InputError(f"{name}: row {row}{identity} has no valid entry: remove it")


@dataclass(frozen=True)
class Labels:
    """Which videos answer which queries: the part of a batch that the losses read.

    Args:
        videos: number of videos v.
        query_to_video: `(q,)` index of the video each query was written for.
        relevant: `(q, v)` boolean, all videos that answer a query; default: the one that it was written for.
        teacher: `(q, v)` scores of the teacher, see `prvr.Teacher.scores`.
        teacher_frames: `(q, l)` the teacher's cosines of queries with the frames of their videos, -inf past their ends.
        most_queries: the most queries of any video, if the host knows it; None: it has to wait for a device.
        words, word_mask: `(q, w, e)` and `(q, w)`, as of a batch.
        shares: where several processes train, the numbers of videos and queries that each of them encodes.
        video_ids, query_ids, captions: ids of the videos and the queries, and texts of the queries; empty if unknown.
        moments: `(q, 3)` start, end and length of the video of each query, in seconds; NaN where unknown.

    Examples:
        >>> import torch
        >>> Labels(2, torch.tensor([0, 0, 1])).positives.tolist()
        [[True, False], [True, False], [False, True]]
    """

    videos: int
    query_to_video: Int[Tensor, " q"]
    relevant: Bool[Tensor, "q v"] | None = None
    teacher: Float[Tensor, "q v"] | None = None
    teacher_frames: Float[Tensor, "q l"] | None = None
    most_queries: int | None = None
    words: Float[Tensor, "q w e"] | None = None
    word_mask: Bool[Tensor, "q w"] | None = None
    shares: tuple[tuple[int, int], ...] | None = None
    video_ids: Sequence[str] = ()
    query_ids: Sequence[str] = ()
    captions: Sequence[str] = ()
    moments: Float[Tensor, "q 3"] | None = None

    @cached_property
    def ground_truth(self) -> Bool[Tensor, "q v"]:
        """`(q, v)` boolean: the one video each query was written for."""
        return self.query_to_video[:, None] == torch.arange(self.videos, device=self.query_to_video.device)

    @cached_property
    def positives(self) -> Bool[Tensor, "q v"]:
        """`(q, v)` boolean: every video that answers the query, the one it was written for included."""
        return self.ground_truth if self.relevant is None else self.relevant | self.ground_truth

    def to(self, device: torch.device | str | None = None) -> "Labels":
        """Copy on `device`."""
        return to_device(self, device, None)

    def pin_memory(self) -> "Labels":
        """Copy in page-locked memory, which a GPU reads asynchronously."""
        return _pinned(self)


@dataclass(frozen=True)
class Counts:
    """Numbers of valid rows of a batch, kept on the host, because reading them from a device would mean waiting for it.

    Args:
        frames: number of valid frames of each video.
        words: number of valid words of each query.
        queries: number of queries of each video; None if queries are not in the order of their videos.
    """

    frames: tuple[int, ...]
    words: tuple[int, ...]
    queries: tuple[int, ...] | None

    @classmethod
    def of(
        cls, frame_mask: Bool[Tensor, "v l"], word_mask: Bool[Tensor, "q w"], query_to_video: Int[Tensor, " q"]
    ) -> "Counts":
        """Counts the rows of tensors on the host.

        Examples:
            >>> Counts.of(torch.tensor([[True, True], [True, False]]), torch.ones(3, 4, dtype=torch.bool),
            ...     torch.tensor([0, 1, 1]))
            Counts(frames=(2, 1), words=(4, 4, 4), queries=(1, 2))
        """
        ordered = not bool((query_to_video.diff() < 0).any())
        queries = tuple(torch.bincount(query_to_video, minlength=len(frame_mask)).tolist()) if ordered else None
        return cls(tuple(frame_mask.sum(1).tolist()), tuple(word_mask.sum(1).tolist()), queries)


@dataclass(frozen=True)
class Batch:
    """Videos with all the captions that go with them.

    Args:
        clips: `(v, c, f)` mean-pooled clip features, rows of unit length.
        frames: `(v, l, f)` frame features; rows past a video's end are arbitrary, `frame_mask` says which count.
        frame_mask: `(v, l)` boolean, True = valid; every video has at least one valid frame.
        words: `(q, w, e)` word features.
        word_mask: `(q, w)` boolean, True = valid; every query has at least one valid word.
        query_to_video: `(q,)` index of the video each query was written for.
        relevant: `(q, v)` boolean, all videos that answer a query; default: the one that it was written for.
        video_ids, query_ids: ids, for messages and losses.
        captions, moments: see `Labels`.
        stream: `(v, s, g)` rows of a second stream, see `prvr.config.StreamConfig`.
        stream_mask: `(v, s)` boolean, True = valid; a video may have no valid row.
        teacher: `(q, v)` scores of the teacher, see `Labels`.
        teacher_frames: `(q, l)` its cosines with frames; those past the end of a video are arbitrary.
        counts: numbers of valid rows of a batch on a device; `to` counts them before it moves a batch. They must be
            replaced together with masks and `query_to_video`.

    Raises:
        ValueError: shapes disagree, a mask is not boolean, or a query points outside the batch.

    Examples:
        >>> import torch
        >>> batch = Batch(clips=torch.ones(2, 4, 3), frames=torch.ones(2, 6, 3),
        ...     frame_mask=torch.ones(2, 6, dtype=torch.bool), words=torch.ones(3, 5, 7),
        ...     word_mask=torch.ones(3, 5, dtype=torch.bool), query_to_video=torch.tensor([0, 0, 1]))
        >>> batch.labels.positives.tolist()
        [[True, False], [True, False], [False, True]]
    """

    clips: Float[Tensor, "v c f"]
    frames: Float[Tensor, "v l f"]
    frame_mask: Bool[Tensor, "v l"]
    words: Float[Tensor, "q w e"]
    word_mask: Bool[Tensor, "q w"]
    query_to_video: Int[Tensor, " q"]
    relevant: Bool[Tensor, "q v"] | None = None
    video_ids: Sequence[str] = ()
    query_ids: Sequence[str] = ()
    teacher: Float[Tensor, "q v"] | None = None
    teacher_frames: Float[Tensor, "q l"] | None = None
    counts: Counts | None = None
    captions: Sequence[str] = ()
    moments: Float[Tensor, "q 3"] | None = None
    stream: Float[Tensor, "v s g"] | None = None
    stream_mask: Bool[Tensor, "v s"] | None = None

    def __post_init__(self) -> None:
        videos, queries = len(self.clips), len(self.words)
        frames, words = self.frame_mask.shape[-1], self.word_mask.shape[-1]
        shapes = {
            "clips": (videos, *self.clips.shape[1:2], self.frames.shape[-1]),
            "frames": (videos, frames, self.frames.shape[-1]),
            "frame_mask": (videos, frames),
            "words": (queries, words, self.words.shape[-1]),
            "word_mask": (queries, words),
            "query_to_video": (queries,),
            "relevant": (queries, videos),
            "teacher": (queries, videos),
            "teacher_frames": (queries, frames),
            "moments": (queries, 3),
        }
        if self.stream is not None:
            shapes["stream_mask"] = videos, self.stream.shape[1]
        for name, shape in shapes.items():
            tensor: Tensor | None = getattr(self, name)
            if tensor is not None and tensor.shape != shape:
                raise InputError(f"Batch.{name} has shape {tuple(tensor.shape)}, expected {shape}")
        if videos == 0 or queries == 0:
            raise InputError(f"an empty batch: {videos} videos, {queries} queries; at least one of each is needed")
        # Values are checked on the host only: on a GPU this would stall every step, and batches are made on the host.
        expect_mask("Batch.frame_mask", self.frame_mask, self.video_ids)
        expect_mask("Batch.word_mask", self.word_mask, self.query_ids)
        owner = self.query_to_video
        if owner.is_floating_point() or owner.dtype == torch.bool:
            raise InputError(f"Batch.query_to_video is {owner.dtype}, expected an integer index")
        if owner.device.type == "cpu" and bool((owner < 0).any() | (owner >= videos).any()):
            raise InputError(f"Batch.query_to_video must lie in [0, {videos}), got {owner.min()}..{owner.max()}")
        if self.relevant is not None and self.relevant.dtype != torch.bool:
            raise InputError(f"Batch.relevant is {self.relevant.dtype}, expected torch.bool")

    @property
    def labels(self) -> Labels:
        """Which video answers which query."""
        most = None if self.counts is None or self.counts.queries is None else max(self.counts.queries)
        frames = self.teacher_frames
        if frames is not None:
            frames = frames.masked_fill(~self.frame_mask[self.query_to_video], -torch.inf)
        owner, relevant, words = self.query_to_video, self.relevant, (self.words, self.word_mask)
        same: dict[str, Any] = {name: getattr(self, name) for name in ("video_ids", "query_ids", "captions", "moments")}
        return Labels(len(self.clips), owner, relevant, self.teacher, frames, most, *words, **same)

    @property
    def valid_frames(self) -> int | None:
        """Number of valid frames of all videos, of a batch on a device; None on the host, where counting is free."""
        return None if self.counts is None else sum(self.counts.frames)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "Batch":
        """Copy on `device`, floating tensors in `dtype`; a batch that leaves the host gets its `counts`."""
        here = self.frame_mask.device.type == "cpu"
        if self.counts is None and here and device is not None and torch.device(device).type != "cpu":
            counts = Counts.of(self.frame_mask, self.word_mask, self.query_to_video)
            return to_device(replace(self, counts=counts), device, dtype)
        return to_device(self, device, dtype)

    def pin_memory(self) -> "Batch":
        """Copy in page-locked memory, which a GPU reads asynchronously."""
        return _pinned(self)

    def padded(self, frames: int, words: int, stream: int = 0) -> "Batch":
        """Copy whose frames, words and rows of a second stream are padded to at least these lengths."""
        lengths = dict.fromkeys(("frames", "frame_mask", "teacher_frames"), frames)
        lengths |= {"words": words, "word_mask": words, "stream": stream, "stream_mask": stream}
        tensors = {name: getattr(self, name) for name in lengths}
        return replace(self, **{name: pad_to(x, lengths[name]) for name, x in tensors.items() if x is not None})

    def split(self, size: int) -> "list[Batch]":
        """Parts of `size` videos (the last may be smaller) with the queries that were written for them.

        Padding is kept. Queries must be in the order of their videos, and every part needs one.

        Raises:
            ValueError: queries in another order, or a part without one.

        Examples:
            >>> batch = Batch(clips=torch.ones(3, 4, 2), frames=torch.ones(3, 6, 2),
            ...     frame_mask=torch.ones(3, 6, dtype=torch.bool), words=torch.ones(4, 5, 7),
            ...     word_mask=torch.ones(4, 5, dtype=torch.bool), query_to_video=torch.tensor([0, 1, 1, 2]))
            >>> tuple(len(part.words) for part in batch.split(2))
            (3, 1)
        """
        counts = self.counts or Counts.of(*(t.cpu() for t in (self.frame_mask, self.word_mask, self.query_to_video)))
        if size < 1 or counts.queries is None:
            raise InputError(
                f"Batch.split({size}): expected a size of at least 1, and queries in order of their videos"
            )
        ends, parts = [0, *accumulate(counts.queries)], []
        for first in range(0, len(self.clips), size):
            v = slice(first, min(first + size, len(self.clips)))
            q = slice(ends[v.start], ends[v.stop])
            places = dict.fromkeys(("clips", "frames", "frame_mask", "video_ids", "stream", "stream_mask"), v)
            places |= dict.fromkeys(("words", "word_mask", "query_ids", "teacher_frames", "captions", "moments"), q)
            places |= {"query_to_video": q, "relevant": (q, v), "teacher": (q, v)}
            rows: dict[str, Any] = {name: getattr(self, name) for name in places}
            rows = {name: value[places[name]] for name, value in rows.items() if value is not None}
            rows["query_to_video"] = rows["query_to_video"] - first
            own = self.counts and Counts(counts.frames[v], counts.words[q], counts.queries[v])
            parts.append(replace(self, **rows, counts=own))
        return parts


_Rows = TypeVar("_Rows", bound="Embeddings")  # in place of Self, which the check of shapes does not know


class Embeddings:
    """Rows of tensors that are indexed and moved together."""

    def __getitem__(self: _Rows, rows: slice | Int[Tensor, " n"] | Bool[Tensor, " m"]) -> _Rows:
        return with_tensors(self, {name: tensor[rows] for name, tensor in tensors_of(self).items()})

    def to(self: _Rows, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> _Rows:
        """Copy on `device`, floating tensors in `dtype`."""
        return to_device(self, device, dtype)


@dataclass(frozen=True)
class TextEmbedding(Embeddings):
    """Embeddings of queries and of each of their words.

    It is indexed, split and moved like a `(q, d)` tensor of embeddings.

    Args:
        sentence: `(q, d)` one vector per query.
        words: `(q, w, d)` word embeddings.
        mask: `(q, w)` True = valid.
        weights: `(q, w)` weight of each word; those of the valid words of a query add up to 1.
        path: `(q, e)` what a kernel path beside the blocks is compared with, see `prvr.models.kernel_path`; or None.

    Examples:
        >>> text = TextEmbedding(torch.ones(3, 4), torch.ones(3, 5, 4), torch.ones(3, 5, dtype=torch.bool),
        ...     torch.full((3, 5), 0.2))
        >>> len(text), text[torch.tensor([2, 0])].words.shape, [len(part) for part in text.split(2)]
        (3, torch.Size([2, 5, 4]), [2, 1])
    """

    sentence: Float[Tensor, "q d"]
    words: Float[Tensor, "q w d"]
    mask: Bool[Tensor, "q w"]
    weights: Float[Tensor, "q w"]
    path: Float[Tensor, "q e"] | None = None

    @classmethod
    def of_sentences(cls, sentence: Float[Tensor, "q d"]) -> "TextEmbedding":
        """Queries of one vector, which is their only word."""
        weights = torch.ones_like(sentence[:, :1])
        return cls(sentence, sentence[:, None], weights.bool(), weights)

    def __len__(self) -> int:
        return len(self.sentence)

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self.sentence.device

    def split(self, size: int) -> "list[TextEmbedding]":
        """Parts of `size` queries; the last may be smaller."""
        return [self[start : start + size] for start in range(0, len(self), size)]


Texts = Tensor | TextEmbedding
"""Embeddings of queries: `(q, d)`, or a `TextEmbedding` that keeps the words."""


def cat_texts(parts: Sequence[Texts]) -> Texts:
    """Join embeddings of one kind along queries; words are padded to the longest part.

    Examples:
        >>> cat_texts([torch.zeros(2, 4), torch.zeros(1, 4)]).shape
        torch.Size([3, 4])
    """
    if all(isinstance(part, Tensor) for part in parts):
        return torch.cat(parts)  # pyright: ignore[reportArgumentType, reportCallIssue]
    names = tensors_of(parts[0])
    return TextEmbedding(**{name: cat_padded([getattr(part, name) for part in parts]) for name in names})


def query_vectors(text: Texts) -> Float[Tensor, "q d"]:
    """One vector per query.

    Examples:
        >>> query_vectors(torch.zeros(2, 4)).shape
        torch.Size([2, 4])
    """
    return text.sentence if isinstance(text, TextEmbedding) else text


@dataclass(frozen=True)
class Merged:
    """The rows that the clip branch encodes where frames are merged, see `prvr.published.msc.parts.MergedClips`.

    Args:
        features: `(v, c, f)` their features, of unit length.
        sizes: `(v, c)` how many frames each stands for.
        clip_of: `(v, l)` the row that each frame is part of.
    """

    features: Float[Tensor, "v c f"]
    sizes: Float[Tensor, "v c"]
    clip_of: Int[Tensor, "v l"]


@dataclass(frozen=True)
class VideoEmbedding(Embeddings):
    """Embeddings of videos: what a gallery stores.

    Args:
        clips: `(v, c, d)` clip embeddings, or None without that branch.
        frames: `(v, l, d)` frame embeddings (GMMFormer: one row), or None without that branch.
        frame_mask: `(v, l)` True at rows that are scored; None = all (the released code).
        registers: `(v, n, d)` registers that conditioned the encoding, or None.
        unit: clips and frames are rows of unit length, see `prvr.scoring.normalised`.
        clip_spans: `(v, c, 2)` where each clip begins and ends, as shares of the video; None = clips are equal parts.
        merged: in training, what the clips were merged from; None without merging.
        path: the rows of a kernel path beside the blocks, as its frames; None without one.
        stream: those of a second stream, as its frames; None without one.
    """

    clips: Float[Tensor, "v c d"] | None = None
    frames: Float[Tensor, "v l d"] | None = None
    frame_mask: Bool[Tensor, "v l"] | None = None
    registers: Float[Tensor, "v n d"] | None = None
    unit: bool = False
    clip_spans: Float[Tensor, "v c 2"] | None = None
    merged: Merged | None = None
    path: "VideoEmbedding | None" = None
    stream: "VideoEmbedding | None" = None

    def __len__(self) -> int:
        tensor = self.clips if self.clips is not None else self.frames
        return 0 if tensor is None else tensor.shape[0]

    @staticmethod
    def cat(parts: "Sequence[VideoEmbedding]") -> "VideoEmbedding":
        """Join along videos; frames are padded to the longest part, and a mask then says which rows count.

        Raises:
            ValueError: parts of different models: only some have clips, frames or registers, or their numbers differ.
        """
        present: dict[str, list[Tensor]] = {}
        for name in ("clips", "frames", "registers", "clip_spans"):
            tensors = present[name] = [t for part in parts if (t := getattr(part, name)) is not None]
            lengths = {t.shape[1] for t in tensors}
            if (tensors and len(tensors) != len(parts)) or (name != "frames" and len(lengths) > 1):
                raise InputError(f"VideoEmbedding.cat: videos differ in their {name}. Encode all with one model.")
        frames = present["frames"]
        if any(part.frame_mask is not None for part in parts) or len({t.shape[1] for t in frames}) > 1:
            present["frame_mask"] = [
                torch.ones(t.shape[:2], dtype=torch.bool, device=t.device)
                if part.frame_mask is None
                else part.frame_mask
                for part, t in zip(parts, frames, strict=bool(frames))
            ]
        joined = {name: cat_padded(tensors) for name, tensors in present.items() if tensors}

        def beside(name: str) -> "VideoEmbedding | None":
            each = [one for part in parts if (one := getattr(part, name)) is not None]
            return VideoEmbedding.cat(each) if len(each) == len(parts) > 0 else None

        unit = all(part.unit for part in parts)
        return VideoEmbedding(**joined, merged=None, path=beside("path"), stream=beside("stream"), unit=unit)


@dataclass(frozen=True)
class Scores:
    """Similarity of every query with every video, `(q, v)` each.

    `clips` and `frames` are maxima of cosines in [-1, 1]; `total` is their weighted sum, by which videos are ranked;
    `clips_dot` and `frames_dot` are the maxima of plain dot products that InfoNCE trains on. `key_clip` is the number
    of each query's best clip where frames are compared by it (MS-SL).
    """

    total: Float[Tensor, "q v"]
    clips: Float[Tensor, "q v"] | None = None
    frames: Float[Tensor, "q v"] | None = None
    clips_dot: Float[Tensor, "q v"] | None = None
    frames_dot: Float[Tensor, "q v"] | None = None
    key_clip: Int[Tensor, "q v"] | None = None


@dataclass(frozen=True)
class RetrieverOutput:
    """One forward pass: queries, videos, scores and, if any, the registers.

    Args:
        text: `(q, d)` embeddings of the queries, or a `TextEmbedding` where frames are compared with words.
        video: embeddings of the videos.
        scores: of every query with every video.
        registers: of the videos.
    """

    text: Texts
    video: VideoEmbedding
    scores: Scores
    registers: "Registers | None" = None


@runtime_checkable
class Scorer(Protocol):
    """Scores every text with every video: a retriever, or a stage with scores of its own."""

    def score(self, text: Any, video: VideoEmbedding, /) -> Scores:
        """Similarity of every text, as `encode_text` returned it, with every video: `(q, v)`, higher is better."""
        ...


MomentSpans = tuple[Float[Tensor, "q m 2"], Float[Tensor, "q m"]] | None
"""Moments of one video for q queries: starts and ends as shares of the video, and scores, higher is better, -inf for no
moment; None: whoever was asked has none to give."""


@runtime_checkable
class GivesMoments(Protocol):
    """A retriever or a stage that may give moments of its own, in place of those of its rows."""

    def moments(self, text: Any, video: VideoEmbedding, /) -> MomentSpans:
        """Moments of one video for every query.

        Args:
            text: the queries, as `encode_text` returned them.
            video: the video alone; `frame_mask` says which frames are.
        """
        ...


@runtime_checkable
class TextVideoEncoder(Scorer, Protocol):
    """A module that encodes texts and videos and scores every text with every video."""

    def encode_text(self, words: Float[Tensor, "q w e"], word_mask: Bool[Tensor, "q w"], /) -> Texts:
        """Words and their mask to `(q, d)`, or to a `TextEmbedding` that keeps the words."""
        ...

    def encode_video(
        self, clips: Float[Tensor, "v c f"], frames: Float[Tensor, "v l f"], frame_mask: Bool[Tensor, "v l"], /
    ) -> VideoEmbedding:
        """Clips, frames and their mask to embeddings."""
        ...

    def for_scoring(self, video: VideoEmbedding, /) -> VideoEmbedding:
        """The same videos with everything that `score` would repeat for each block of texts computed once."""
        ...

    def modules(self) -> Iterator[nn.Module]:
        """The same as in `torch.nn.Module`."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]:
        """The same as in `torch.nn.Module`."""
        ...

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """The same as in `torch.nn.Module`."""
        ...

    def eval(self) -> Any:
        """The same as in `torch.nn.Module`."""
        ...


@runtime_checkable
class FirstStage(TextVideoEncoder, Protocol):
    """A retriever as the first stage of a pipeline, which can be saved.

    `prvr.Retriever` and `prvr.TokenRetriever` are some. Evaluation, the index, the stages
    of a pipeline and the benchmarks use nothing else of a retriever.

    Attributes:
        config: a `prvr.config.AnyModelConfig`, from which it can be built again.
    """

    config: Any

    def save_pretrained(self, folder: Path, /) -> Any:
        """Write configuration and weights into a folder."""
        ...
