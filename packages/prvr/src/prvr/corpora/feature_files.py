"""Features in files of one video or one query each, `.npy`, `.npz` or `.pt`, and a corpus of them with its captions."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32

from prvr.corpora.annotations import Conversion
from prvr.corpora.caption_corpus import Words, write_captions
from prvr.corpora.corpus_encoders import Progress
from prvr.corpora.user_captions import SplitShares, UserCaption
from prvr.data.features import is_matrix
from prvr.data.hashes import hash_file
from prvr.encoders import FeatureSpec, Identity, TextFeaturizer, VideoEntry, VideoFeatures
from prvr.errors import DataError
from prvr.reading import short

SUFFIXES = (".npy", ".npz", ".pt", ".pth")
_MOST = 20


@dataclass(frozen=True)
class FeatureFiles:
    """The files of a folder, by the path below it without the suffix, the rows of each, and the width of all."""

    folder: Path
    paths: Mapping[str, Path]
    rows: Mapping[str, int]
    dim: int


def convert_features(
    folder: Path | str,
    captions: Path | str,
    queries: Path | str | TextFeaturizer,
    output: Path | str,
    *,
    rate: float | None = None,
    shares: SplitShares | None = None,
    progress: Progress | None = None,
) -> Conversion:
    """Writes a corpus of features that were computed elsewhere, whole or not at all.

    Args:
        folder: a file for each video, named as the captions name the video: `VIDEO.npy`, `.npz` or `.pt`, a matrix of
            any width with a row for each frame in order of time.
        captions: a table that [read_user_captions][prvr.corpora.read_user_captions] reads.
        queries: a folder with a file for each caption, `ID.npy`, `.npz` or `.pt`, ID being the column `id` of the
            table: a row for each word, or one row; or an encoder of the captions.
        output: `ROOT/COLLECTION`, the new corpus.
        rate: rows per second, from which the lengths of the videos follow; needed only if captions have times.
        shares: the shares of the splits, if the table has no column `split`; default:
            [SplitShares][prvr.corpora.SplitShares]().
        progress: called with (captions and videos done, in all).

    Raises:
        DataError: files and lines that cannot be used, up to 20 of each by name; otherwise as
            [convert_captions][prvr.corpora.caption_corpus.convert_captions].

    Examples:
        >>> convert_features("features", "captions.csv", "words", "data/mine", rate=1.5)  # doctest: +SKIP
    """
    files = list_features(folder)
    spec = FeatureSpec(Identity(str(files.folder), "unknown", "unknown"), rate or nan, files.dim, 0)
    entries = {
        name: VideoEntry(
            *(name, str(path.absolute()), path.stat().st_size, path.stat().st_mtime_ns, hash_file(path)),
            *(files.rows[name] / spec.rate, files.rows[name], 0, 0, ""),
        )
        for name, path in files.paths.items()
    }
    store = VideoFeatures(spec, entries, lambda entry: read_features(files.paths[entry.id]), files.folder)
    words = _words(queries) if isinstance(queries, str | Path) else lambda caption: (queries.words(caption.text), None)
    about = {"generator": "prvr convert features", "version": 1}
    return write_captions(captions, store, words, output, about, shares=shares, progress=progress)


def _words(folder: Path | str) -> Words:
    files = list_features(folder)

    def words(caption: UserCaption) -> tuple[np.ndarray, None]:
        if not caption.id:
            raise DataError(f"no id, so it is unknown which file of {files.folder} it has: fill the column id")
        if caption.id not in files.paths:
            raise DataError(f"no file {caption.id}.npy, .npz or .pt in {files.folder}")
        return read_features(files.paths[caption.id]), None

    return words


def list_features(folder: Path | str) -> FeatureFiles:
    """The feature files below a folder, each read once and checked.

    Raises:
        DataError: there are none, or some cannot be used; names up to 20 of them, with what they hold.
    """
    folder = Path(folder).expanduser()
    files = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    if not files:
        raise DataError(f"{folder}: no .npy, .npz or .pt file in it. Expected one for each video or caption.")
    paths = dict[str, Path]()
    rows = dict[str, int]()
    problems = list[str]()
    dim = 0
    for path in files:
        name = path.relative_to(folder).with_suffix("").as_posix()
        try:
            matrix = read_features(path)
        except DataError as error:
            problems.append(str(error))
            continue
        dim = dim or matrix.shape[1]
        if name in paths:
            problems.append(f"{path}: {paths[name].name} has the same name. Keep one of them.")
        elif matrix.shape[1] != dim:
            problems.append(f"{path}: got width {matrix.shape[1]}, expected {dim} as in {next(iter(paths.values()))}.")
        else:
            paths[name], rows[name] = path, len(matrix)
    if problems:
        more = f" And {len(problems) - _MOST} more." if len(problems) > _MOST else ""
        raise DataError(
            f"{len(problems)} of {len(files)} files. {' '.join(problems[:_MOST])}{more} Nothing was written."
        )
    return FeatureFiles(folder, paths, rows, dim)


def read_features(path: Path) -> Float32[np.ndarray, "n f"]:
    """The matrix in a `.npy`, `.npz` or `.pt` file, as float32; one row of numbers is a matrix of one row.

    A `.npz` file holds one array; a `.pt` file a tensor, or a dictionary of one. No code in a file is run: files that
    hold other Python objects are refused.

    Raises:
        DataError: the file cannot be read, or holds something else; says what.
    """
    expected = "expected a matrix of finite numbers (rows, width)"
    try:
        if path.suffix in (".pt", ".pth"):
            value: Any = torch.load(path, map_location="cpu", weights_only=True)
        else:
            value = np.load(path, allow_pickle=False)
            value = dict(value) if isinstance(value, np.lib.npyio.NpzFile) else value
        if isinstance(value, Mapping):
            if len(value) != 1:
                raise DataError(f"{path}: got {len(value)} arrays, {short(list(value))}; expected one.")
            (value,) = value.values()
        if isinstance(value, torch.Tensor):
            value = (value.float() if value.is_floating_point() else value).numpy()
    except DataError:
        raise
    except Exception as error:  # numpy and torch raise many kinds for a damaged or a foreign file
        raise DataError(f"{path}: cannot be read ({short(str(error).splitlines()[0], 200)}); {expected}.") from error
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiu":
        got = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
        raise DataError(f"{path}: got {got}, {expected}.")
    matrix = np.asarray(value, np.float32)
    if matrix.size and is_matrix((1, *matrix.shape)):
        matrix = matrix.reshape(-1, matrix.shape[-1])
    if matrix.ndim != 2 or not matrix.size:
        raise DataError(f"{path}: got shape {value.shape}, {expected}.")
    finite = np.isfinite(matrix).all(1)
    if not finite.all():
        raise DataError(f"{path}: NaN or infinity in row {int(finite.argmin())}, {expected}.")
    return matrix
