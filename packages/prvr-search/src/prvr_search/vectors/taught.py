"""What `prvr teach` keeps for a folder and an encoder: a map of the encoder's rows, and whether it is better."""

import base64
import hashlib
import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from prvr.encoders import FeatureSpec
from prvr.errors import DataError
from prvr.reading import parse_json, parse_record
from prvr_search.store.features import encoder_key
from prvr_search.store.proof import read_proven, write_proven

_MEND = "Run prvr teach FOLDER CAPTIONS.csv again, or prvr teach FOLDER --forget."


Map = Float32[np.ndarray, "d d"]
"""W^T: a row x becomes x W^T."""


@dataclass(frozen=True)
class Taught:
    """A map of rows of unit length in the joint space, x to x W^T, and what it was derived from.

    Args:
        digest: the sha256 of the captions, each with its video and moments.
        captions, videos: how many captions, of how many videos.
        zero_shot, taught: SumR of captions, each in a map that was fitted without its video.
        better: whether the second was shown to be higher.
        map: base64 of W^T, `(d, d)` float32, little endian.
        encoder: the name of its file, which tells the folder and the encoder; earlier, the key of the encoder.
    """

    digest: str
    captions: int
    videos: int
    zero_shot: float
    taught: float
    better: bool
    map: str
    encoder: str = ""

    @cached_property
    def matrix(self) -> Map:
        """W^T."""
        entries = np.frombuffer(base64.b64decode(self.map), "<f4").astype(np.float32)
        return entries.reshape(-1, round(len(entries) ** 0.5))

    @cached_property
    def sha256(self) -> str:
        """Tells the map from any other."""
        return hashlib.sha256(self.matrix.tobytes()).hexdigest()

    def __str__(self) -> str:
        change = f"SumR {self.taught:.1f}, zero-shot {self.zero_shot:.1f}"
        use = "search uses them" if self.better else "not significantly better, so search is zero-shot"
        return f"{self.captions:,} captions of {self.videos:,} videos ({change}): {use}"


def taught_file(folder: Path, spec: FeatureSpec) -> Path:
    """Where the map of an encoder lies: beside the file of what a library knows of its folder."""
    return folder.with_suffix(f".{encoder_key(spec)}.taught")


def read_taught(path: Path, spec: FeatureSpec) -> Taught | None:
    """The map of an encoder, of its file; None if there is none.

    Raises:
        DataError: the file is damaged, or was made for something else.
    """
    try:
        values = parse_json(bytes(read_proven(path)[0]).decode("utf-8", "replace"), str(path))
    except FileNotFoundError:
        return None
    except (DataError, OSError) as error:
        raise DataError(f"{error} {_MEND}") from error
    taught = parse_record(Taught, values, str(path))
    with suppress(ValueError):  # not a square
        fits = taught.encoder in (path.name, encoder_key(spec)) and taught.matrix.shape == (spec.joint_dim,) * 2
        if fits and np.isfinite(taught.matrix).all():
            return taught
    raise DataError(f"{path}: expected a finite map of this folder and encoder. {_MEND}")


def write_taught(path: Path, taught: Taught) -> None:
    """Replaces the map of a file.

    Raises:
        OSError: the library cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_proven(path, [json.dumps(asdict(taught) | {"encoder": path.name}).encode()])
