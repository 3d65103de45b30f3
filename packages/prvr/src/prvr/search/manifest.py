"""The one file that says what an index is: replaced whole, it names the segments that count."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from prvr.data.atomic import is_real_folder, replace_file
from prvr.data.errors import DataError
from prvr.data.store import digest
from prvr.search.model import ModelIdentity
from prvr.search.vectors import Dtype
from prvr.video import Identity, StoreHeader

__all__ = ["MANIFEST", "MODEL", "SEGMENTS", "FileStamp", "Manifest", "SegmentRecord"]

FORMAT = 1
MANIFEST, MODEL, SEGMENTS = "index.json", "model", "segments"


@dataclass(frozen=True)
class FileStamp:
    """A file as it must be."""

    size: int
    sha256: str


@dataclass(frozen=True)
class SegmentRecord:
    """A segment as it must be, and what of it does not count any more.

    Args:
        name: of its folder: a hash of its files.
        files: by name.
        videos, windows, frames: how many, those that were removed included.
        removed: numbers of its videos that do not count any more, in ascending order.
    """

    name: str
    files: Mapping[str, FileStamp]
    videos: int
    windows: int
    frames: int
    removed: tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        """Of all its files."""
        return sum(file.size for file in self.files.values())

    @property
    def live(self) -> int:
        """Videos that count."""
        return self.videos - len(self.removed)


@dataclass(frozen=True)
class Manifest:
    """What an index is.

    Args:
        index_id: random, fixed when the index is made.
        model: that made the vectors.
        encoder: of the features that the model read.
        dtype: of vectors on disk.
        window, stride: in seconds; None: videos are not cut.
        dim: width of the vectors.
        clips: of each window.
        clip_weight, frame_weight: of the score.
        model_files: of the copy of the model.
        next_key: that no window has had yet.
        segments: in the order in which they were made.
    """

    index_id: str
    model: ModelIdentity
    encoder: StoreHeader
    dtype: Dtype
    window: float | None
    stride: float | None
    dim: int
    clips: int
    clip_weight: float
    frame_weight: float
    model_files: Mapping[str, FileStamp]
    next_key: int = 0
    segments: tuple[SegmentRecord, ...] = ()

    def without(self, removed: Mapping[str, set[int]]) -> "Manifest":
        """The same with more videos, numbers by segment, that do not count.

        Segments without a video that counts are left out.
        """
        records = [
            replace(one, removed=tuple(sorted({*one.removed, *removed.get(one.name, ())}))) for one in self.segments
        ]
        return replace(self, segments=tuple(one for one in records if one.live))

    def write(self, folder: Path) -> None:
        """Puts it in the place of the one before, in one step."""
        body: dict[str, Any] = {"format": FORMAT, "index": asdict(self)}
        body["sha256"] = digest(body)
        text = json.dumps(body, indent=1) + "\n"
        replace_file(folder / MANIFEST, lambda file: file.write(text.encode()))

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """That of an index.

        Raises:
            DataError: there is none, it is damaged, or of another format; or its segments are no folder in it.
        """
        path = folder / MANIFEST
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            if body["format"] != FORMAT:
                raise DataError(f"{path}: format {body['format']}, this version reads {FORMAT}. {_MEND}")
            if body["sha256"] != digest(body):
                raise DataError(f"{path}: does not match its own hash: it was edited or damaged. {_MEND}")
            found = _parsed(body["index"])
        except FileNotFoundError:
            raise DataError(f"{folder}: no index, it has no {MANIFEST}. Make one: prvr index add.") from None
        except DataError:
            raise
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: cannot be read ({error!r}). {_MEND}") from error
        if not is_real_folder(segments := folder / SEGMENTS):
            what = "a symbolic link" if segments.is_symlink() else "none"
            raise DataError(f"{segments}: expected a folder of the index, found {what}. Put the folder itself there.")
        return found


def _parsed(about: dict[str, Any]) -> Manifest:
    model, encoder = about["model"], about["encoder"]
    identities = {key: Identity(**model[key]) for key in ("frames", "text")}
    return Manifest(
        **about
        | {
            "model": ModelIdentity(**model | identities),
            "encoder": StoreHeader(**encoder | {"encoder": Identity(**encoder["encoder"])}),
            "model_files": _stamps(about["model_files"]),
            "segments": tuple(
                SegmentRecord(**one | {"files": _stamps(one["files"]), "removed": tuple(one["removed"])})
                for one in about["segments"]
            ),
        }
    )


def _stamps(files: Mapping[str, Any]) -> dict[str, FileStamp]:
    return {name: FileStamp(**stamp) for name, stamp in files.items()}


_MEND = "Put back a copy of it, or delete the index and make it anew."
