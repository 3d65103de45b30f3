"""Features and models that the tests of search share: no video is decoded."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from prvr import Retriever
from prvr.config import BlockConfig, ModelConfig
from prvr.data.hashes import hash_file
from prvr.encoders import FeatureSpec, VideoEntry, VideoFeatures, open_encoder
from prvr_search import Library, SearchModel, VideoIndex, open_model
from prvr_search.films import Film, list_videos
from prvr_search.films.info import FIELDS_VERSION
from prvr_search.store.store import Store

QUERY = "a red square moves left"
TOY = FeatureSpec(open_encoder("toy").identity, 2.0, 512, 256)
"""The features of the toy encoder, at 2 frames per second."""


def make_features(videos: Mapping[str, Float32[np.ndarray, "_ f"]], spec: FeatureSpec = TOY) -> VideoFeatures:
    """Features as a library gives them; the sha256 of a video's file follows from them."""
    entries = {}
    for video, features in videos.items():
        content, frames = hashlib.sha256(features.tobytes()).hexdigest(), len(features)
        entries[video] = VideoEntry(
            video, f"/videos/{video}", 1000, 0, content, frames / spec.rate, frames, 64, 48, "h264"
        )
    return VideoFeatures(spec, entries, lambda entry: videos[entry.id])


def make_library(folder: Path, features: VideoFeatures) -> Path:
    """A folder of files that a library knows as videos with these features; none of them is a video."""
    store, seen = Store(), {}
    for entry in features.entries.values():
        path = folder / entry.id
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(entry.sha256)
        film = Film(
            sha256 := hash_file(path), 0, entry.duration, entry.width, entry.height, entry.codec, entry.start_time,
            version=FIELDS_VERSION, warnings=entry.warnings, spec=features.spec,
        )  # fmt: skip
        store.add(film, features.read(entry.id))
        seen[path.resolve()] = sha256
    folder = folder.resolve()
    videos = list_videos(folder).videos
    store.folders.see(folder, [video._replace(sha256=seen[video.path]) for video in videos if video.path in seen])
    with store.folders.changing(folder) as record:
        record.encoder = features.spec
    return folder


def library_features(folder: Path, encoder: str = "toy", **options: Any) -> VideoFeatures:
    """The features of real videos, encoded if they are new, with an encoder that is that of the folder from now on."""
    with Library(folder, encoder=encoder, device="cpu", **options) as library:
        library.update()
        assert library.spec is not None
        with library.store.folders.changing(library.folder) as record:
            record.encoder = library.spec
        return library.features()


def without(features: VideoFeatures, *videos: str) -> VideoFeatures:
    """The features without some videos."""
    entries = {video: entry for video, entry in features.entries.items() if video not in videos}
    return VideoFeatures(features.spec, entries, lambda entry: features.read(entry.id))


def noise_features(spec: FeatureSpec, names: Sequence[str]) -> VideoFeatures:
    """Videos of 10 s with random features; "copy of x" has the content of "x"."""
    rng, shape = np.random.default_rng(0), (round(10 * spec.rate), spec.dim)
    features = {name.removeprefix("copy of "): rng.standard_normal(shape).astype(np.float32) for name in names}
    return make_features({name: features[name.removeprefix("copy of ")] for name in names}, spec)


def walk(rows: int, seed: int, dim: int = 512) -> Float32[np.ndarray, "n f"]:
    """Features that change slowly, as those of videos do."""
    rng = np.random.default_rng(seed)
    steps = rng.normal(size=(rows, dim)).astype(np.float32)
    return steps.cumsum(0) / np.sqrt(np.arange(1, rows + 1, dtype=np.float32))[:, None] + 0.3 * steps


def some_videos(lengths: Sequence[int], seed: int = 0) -> dict[str, np.ndarray]:
    """Videos of these numbers of rows, called v000.mp4 and so on."""
    return {f"v{i:03}.mp4": walk(rows, seed + i) for i, rows in enumerate(lengths)}


def tiny_config(**changes: Any) -> ModelConfig:
    values: dict[str, Any] = {"video_dim": 512, "query_dim": 48, "hidden": 16, "heads": 2, "num_clips": 8}
    values |= {"max_frames": 24, "blocks": (BlockConfig(), BlockConfig(width=2.0))}
    return ModelConfig(**values | changes)


def tiny_model(folder: Path, **changes: Any) -> Path:
    """An untrained retriever of the toy encoder, in a folder of `save_pretrained`."""
    import torch

    torch.manual_seed(3)
    retriever = Retriever(tiny_config(**changes))
    for parameter in retriever.parameters():  # far from the start, where all vectors are nearly the same
        parameter.data += 0.2 * torch.randn_like(parameter)
    retriever.save_pretrained(folder)
    return folder


def make_index(
    folder: Path, model: str | Path | SearchModel = "zero-shot", features: VideoFeatures | None = None, **options: Any
) -> VideoIndex:
    """An index of some videos; empty without any."""
    spec = TOY if features is None else features.spec
    opened = open_model(model, spec) if isinstance(model, str | Path) else model
    index = VideoIndex(folder, opened, spec, **options)
    if features is not None:
        index.update(features)
    return index


def files(index: VideoIndex) -> dict[str, tuple[bytes, int]]:
    """The files of an index, and when they were written."""
    paths = [path for path in index.folder.rglob("*") if path.is_file()]
    return {path.relative_to(index.folder).as_posix(): (path.read_bytes(), path.stat().st_ino) for path in paths}
