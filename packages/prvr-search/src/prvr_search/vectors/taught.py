"""What `prvr teach` keeps for a folder and an encoder: a correction of the encoder, and whether it is better."""

import base64
import hashlib
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from prvr.data.atomic import replace_file
from prvr.data.hashes import read_signed, signed
from prvr.encoders import FeatureSpec
from prvr.errors import DataError
from prvr.reading import parse_record
from prvr_search.store.features import encoder_key
from prvr_search.store.store import Store

_FORMAT = 1
_MEND = "Delete this file, or replace it with prvr teach once it is deleted."


@dataclass(frozen=True)
class Taught:
    """A map of rows of unit length in the joint space, x to x W^T + b, fitted to captions of some videos.

    Args:
        folder: the folder of videos, absolute.
        encoder: the key of the features.
        captions, videos: how many captions, of how many videos.
        zero_shot, taught: SumR of these captions, each in a map that was fitted without its video.
        better: whether the second was shown to be higher.
        dim: width d of the joint space.
        map: base64 of `(d + 1, d)` float32, little endian: W^T, then b.
    """

    folder: str
    encoder: str
    captions: int
    videos: int
    zero_shot: float
    taught: float
    better: bool
    dim: int
    map: str

    @cached_property
    def matrix(self) -> Float32[np.ndarray, "e d"]:
        """W^T and b, `(d + 1, d)`.

        Raises:
            ValueError: `map` holds something else.
        """
        matrix = np.frombuffer(base64.b64decode(self.map, validate=True), "<f4").reshape(self.dim + 1, self.dim)
        if not np.isfinite(matrix).all():
            raise ValueError("expected finite numbers")
        return matrix.astype(np.float32)

    @cached_property
    def sha256(self) -> str:
        """Tells the map from any other."""
        return hashlib.sha256(self.matrix.tobytes()).hexdigest()

    def __call__(self, rows: Float32[np.ndarray, "n d"]) -> Float32[np.ndarray, "n d"]:
        """Rows of unit length, mapped."""
        return rows @ self.matrix[:-1] + self.matrix[-1]

    def __str__(self) -> str:
        change = f"SumR {self.taught:.1f}, zero-shot {self.zero_shot:.1f}"
        use = "search uses them" if self.better else "not significantly better, so search is zero-shot"
        return f"{self.captions:,} captions of {self.videos:,} videos ({change}): {use}"


def taught_file(storage: Store, folder: Path, spec: FeatureSpec) -> Path:
    """Where the map of a folder lies, beside the features.

    Raises:
        DataError: links lead out of the library.
    """
    name = hashlib.sha256(str(folder).encode("utf-8", "surrogateescape")).hexdigest()
    return storage.home / "folders" / f"{name}-{encoder_key(spec)}.taught"


def read_taught(storage: Store, folder: Path, spec: FeatureSpec) -> Taught | None:
    """The map of a folder and an encoder; None if there is none.

    Raises:
        DataError: the file is damaged, or was made for something else.
    """
    path = taught_file(storage, folder, spec)
    if not path.exists():
        return None
    values = read_signed(path, range(_FORMAT, _FORMAT + 1), _MEND, f"{path}: no such file.")
    taught = parse_record(Taught, values, str(path), file_names=True)
    expected = (str(folder), encoder_key(spec), spec.joint_dim)
    if (taught.folder, taught.encoder, taught.dim) != expected:
        raise DataError(f"{path}: was made for another folder or encoder. {_MEND}")
    try:
        taught.matrix  # noqa: B018
    except ValueError as error:
        raise DataError(f"{path}: map: {error}. {_MEND}") from error
    return taught


def write_taught(storage: Store, folder: Path, spec: FeatureSpec, taught: Taught) -> None:
    """Replaces the map of a folder and an encoder.

    Raises:
        DataError: the library cannot be written.
    """
    path = taught_file(storage, folder, spec)
    content = signed({"format": _FORMAT, **asdict(taught)})
    with storage.in_use(), storage.writable():
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, lambda file: file.write(content.encode()))


def forget_taught(storage: Store, folder: Path, spec: FeatureSpec) -> bool:
    """Deletes the map of a folder and an encoder; False if there is none.

    Raises:
        DataError: the file is damaged, or the library cannot be written.
    """
    if read_taught(storage, folder, spec) is None:
        return False
    with storage.in_use(), storage.writable():
        taught_file(storage, folder, spec).unlink(missing_ok=True)
    return True
