"""Verification: reads all of an index and lists what is wrong with it."""

from pathlib import Path

import numpy as np

from prvr.errors import DataError
from prvr.search.manifest import MANIFEST, MEND, MODEL, SEGMENTS, Manifest
from prvr.search.opening import check_copy
from prvr.search.segments import Segment, check_files
from prvr.search.snapshot import Snapshot
from prvr.search.vectors import PackedRows, unpack_rows

_BLOCK = 1 << 14  # vectors that are read together
_TOLERANCE = {"float16": 2e-3, "float32": 1e-4, "int8": 1e-4}
"""Largest difference of a vector's length from 1; numbers are rounded, scales are not."""


def verify_index(folder: Path | str) -> tuple[str, ...]:
    """The problems of an index, each a message that names a file; none if all is well.

    Compares the hash of every file that the manifest names, and checks that tables and vectors are possible, that they
    agree with each other, and that the copy of the model is the one that made the vectors. An index that is too damaged
    to be opened can be verified too.

    Args:
        folder: the folder of the index.
    """
    root = Path(folder).expanduser()
    try:
        manifest = Manifest.read(root)
    except DataError as error:
        return (str(error),)
    problems = _model_problems(root, manifest)
    opened: list[Segment] = []
    for record in manifest.segments:
        if found := check_files(root / SEGMENTS / record.name, record.files):
            problems += found
            continue
        try:
            opened.append(Segment.open(root, manifest, record))
            problems += _vector_problems(root / SEGMENTS / record.name, manifest, opened[-1])
        except DataError as error:
            problems.append(str(error))
    if len(opened) == len(manifest.segments):
        problems += Snapshot(root, manifest, tuple(opened)).contradictions()
    return tuple(problems)


def _model_problems(root: Path, manifest: Manifest) -> list[str]:
    """What is wrong with the copy of the model."""
    if problems := check_files(root / MODEL, manifest.model_files):
        return problems
    try:
        score = check_copy(root / MODEL, manifest.model, manifest.encoder)
    except DataError as error:
        return [str(error)]
    if score != manifest.score:
        return [f"{root / MANIFEST}: names {manifest.score}, its model has {score}. {MEND}"]
    return []


def _vector_problems(folder: Path, manifest: Manifest, segment: Segment) -> list[str]:
    """Files of a segment, whose hashes are right, that hold a vector that is neither of unit length nor zero."""
    return [
        f"{folder / name}.npy: holds a vector that is not of length 1. {MEND}"
        for name, rows in segment.sets.items()
        if not _all_unit(rows.packed, _TOLERANCE[manifest.dtype])
    ]


def _all_unit(rows: PackedRows, tolerance: float) -> bool:
    for first in range(0, len(rows), _BLOCK):
        lengths = np.linalg.norm(unpack_rows(rows[first : first + _BLOCK]), axis=1)
        if not ((np.abs(lengths - 1) <= tolerance) | (lengths == 0)).all():
            return False
    return True
