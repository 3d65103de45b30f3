"""The files of features in a library: where each lies, and what one has to hold to be believed."""

import hashlib
import io
import json
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from prvr.encoders import FeatureSpec, VideoEntry
from prvr.errors import DataError
from prvr.reading import LARGE, parse_json, parse_record, read_bytes, read_text, short
from prvr_search.films.decode import check_rate

FEATURES, SPEC = "features", "encoder.json"
_LONGEST = 1e10  # seconds: three centuries, since time stamps may count from 1970 or from 1904
_SHA256, _KEY = re.compile("[0-9a-f]{64}"), re.compile("[0-9a-f]{16}")


class FeaturesElsewhere(DataError):
    """The features of a video would be read or written outside the library."""


def is_sha256(value: object) -> bool:
    """Whether a value is a sha256 in hexadecimal, and so can be part of a path."""
    return isinstance(value, str) and _SHA256.fullmatch(value) is not None


def encoder_key(spec: FeatureSpec) -> str:
    """A name for an encoder and the rate of its features, the same for equal ones."""
    values = asdict(spec)
    values["encoder"].pop("name")
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def read_specs(home: Path, rows: Iterable[tuple[Any, Any]]) -> dict[str, FeatureSpec]:
    """The encoders of a library, by key: those in its SQLite file, and those that are noted beside the features.

    What does not fit its own key is left out.

    Args:
        home: the folder of the library.
        rows: keys and JSON, as the SQLite file has them.
    """
    texts = [*rows]
    for path in sorted((home / FEATURES).glob(f"*/{SPEC}")):
        with suppress(DataError, FileNotFoundError):
            texts.append((path.parent.name, read_text(path)))
    specs: dict[str, FeatureSpec] = {}
    for key, text in texts:
        with suppress(ValueError):
            spec = parse_record(FeatureSpec, parse_json(str(text), "spec"), "spec", file_names=True)
            check_rate(spec.rate)
            if encoder_key(spec) == key and 0 <= spec.joint_dim <= spec.dim > 0:
                specs.setdefault(key, spec)
    return specs


def feature_file(home: Path, encoder: object, sha256: object) -> Path:
    """Where the features of a video lie, which is always below `features`.

    Args:
        home: the folder of the library.
        encoder: the key of the encoder.
        sha256: of the video.

    Raises:
        FeaturesElsewhere: the key or the hash is not one, or its folder is a link.
    """
    if not (is_sha256(sha256) and isinstance(encoder, str) and _KEY.fullmatch(encoder)):
        raise FeaturesElsewhere(f"{home}: {short(encoder)} or {short(sha256)} is no key of an encoder or no sha256.")
    path = home / FEATURES / encoder / str(sha256)[:2] / f"{sha256}.npy"
    for place in path.parents[:2]:
        if place.is_symlink():
            raise FeaturesElsewhere(f"{place}: a link, which is not followed. Delete it, or put its target there.")
    return path


def read_rows(path: Path, spec: FeatureSpec) -> tuple[Float32[np.ndarray, "n f"], str]:
    """The features in a file, and the sha256 of the file.

    Raises:
        DataError: the file is missing or damaged, or holds anything but finite rows of the width of the encoder.
    """
    if path.is_symlink():  # what it leads to may be somebody else's
        raise DataError(f"{path}: is a link.")
    try:
        content = read_bytes(path, 8 * LARGE)
        rows = np.load(io.BytesIO(content), allow_pickle=False)
    except Exception as error:  # numpy parses the header as Python, which fails in many ways on other content
        raise DataError(f"{path}: cannot be read ({error}).") from error
    if not isinstance(rows, np.ndarray) or rows.dtype.kind != "f" or rows.ndim != 2 or rows.shape[1] != spec.dim:
        raise DataError(f"{path}: expected a matrix of {spec.dim} columns of floating-point numbers.")
    rows = rows.astype(np.float32)
    if not len(rows) or not np.isfinite(rows).all():
        raise DataError(f"{path}: expected finite numbers, at least one row.")
    return rows, hashlib.sha256(content).hexdigest()


def parse_about(text: object, sha256: str, frames: int) -> dict[str, Any]:
    """The fields of `VideoEntry` that hold for a content, from their JSON; fields that it does not know are ignored.

    Raises:
        DataError: it is no JSON, or a field is missing, or of another type or range.
    """
    values = parse_json(text, "about") if isinstance(text, str) else None
    if not isinstance(values, dict):
        raise DataError(f"about: expected a JSON object, got {short(text)}.")
    fixed = {"id": "", "path": "", "size": 0, "mtime_ns": 0}
    entry = parse_record(VideoEntry, values | fixed | {"sha256": sha256, "frames": frames}, "about", file_names=True)
    if not 0 <= entry.duration < _LONGEST or abs(entry.start_time) > _LONGEST or min(entry.width, entry.height) < 0:
        raise DataError(f"about: a duration, a start or a size that no video has: {short(text)}.")
    return {name: value for name, value in vars(entry).items() if name not in fixed}
