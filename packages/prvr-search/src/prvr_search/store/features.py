"""The files of features in a library: where each lies, and what one has to hold to be believed."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float32

from prvr.data.hashes import digest
from prvr.encoders import FeatureSpec
from prvr.errors import DataError
from prvr.reading import is_unicode, parse_json, parse_record
from prvr_search.films.info import Film, check_rate
from prvr_search.films.subtitles import SubtitleLine
from prvr_search.store.proof import FEATURES, read_proven, stamp_of, write_proven

SUFFIX = ".features"
Features = Float32[np.ndarray, "n f"]
"""A row for each sampled frame."""
NO_ROWS = np.empty((0, 0), np.float32)
DESCRIBED, RECOGNISED = "described", "lines-"
"""The key of films that were described and not encoded, and what the keys of recognisers begin with."""
_LONGEST = 1e10  # seconds: three centuries, since time stamps may count from 1970 or from 1904
_SHA256 = re.compile("[0-9a-f]{64}")
KEY = re.compile(f"({RECOGNISED})?[0-9a-f]{{16}}|{DESCRIBED}")
"""Keys of encoders."""
_NOT_KEPT = {"frame_rate", "base_rate", "comment", "timecode", "digest", "stamp", "spec"}  # fields of `Film`
_PART = 4096  # rows that are compared at a time


class FeaturesUnreachable(DataError):
    """The features of a video can be neither read nor written now: a link leads out, or the system refuses."""


@dataclass(frozen=True)
class FeatureFile:
    """The content of a file of features.

    Args:
        film: what is kept of the video.
        rows: `(n, f)` the features.
        lines: see `Film`.
    """

    film: Film
    rows: Features
    lines: Sequence[SubtitleLine]


@dataclass(frozen=True)
class _Head:
    """What stands before the rows, as JSON; of each line start, end, text, language and, if it has one, the kind."""

    film: Film
    spec: FeatureSpec | None
    type: Literal["<f2", "<f4"]
    lines: tuple[tuple[float, float, str, str] | tuple[float, float, str, str, str], ...]


def is_sha256(value: object) -> bool:
    """Whether a value is a sha256 in hexadecimal, and so can be part of a path."""
    return isinstance(value, str) and _SHA256.fullmatch(value) is not None


def nameless(values: dict[str, Any]) -> dict[str, Any]:
    """Values without the names of models, each of which may lie in two places."""
    inner = {key: nameless(value) if isinstance(value, dict) else value for key, value in values.items()}
    return {key: value for key, value in inner.items() if key != "name"}


@lru_cache
def encoder_key(spec: FeatureSpec | None) -> str:
    """A name for an encoder and the rate of its features, the same for equal ones; `DESCRIBED` without features.

    That of a recogniser, whose features have no width, begins with `RECOGNISED`.
    """
    if spec is None:
        return DESCRIBED
    key = digest(nameless(asdict(spec)))[:16]
    return key if spec.dim else RECOGNISED + key


def check_spec(spec: FeatureSpec | None) -> None:
    """Refuses features that no encoder makes; None are none.

    Raises:
        ValueError: they are.
    """
    if spec is None:
        return
    check_rate(spec.rate)
    if not 0 <= spec.joint_dim <= spec.dim:
        raise ValueError("features of a negative width")


def check_line(line: SubtitleLine) -> None:
    """Refuses a line that no video has.

    Raises:
        ValueError: it is.
    """
    is_kind = line.kind in get_args(SubtitleLine.__annotations__["kind"])
    if not (0 <= line.start <= line.end < _LONGEST and is_unicode(line.text + line.language) and is_kind):
        raise ValueError(f"{line}: expected a start from 0, an end not before it, a text, and `said` or `written`")


def feature_file(home: Path, key: str, sha256: str) -> Path:
    """Where the features of a video lie, which is always below `features`.

    Args:
        home: the folder of the library.
        key: of the encoder, see `KEY`.
        sha256: of the video.

    Raises:
        FeaturesUnreachable: its folder is a link.
    """
    path = home / FEATURES / key / sha256[:2] / f"{sha256}{SUFFIX}"
    for place in path.parents[:2]:
        if place.is_symlink():
            raise FeaturesUnreachable(f"{place}: a link, which is not followed. Delete it, or put its target there.")
    return path


def write_features(
    path: Path,
    film: Film,
    rows: Features,
    lines: Sequence[SubtitleLine],
    *,
    durable: bool = True,
) -> Film:
    """Writes a file of features: in half precision, or in full where that would lose more than rounding.

    The content is a line of JSON and the rows in order, little endian.

    Returns:
        What is kept of the video from now on.
    """
    film = replace(film, frames=len(rows), lines=len(lines))
    array = np.ascontiguousarray(rows, "<f2" if _fits_half(rows) else "<f4")
    head = {
        "film": {name: value for name, value in vars(film).items() if name not in _NOT_KEPT},
        "spec": film.spec,
        "type": array.dtype.str,
        "lines": [astuple(line)[: None if line.kind else -1] for line in lines],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    sha256 = write_proven(
        path, [json.dumps(head, default=vars).encode() + b"\n", array.reshape(-1).view(np.uint8).data], durable=durable
    )
    return replace(film, digest=sha256, stamp=stamp_of(path.stat()))


def read_features(path: Path) -> FeatureFile:
    """The content of a file of features.

    Raises:
        OSError: there is no such file, or the system refuses to read it now.
        DataError: it is damaged, of another video or encoder than its name says, or its rows are not finite.
    """
    stamp = stamp_of(path.lstat())
    content, sha256 = read_proven(path)
    text, _, body = bytes(content).partition(b"\n")
    try:
        head = parse_record(_Head, parse_json(text.decode(), "head"), "head", file_names=True)
        lines, spec = [SubtitleLine(*line) for line in head.lines], head.spec  # pyright: ignore[reportArgumentType]
        film = replace(head.film, digest=sha256, stamp=stamp, spec=spec)
        check_spec(spec)
        if (encoder_key(spec), film.sha256) != (path.parent.parent.name, path.name.removesuffix(SUFFIX)):
            raise ValueError("is of another video or encoder than its name says")
        for line in lines:
            check_line(line)
        if film.lines != len(lines):
            raise ValueError("another number of lines")
        width = 0 if spec is None else spec.dim
        if (film.frames > 0) != (width > 0 and not film.reason) or film.frames < 0:
            raise ValueError("no features and no reason")
        if not 0 <= film.duration < _LONGEST or abs(film.start_time) > _LONGEST or min(film.width, film.height) < 0:
            raise ValueError("a duration, a start or a size that no video has")
        rows = np.frombuffer(body, head.type).reshape(film.frames, width).astype(np.float32)
        if not np.isfinite(rows).all():
            raise ValueError("numbers that are not finite")
    except (ValueError, OverflowError) as error:  # OverflowError: more rows or columns than an array can have
        raise DataError(f"{path}: not as prvr writes it ({error}).") from error
    return FeatureFile(film, rows, lines)


def _fits_half(rows: Features) -> bool:
    """Whether half precision loses no more than rounding; compared in parts, because comparing takes copies."""
    error = 1e-3 * float(max(rows.max(initial=0), -rows.min(initial=0)))
    with np.errstate(over="ignore"):
        return all(
            np.allclose(part.astype(np.float16), part, rtol=1e-3, atol=error)
            for part in (rows[first : first + _PART] for first in range(0, len(rows), _PART))
        )
