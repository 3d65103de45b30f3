"""Moments: for a query, the best videos of a split and where in them the answer lies."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from prvr.data.packed import PackedSplit
from prvr.errors import InputError
from prvr.evaluation.encode import device_of, encode_split, evaluation_mode
from prvr.evaluation.rank import ranked_rows
from prvr.scoring import at_steps, best_moment, clip_scores
from prvr.stages.matrix import EncodedSplit
from prvr.stages.pipelines import Pipeline, as_pipeline
from prvr.types import FirstStage, Texts, VideoEmbedding, query_vectors


@dataclass(frozen=True)
class Hit:
    """A video found for a query: its score and, where its duration is known, its best moment in seconds."""

    video_id: str
    score: float
    start: float | None
    end: float | None


@dataclass(frozen=True)
class ExampleQuery:
    """A query, what was found for it (best first), and what is true."""

    query_id: str
    caption: str
    hits: tuple[Hit, ...]
    video_id: str
    start: float | None
    end: float | None
    relevant: frozenset[str]

    @property
    def correct(self) -> bool:
        """Whether the first hit is a relevant video, whatever the moment."""
        return self.hits[0].video_id in self.relevant

    def shared(self, hit: Hit) -> float | None:
        """How much of the found and the true moment is common to both, of all that either covers (IoU), in [0, 1].

        None where the moment is not known: of another video that answers the query too, or without times. In a video
        that does not answer the query nothing is shared.

        Examples:
            >>> query = ExampleQuery("q", "a dog runs", (Hit("v", 1.0, 48.0, 58.0),), "v", 50.0, 58.0, frozenset({"v"}))
            >>> query.shared(query.hits[0]), query.shared(Hit("other", 1.0, 0.0, 5.0))
            (0.8, 0.0)
        """
        if hit.video_id not in self.relevant:
            return 0.0
        times = (hit.start, hit.end, self.start, self.end)
        if hit.video_id != self.video_id or any(time is None for time in times):
            return None
        start, end, first, last = (float(time) for time in times if time is not None)
        union = max(end, last) - min(start, first)
        return max(0.0, min(end, last) - max(start, first)) / union if union > 0 else 1.0


def find_moments(
    system: FirstStage | Pipeline,
    split: PackedSplit,
    queries: Sequence[int],
    k: int = 3,
    *,
    encoded: EncodedSplit | None = None,
    device: torch.device | str | None = None,
    video_batch: int = 64,
    seed: int = 0,
) -> tuple[ExampleQuery, ...]:
    """The k best videos of the gallery for some queries, each with its best moment in seconds.

    Args:
        system: a retriever, or a pipeline: the order is that after its stages, the moments are those of its first.
        split: a packed split.
        queries: numbers of the queries; one row of scores per query is held.
        k: how many videos; all of them where the gallery is smaller.
        encoded: what `encode_split` gave for this split, on the same device; default: encode it now.
        device: where to compute; default: where the model's parameters are.
        video_batch: how many videos are encoded at a time.
        seed: the seed of whatever the model samples.

    Raises:
        ValueError: k is not positive, or a query is out of range.
    """
    total = len(split.query_ids)
    if k < 1 or any(not 0 <= query < total for query in queries):
        raise InputError(f"k={k}, queries={list(queries)}: expected k >= 1 and numbers in [0, {total})")
    if not queries:
        return ()
    pipeline = as_pipeline(system)
    retriever = pipeline.first
    where = device_of(retriever, device)
    if encoded is None:
        encoded = encode_split(pipeline, split, device=where, video_batch=video_batch, seed=seed)
    with evaluation_mode(pipeline, where, seed):
        text = encoded.text[torch.as_tensor(queries, device=where)]
        scores = torch.cat([row for _, row in ranked_rows(pipeline, encoded, "t2v", only=queries)])
        values, videos = (t.cpu() for t in scores.topk(min(k, scores.shape[1])))
        found = []
        for i, (query, own) in enumerate(zip(queries, text.split(1), strict=True)):
            times = float(split.moments.start[query]), float(split.moments.end[query])
            start, end = (None, None) if np.isnan(times).any() else times
            hits = tuple(
                Hit(split.video_ids[v], value, *_moment(retriever, encoded, split, own, v))
                for value, v in zip(values[i].tolist(), videos[i].tolist(), strict=True)
            )
            video = split.video_ids[int(split.query_to_video[query])]
            relevant = frozenset(split.video_ids[v] for v in split.relevant[query])
            found.append(ExampleQuery(split.query_ids[query], split.captions[query], hits, video, start, end, relevant))
        return tuple(found)


def _moment(
    retriever: FirstStage, encoded: EncodedSplit, split: PackedSplit, text: Texts, video: int
) -> tuple[float | None, float | None]:
    """The best moment by the score of frames and clips at the time of each frame, as in search."""
    duration = float(split.durations[video])
    if not duration > 0:  # NaN: unknown
        return None, None
    number = next(i for i, part in enumerate(encoded.slices) if part.stop > video)
    part, row = encoded.videos[number], video - encoded.slices[number].start
    clips = None if part.clips is None else part.clips[row]
    frames = None
    if part.frames is not None and part.frames.shape[1] > 1:  # finer than clips, unless pooled to one
        frames = part.frames[row, : int(split.frame_counts[video])]  # padding is no time
    if clips is not None and frames is not None:  # each step of time is scored as a video of its own
        every = torch.ones(len(frames), 1, dtype=torch.bool, device=frames.device)
        steps = VideoEmbedding(at_steps(clips, len(frames))[:, None], frames[:, None], every, unit=part.unit)
        line = retriever.score(text, steps).total[0]
    elif (tokens := clips if frames is None else frames) is not None:
        line = clip_scores(query_vectors(text), tokens[None])[0, 0]
    else:
        return None, None
    return best_moment(line.float().cpu(), duration)
