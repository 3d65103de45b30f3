"""Features of users' own videos in the public layout: `prvr export` writes them, `prvr convert captions` reads them."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from prvr.corpora.user_captions import plain_ids
from prvr.data.atomic import new_folder
from prvr.data.features import HDF5, Hdf5Reader
from prvr.encoders import FeatureSpec, VideoEntry, VideoFeatures
from prvr.errors import DataError
from prvr.reading import parse_record, read_object

_VIDEOS = "videos.json"


def export_features(features: VideoFeatures, folder: Path | str) -> int:
    """Writes features as a new folder: `feature.hdf5`, a matrix for each video, and `videos.json`, what they are.

    Args:
        features: for example those of `prvr_search.Library.features`.
        folder: new, or empty.

    Returns:
        The number of videos.

    Raises:
        DataError: the folder is not empty, the disk is full, or features cannot be read.
    """
    names = plain_ids(features.video_ids)
    with new_folder(Path(folder).expanduser()) as target:
        with h5py.File(target / HDF5, "w") as file:
            for video, name in names.items():
                file.create_dataset(name, data=features.read(video))
        videos = {name: asdict(features.entries[video]) for video, name in names.items()}
        (target / _VIDEOS).write_text(json.dumps({"spec": asdict(features.spec), "videos": videos}, indent=1) + "\n")
    return len(names)


def is_export(folder: Path) -> bool:
    """Whether a folder was written by `export_features`."""
    return (folder / _VIDEOS).is_file()


def read_export(folder: Path | str) -> VideoFeatures:
    """The features in a folder that `export_features` wrote.

    Raises:
        DataError: a file is missing or damaged.
    """
    folder = Path(folder).expanduser()
    path = folder / _VIDEOS
    body = read_object(path, "Export again.", f"{folder}: no features of prvr export, {_VIDEOS} is missing.")
    try:
        spec = parse_record(FeatureSpec, body.get("spec"), "spec", file_names=True)
        videos: dict[str, Any] = body.get("videos", {})
        entries = {name: parse_record(VideoEntry, record, name, file_names=True) for name, record in videos.items()}
    except ValueError as error:
        raise DataError(f"{path}: cannot be used ({error}). Export again.") from error
    reader = Hdf5Reader(folder / HDF5)
    names = {entry.id: name for name, entry in entries.items()}

    def read(entry: VideoEntry) -> np.ndarray:
        return reader.read(names[entry.id])

    return VideoFeatures(spec, {entry.id: entry for entry in entries.values()}, read, folder)
