"""An index that is new, and what is in one."""

import secrets
from pathlib import Path

from prvr.data.files import publish, temporary_folder
from prvr.data.hashes import hash_file
from prvr.errors import DataError, InputError
from prvr.search.hits import IndexInfo
from prvr.search.manifest import MODEL, SEGMENTS, FileStamp, Manifest
from prvr.search.model import SearchModel
from prvr.search.snapshot import Snapshot
from prvr.search.vectors import Dtype
from prvr.search.windows import check_windows
from prvr.video import StoreHeader

__all__ = ["describe", "make_index"]


def make_index(
    target: Path, model: SearchModel, encoder: StoreHeader, dtype: Dtype, window: float | None, stride: float | None
) -> None:
    """An empty index with a copy of its model, whole or not at all; see `prvr.search.VideoIndex.create`."""
    check_windows(window, stride)
    if dtype not in ("float16", "float32", "int8"):
        raise InputError(f"dtype={dtype!r}: expected float16, float32 or int8")
    if model.identity.frames != encoder.encoder:
        raise DataError(f"the model reads features of {model.identity.frames}, the store holds {encoder.encoder}.")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise DataError(f"{target}: exists and is not empty. Name a new folder, or open the index that is there.")
    with temporary_folder(target) as made:
        (made / MODEL).mkdir()
        (made / SEGMENTS).mkdir()
        model.save(made / MODEL)
        files = {p.name: FileStamp(p.stat().st_size, hash_file(p)) for p in sorted((made / MODEL).iterdir())}
        Manifest(
            index_id=secrets.token_hex(8),
            model=model.identity,
            encoder=encoder,
            dtype=dtype,
            window=window,
            stride=stride,
            dim=model.dim,
            clips=model.clips,
            clip_weight=float(model.clip_weight),
            frame_weight=float(model.frame_weight),
            model_files=files,
            stored=dict(model.stored),
        ).write(made)
        if target.exists():
            target.rmdir()  # empty; not every system renames over it
        if not publish(made, target, lambda _: True):
            raise DataError(f"{target}: another process has just put something there. Open that, or name another.")


def describe(snapshot: Snapshot) -> IndexInfo:
    """What is in an index."""
    about = snapshot.manifest
    videos, size = len(snapshot.video_ids), sum(one.bytes for one in about.segments)
    return IndexInfo(
        videos=videos,
        windows=len(snapshot.live_keys()),
        removed=sum(len(one.removed) for one in about.segments),
        seconds=sum((snapshot.entry(video).duration for video in snapshot.video_ids), 0.0),
        clips=about.clips * sum(one.windows for one in about.segments),
        frames=sum(one.frames for one in about.segments),
        dim=about.dim,
        dtype=about.dtype,
        window=about.window,
        stride=about.stride,
        bytes=size,
        bytes_per_video=size / videos if videos else 0.0,
        segments=len(about.segments),
        model=str(about.model),
        encoder=str(about.encoder.encoder),
        rate=about.encoder.rate,
    )
