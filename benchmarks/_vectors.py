"""Vectors with the statistics of real video embeddings, in a real index."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from prvr.data.sampling import growing_means
from prvr.encoders import FeatureSpec, Identity, VideoEntry, VideoFeatures
from prvr.errors import InputError
from prvr_search import ModelIdentity, RowSet, VideoIndex
from prvr_search.vectors.model import WindowVectors

CLIPS, DIM, TOPICS, EVENTS = 32, 384, 200, 4

# Shares of the squared length of a clip. Pairs of clips of a video then have cosine 0.73, of two videos 0.18.
COMMON, TOPIC, VIDEO, EVENT, DRIFT = 0.178, 0.15, 0.31, 0.26, 0.06
QUERY = 0.5  # cosine of a query with the clip that it means
MOMENTS = 0.27  # adaptive moments per frame

KINDS = {
    "trained": (CLIPS, 0.7, 0.3),
    "single frames": (CLIPS, 0.0, 1.0),
    "zero-shot": (CLIPS, 0.0, 1.0, False, True),
    "training-free": (1, 1.0, 0.0),
}
"""What an index can be of: clips of a window, the weights of clips and frames, and whether means follow frames."""


@dataclass(frozen=True)
class BenchModel:
    """Stands in for a retriever: a query is the number of a vector."""

    queries: np.ndarray
    identity: ModelIdentity
    dim: int = DIM
    clips: int = CLIPS
    clip_weight: float = 0.7
    frame_weight: float = 0.3
    frames_by_clip: bool = False
    frame_means: bool = False
    stored: Mapping[str, RowSet] = field(default_factory=dict)

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        if not all(text.isdigit() for text in texts):
            raise InputError("no sentence")  # so that there is no bank of them
        return self.queries[[int(text) for text in texts]]

    def encode_video(self, rows: np.ndarray, windows: np.ndarray) -> tuple[np.ndarray, list[WindowVectors]]:
        """One window, whose first rows are clips."""
        clips, frames = rows[:CLIPS], rows[CLIPS:]
        means = growing_means if self.frame_means else np.asarray
        return windows, [WindowVectors(clips, means(frames), len(frames))]


class MomentModel(BenchModel):
    """Every moment is a window."""

    def encode_video(self, rows: np.ndarray, windows: np.ndarray) -> tuple[np.ndarray, list[WindowVectors]]:
        frames = rows[CLIPS:]
        edges = np.linspace(0, len(frames), round(MOMENTS * len(frames)) + 1).astype(int)
        moments = unit(np.add.reduceat(frames, edges[:-1]))
        return np.stack([edges[:-1], edges[1:]], 1), [WindowVectors(row[None], row[None][:0], 0) for row in moments]


SPEC = FeatureSpec(Identity("bench", "0" * 64, "none"), 2.0, DIM, DIM)


def bench_model(queries: np.ndarray, kind: str = "trained") -> BenchModel:
    identity = ModelIdentity("zero-shot", "bench", "0" * 64, SPEC.encoder, SPEC.encoder)
    return (MomentModel if kind == "training-free" else BenchModel)(queries, identity, DIM, *KINDS[kind])


def open_index(folder: Path, model: BenchModel, backend: str, videos: int, frames: int) -> VideoIndex:
    duration, names = max(60.0, frames / 2), [f"{number:09d}" for number in range(videos)]
    entries = {n: VideoEntry(n, n, 0, 0, n.zfill(64), duration, CLIPS + frames, 640, 360, "h264") for n in names}

    def read(entry: VideoEntry) -> np.ndarray:
        clips, rows = some_videos(int(entry.id), 1, frames)
        return np.concatenate([clips[0], rows[0]])

    index = VideoIndex(folder, model, SPEC, window=None, stride=None, backend=backend)
    index.update(VideoFeatures(SPEC, entries, read))
    return index


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def directions(generator: np.random.Generator, *shape: int) -> np.ndarray:
    """Random vectors of length about one."""
    return generator.standard_normal((*shape, DIM), dtype=np.float32) / np.float32(DIM**0.5)


def some_videos(seed: int, number: int, frames: int) -> tuple[np.ndarray, np.ndarray]:
    """`(v, 32, d)` clips and `(v, frames, d)` frames of some videos; the seed tells which."""
    fixed = np.random.default_rng(7)
    common, topics = directions(fixed), directions(fixed, TOPICS)
    generator = np.random.default_rng([seed, 1])
    still = COMMON**0.5 * common + TOPIC**0.5 * topics[generator.integers(TOPICS, size=number)]
    still = still + VIDEO**0.5 * directions(generator, number)
    events, start, end = (
        directions(generator, number, EVENTS),
        directions(generator, number),
        directions(generator, number),
    )

    def rows(count: int) -> np.ndarray:
        event = np.arange(count) * EVENTS // count
        at = np.linspace(0, np.pi / 2, count, dtype=np.float32)[None, :, None]
        moving = DRIFT**0.5 * (np.cos(at) * start[:, None] + np.sin(at) * end[:, None])
        noise = max(0.0, 1 - COMMON - TOPIC - VIDEO - EVENT - DRIFT) ** 0.5 * directions(generator, number, count)
        return unit(still[:, None] + EVENT**0.5 * events[:, event] + moving + noise)

    return rows(CLIPS), rows(frames)


def statistics(videos: int = 200) -> tuple[float, float]:
    """Mean cosine of two clips of a video, and of clips of two videos."""
    clips = some_videos(0, videos, 1)[0]
    means = clips.mean(1)
    within = ((means**2).sum(1) * CLIPS**2 - CLIPS) / (CLIPS * (CLIPS - 1))
    across = ((means.sum(0) ** 2).sum() - (means**2).sum()) / (videos * (videos - 1))
    return float(within.mean()), float(across)


def write_index(
    folder: Path, videos: int, frames: int, queries: int, kind: str = "trained"
) -> tuple[np.ndarray, float]:
    """Writes an index; returns the queries, each near a clip of some video, and the seconds of encoding and writing."""
    generator = np.random.default_rng(3)
    texts = []
    for video in np.sort(generator.integers(videos, size=queries)):
        clip = some_videos(video, 1, frames)[0][0, generator.integers(CLIPS)]
        texts.append(unit(QUERY * clip + (1 - QUERY**2) ** 0.5 * directions(generator)))
    model, start = bench_model(np.empty((0, DIM)), kind), time.perf_counter()
    open_index(folder, model, "exact", videos, frames).close()
    return np.stack(texts).astype(np.float32), time.perf_counter() - start
