"""Moments: the best videos of a split for a query, and the time of the best moment in each."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from prvr.data.packed import PackedSplit
from prvr.evaluation.encode import device_of, encode_split, evaluation_mode
from prvr.evaluation.lists import ranked_rows, video_moments
from prvr.scoring import overlaps
from prvr.stages.matrix import EncodedSplit
from prvr.stages.pipelines import Pipeline, as_pipeline
from prvr.types import FirstStage


@dataclass(frozen=True)
class Hit:
    """A video for a query: its score and, if its duration is known, its best moment in seconds."""

    video_id: str
    score: float
    start: float | None
    end: float | None


@dataclass(frozen=True)
class ExampleQuery:
    """A query, its best videos in order, and the true video and moment."""

    query_id: str
    caption: str
    hits: tuple[Hit, ...]
    video_id: str
    start: float | None
    end: float | None
    relevant: frozenset[str]

    @property
    def correct(self) -> bool:
        """Whether the first hit is a relevant video."""
        return self.hits[0].video_id in self.relevant

    def overlap(self, hit: Hit) -> float | None:
        """Intersection over union of the moment of a hit with the true moment, in [0, 1]; 0 in an irrelevant video.

        None if a moment is unknown, as in other videos that are relevant too.

        Examples:
            >>> query = ExampleQuery("q", "a dog runs", (Hit("v", 1.0, 48.0, 58.0),), "v", 50.0, 58.0, frozenset({"v"}))
            >>> query.overlap(query.hits[0]), query.overlap(Hit("other", 1.0, 0.0, 5.0))
            (0.8, 0.0)
        """
        if hit.video_id not in self.relevant:
            return 0.0
        times = (hit.start, hit.end, self.start, self.end)
        if hit.video_id != self.video_id or None in times:
            return None
        return float(overlaps(*torch.tensor(times, dtype=torch.float64)[:, None, None]).nan_to_num(1.0))


def find_moments(
    system: FirstStage | Pipeline,
    split: PackedSplit,
    queries: Sequence[int],
    k: int = 3,
    *,
    encoded: EncodedSplit | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
) -> tuple[ExampleQuery, ...]:
    """The k best videos of the gallery for some queries, each with its best moment in seconds.

    Args:
        system: a retriever, or a pipeline: its stages decide on the order; moments as in
            `prvr.evaluation.lists.video_moments`.
        split: a packed split.
        queries: indices of the queries; one row of scores per query is in memory.
        k: number of videos; a smaller gallery is returned as a whole.
        encoded: the result of `encode_split` for this split, on the same device; None encodes it.
        device: None for the device of the model's parameters.
        seed: the seed of samples that the model draws.
    """
    pipeline = as_pipeline(system)
    where = device_of(pipeline.first, device)
    if encoded is None:
        encoded = encode_split(pipeline, split, device=where, seed=seed)

    def moment_of(query: int, video: int) -> tuple[float | None, float | None]:
        """The best moment; None if the length of the video is unknown."""
        duration, number = float(split.durations[video]), torch.tensor([query])
        moments = video_moments(pipeline, encoded, split, number, video) if duration > 0 else None
        if moments is None:
            return None, None
        unit = duration / moments.length
        return float(moments.start[0, 0]) * unit, float(moments.stop[0, 0]) * unit

    with evaluation_mode(pipeline, where, seed):
        scores = torch.cat([row for _, row in ranked_rows(pipeline, encoded, "t2v", only=queries)])
        values, videos = (t.cpu() for t in scores.topk(min(k, scores.shape[1])))
        examples = []
        for i, query in enumerate(queries):
            times = float(split.moments.start[query]), float(split.moments.end[query])
            start, end = (None, None) if np.isnan(times).any() else times
            hits = tuple(
                Hit(split.video_ids[v], value, *moment_of(query, v))
                for value, v in zip(values[i].tolist(), videos[i].tolist(), strict=True)
            )
            video = split.video_ids[int(split.query_to_video[query])]
            relevant = frozenset(split.video_ids[v] for v in split.relevant[query])
            examples.append(
                ExampleQuery(split.query_ids[query], split.captions[query], hits, video, start, end, relevant)
            )
        return tuple(examples)
