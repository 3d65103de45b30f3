"""Stores of features and models that the tests of search share: no video is decoded."""

import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from prvr import Retriever
from prvr.config import BlockConfig, ModelConfig
from prvr.search import SearchModel, SearchResult, VideoIndex, open_model
from prvr.video import StoreHeader, VideoEntry, VideoStore, open_encoder
from prvr.video.store import entry_path, write_entry, write_header

QUERY = "a red square moves left"
TOY = StoreHeader(open_encoder("toy").identity, 2.0, 512, 256)
"""Header of a store of the toy encoder, at 2 frames per second."""


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def write_store(
    folder: Path, videos: Mapping[str, Float32[np.ndarray, "_ f"]], header: StoreHeader = TOY
) -> VideoStore:
    """A store with these features; the sha256 of a video's file follows from them."""
    if not (folder / "store.json").exists():
        (folder / "videos").mkdir(parents=True)
        write_header(folder, header)
    for video, features in videos.items():
        content, frames = hashlib.sha256(features.tobytes()).hexdigest(), len(features)
        entry = VideoEntry(video, f"/videos/{video}", 1000, 0, content, frames / header.rate, frames, 64, 48, "h264")
        write_entry(folder, header, entry, features)
    return VideoStore(folder)


def noise_store(folder: Path, header: StoreHeader, names: Sequence[str]) -> VideoStore:
    """Videos of 10 s with random features; "copy of x" has the content of "x"."""
    rng, shape = np.random.default_rng(0), (round(10 * header.rate), header.dim)
    features = {name.removeprefix("copy of "): rng.standard_normal(shape).astype(np.float32) for name in names}
    return write_store(folder, {name: features[name.removeprefix("copy of ")] for name in names}, header)


def forget(store: VideoStore, *videos: str) -> VideoStore:
    """The store without some videos."""
    for video in videos:
        entry_path(store.folder, video).unlink()
    return VideoStore(store.folder)


def walk(rows: int, seed: int, dim: int = 512) -> Float32[np.ndarray, "n f"]:
    """Features that change slowly, as those of videos do."""
    rng = np.random.default_rng(seed)
    steps = rng.normal(size=(rows, dim)).astype(np.float32)
    return steps.cumsum(0) / np.sqrt(np.arange(1, rows + 1, dtype=np.float32))[:, None] + 0.3 * steps


def some_videos(lengths: Sequence[int], seed: int = 0) -> dict[str, np.ndarray]:
    """Videos of these numbers of rows, called v000.mp4 and so on."""
    return {f"v{i:03}.mp4": walk(rows, seed + i) for i, rows in enumerate(lengths)}


def tiny_config(**changes: Any) -> ModelConfig:
    values: dict[str, Any] = {
        "video_dim": 512,
        "query_dim": 48,
        "hidden": 16,
        "heads": 2,
        "num_clips": 8,
        "max_frames": 24,
        "blocks": (BlockConfig(), BlockConfig(width=2.0)),
    }
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
    folder: Path, model: str | Path | SearchModel = "zero-shot", store: VideoStore | None = None, **options: Any
) -> VideoIndex:
    """An index of the videos of a store; empty without one."""
    opened = open_model(model, TOY) if isinstance(model, str | Path) else model
    index = VideoIndex.create(folder, opened, TOY if store is None else store.header, **options)
    if store is not None:
        index.add(store)
    return index


def found_in(folder: Path, k: int = 10, **options: Any) -> SearchResult:
    """What an index that is opened for it finds for `QUERY`."""
    with VideoIndex.open(folder, **options) as index:
        return index.search(QUERY, k)


def sign(path: Path, change: Callable[[Any], Any]) -> None:
    """Changes the object in `index.json` or `store.json`, whose own hash is right again afterwards."""
    body = json.loads(path.read_text())
    body.pop("sha256")
    changed = change(body)
    if isinstance(changed, dict):
        changed["sha256"] = sha(json.dumps(changed, sort_keys=True))
    path.write_text(json.dumps(changed))


def replace_in_segment(index: Path, number: int, files: Mapping[str, bytes]) -> Path:
    """Replaces files of a segment, all hashes right again afterwards; gives its folder."""

    def change(body: dict[str, Any]) -> dict[str, Any]:
        record = body["index"]["segments"][number]
        folder = index / "segments" / record["name"]
        for name, content in files.items():
            (folder / name).write_bytes(content)
            record["files"][name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        told = "".join(f"{name}:{stamp['sha256']}\n" for name, stamp in sorted(record["files"].items()))
        record["name"] = sha(told)[:32]
        folder.rename(folder.with_name(record["name"]))
        return body

    sign(index / "index.json", change)
    record = json.loads((index / "index.json").read_text())["index"]["segments"][number]
    return index / "segments" / record["name"]


def npy(array: np.ndarray) -> bytes:
    """The content of a `.npy` file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def contents(index: VideoIndex) -> dict[str, Any]:
    """All that an index holds, but for the random name: to compare two of them."""
    source = index.source
    files = {
        path.relative_to(index.folder).as_posix(): path.read_bytes()
        for path in index.folder.rglob("*/*")
        if path.is_file()
    }
    about = {name: value for name, value in vars(source.manifest).items() if name != "index_id"}
    return {"files": files, "about": about}
