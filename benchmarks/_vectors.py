"""Vectors with the statistics of real video embeddings, written as a real index some at a time."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from prvr.data.sampling import growing_means
from prvr.encoders import FeatureSpec, Identity, VideoEntry
from prvr_search import ModelIdentity, RowSet, VideoIndex
from prvr_search.manifest import WINDOWS, Manifest
from prvr_search.row_files import VideoVectors, append_rows
from prvr_search.vectors import pack_rows

CLIPS, DIM, TOPICS, EVENTS = 32, 384, 200, 4
AT_ONCE = 1_000  # videos

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
        return self.queries[[int(text) for text in texts]]


SPEC = FeatureSpec(Identity("bench", "0" * 64, "none"), 2.0, DIM, DIM)


def bench_model(queries: np.ndarray, kind: str = "trained") -> BenchModel:
    identity = ModelIdentity("zero-shot", "bench", "0" * 64, SPEC.encoder, SPEC.encoder)
    return BenchModel(queries, identity, DIM, *KINDS[kind])


def open_index(folder: Path, model: BenchModel, backend: str) -> VideoIndex:
    return VideoIndex(folder, model, SPEC, window=None, stride=None, backend=backend)


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
    """Writes an index; returns the queries, each near a clip of some video, and the seconds of writing alone."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(3)
    meant = np.sort(generator.integers(videos, size=queries))
    texts, spent = [], 0.0
    manifest = Manifest.new(bench_model(np.empty((0, DIM)), kind), SPEC, None, None, bank=0)
    for first in range(0, videos, AT_ONCE):
        number = min(AT_ONCE, videos - first)
        clips, fine = some_videos(first, number, frames)
        for video in meant[(meant >= first) & (meant < first + number)] - first:
            clip = clips[video, generator.integers(CLIPS)]
            texts.append(unit(QUERY * clip + (1 - QUERY**2) ** 0.5 * directions(generator)))
        start = time.perf_counter()
        vectors = [_video(manifest, first + i, clips[i], fine[i], kind) for i in range(number)]
        manifest = append_rows(folder, manifest, vectors)
        spent += time.perf_counter() - start
    manifest.write(folder)
    return np.stack(texts).astype(np.float32), spent


def _video(manifest: Manifest, number: int, clips: np.ndarray, frames: np.ndarray, kind: str) -> VideoVectors:
    name, duration = f"{number:09d}", max(60.0, len(frames) / 2)
    entry = VideoEntry(name, name, 0, 0, name.zfill(64), duration, len(frames), 640, 360, "h264")
    steps, frames = len(frames), growing_means(frames) if kind == "zero-shot" else frames
    rows = [(0.0, 60.0, steps, len(clips), len(frames))]
    if kind == "training-free":  # every moment is a window
        starts = np.linspace(0, len(frames), round(MOMENTS * len(frames)), endpoint=False).astype(int)
        clips, frames = unit(np.add.reduceat(frames, starts)), frames[:0]
        edges = [*(starts / 2).tolist(), duration]
        rows = [(*edges[i : i + 2], 0, 1, 0) for i in range(len(starts))]
    windows = np.array(rows, manifest.files[WINDOWS])
    return VideoVectors(entry, {WINDOWS: windows, "clips": pack_rows(clips), "frames": pack_rows(frames)})
