"""A packed split of noise at the size of a public collection, written without its source files."""

from pathlib import Path

import numpy as np

from prvr.config import ModelConfig
from prvr.data import PackedSplit
from prvr.data.packed_files import PackedWriter

POOL = 4096
"""Rows of noise that all features are taken from: drawing billions of numbers would take minutes."""


def noise_store(
    folder: Path, model: ModelConfig, *, videos: int, captions: int, frames: float, dtype: str
) -> PackedSplit:
    """A split for `model`: `videos` of `frames` frames on average, with `captions` each, of at least 5 words."""
    rng = np.random.default_rng(0)
    pools = {}
    for name, width in (("video", model.video_dim), ("query", model.query_dim)):
        rows = rng.standard_normal((POOL, width), dtype=np.float32)
        pools[name] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    lengths = rng.normal(frames, 25, videos).round().clip(8, model.max_frames).astype(np.int64)
    queries = videos * captions
    words = rng.integers(5, model.max_words + 1, queries)
    folder.mkdir(parents=True)
    with PackedWriter(folder, dtype) as writer:
        for length in lengths:
            writer.append("clips", pools["video"][rng.integers(POOL, size=model.num_clips)])
            writer.append("frames", pools["video"][rng.integers(POOL, size=length)])
        for count in words:
            writer.append("words", pools["query"][rng.integers(POOL, size=count)])
        owner = np.repeat(np.arange(videos), captions)
        index = {
            "query_to_video": owner,
            "moments": np.full((queries, 3), np.nan),
            "frame_offsets": np.concatenate([[0], lengths.cumsum()]),
            "word_offsets": np.concatenate([[0], words.cumsum()]),
        }
        text = {
            "video_ids": [f"video{i:05d}" for i in range(videos)],
            "query_ids": [f"video{v:05d}#enc#{i}" for i, v in enumerate(owner.tolist())],
            "captions": ["noise"] * queries,
            "relevant": owner[:, None].tolist(),
            "tags": [[]] * queries,
        }
        about = {"collection": "noise", "split": "train", "settings": {"clips": model.num_clips}, "source": []}
        writer.finish(index, text, about)
    return PackedSplit.open(folder, verify=False)
