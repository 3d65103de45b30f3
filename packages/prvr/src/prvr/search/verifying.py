"""Reads all of an index and says what is wrong with it."""

from pathlib import Path

import numpy as np

from prvr.errors import DataError
from prvr.search.manifest import MANIFEST, MEND, MODEL, SEGMENTS, Manifest
from prvr.search.opening import check_copy
from prvr.search.segments import Segment, check_files
from prvr.search.snapshot import Snapshot
from prvr.search.vectors import PackedRows, unpack_rows

__all__ = ["verify_index"]

_BLOCK = 1 << 14  # vectors that are looked at together
_LENGTH = {"float16": 2e-3, "float32": 1e-4, "int8": 1e-4}
"""How far the length of a vector may be from 1: numbers are rounded, scales are not."""


def verify_index(folder: Path | str) -> tuple[str, ...]:
    """What is wrong with an index: each message names a file. Nothing, if all is well.

    Compares the hash of every file that the manifest names, whether all tables and vectors can be, whether they agree
    with each other, and whether the copy of the model is that of the vectors. Works where the index is too damaged to
    be opened.

    Args:
        folder: of the index.
    """
    root = Path(folder).expanduser()
    try:
        manifest = Manifest.read(root)
    except DataError as error:
        return (str(error),)
    said = check_files(root / MODEL, manifest.model_files) or _model(root, manifest)
    opened: list[Segment] = []
    for record in manifest.segments:
        there = root / SEGMENTS / record.name
        wrong = check_files(there, record.files)
        if not wrong:
            try:
                opened.append(Segment.open(root, manifest, record))
                wrong = _vectors(there, manifest, opened[-1])
            except DataError as error:
                wrong = [str(error)]
        said += wrong
    if len(opened) == len(manifest.segments):
        said += Snapshot(root, manifest, tuple(opened)).contradictions()
    return tuple(said)


def _model(root: Path, manifest: Manifest) -> list[str]:
    try:
        score = check_copy(root / MODEL, manifest.model, manifest.encoder)
    except DataError as error:
        return [str(error)]
    if score != manifest.score:
        return [f"{root / MANIFEST}: tells of {manifest.score}, its model of {score}. {MEND}"]
    return []


def _vectors(folder: Path, manifest: Manifest, segment: Segment) -> list[str]:
    """Files of vectors, whose hashes are right, that hold one that is neither of unit length nor zero."""
    return [
        f"{folder / name}.npy: holds a vector that is not of length 1. {MEND}"
        for name, rows in segment.sets.items()
        if not all(
            _unit(rows.packed[at : at + _BLOCK], _LENGTH[manifest.dtype]) for at in range(0, len(rows.packed), _BLOCK)
        )
    ]


def _unit(rows: PackedRows, tolerance: float) -> bool:
    lengths = np.linalg.norm(unpack_rows(rows), axis=1)
    return bool(((np.abs(lengths - 1) <= tolerance) | (lengths == 0)).all())
