"""Takes over a library of before feature files proved themselves. It goes with the first release after 2027-06-30."""

import hashlib
import io
import logging
import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np

from prvr.encoders import FeatureSpec
from prvr.errors import DataError
from prvr.reading import LARGE, parse_record, read_bytes, read_json
from prvr_search.films import Film, VideoPath
from prvr_search.films.listing import prefix_of
from prvr_search.store.features import check_spec, encoder_key, feature_file, is_sha256, write_features
from prvr_search.store.folders import Folder, Folders
from prvr_search.store.proof import FEATURES, sync

logger = logging.getLogger(__name__)
DATABASE, _SPEC = "library.sqlite", "encoder.json"
_STEPS = 300_000_000  # of SQLite, more than any library needs
_UNREADABLE = (sqlite3.DatabaseError, ValueError, OverflowError)


def take_over(home: Path, folders: Folders, old: Path) -> int | None:
    """Writes what a library in the old format holds in the new one; nothing is encoded, and no file is replaced.

    Features, folders and places are taken over; films are described again when they are seen. Nothing is believed that
    can be checked. It may be called again after an interruption.

    Args:
        home: the folder of the library.
        folders: what it knows of folders.
        old: the folder of the library in the old format; if it is the same, the old files go.

    Returns:
        The number of videos with features; None where there is no library in the old format.

    Raises:
        OSError: the library cannot be written.
    """
    encoders = sorted(path for path in (old / FEATURES).glob(f"*/{_SPEC}") if not path.parent.is_symlink())
    if not encoders and not (old / DATABASE).is_file():
        return None
    tables = _tables(old / DATABASE)
    hashes = {(sha256, key): digest for sha256, key, digest in tables["features"]}
    count, specs = 0, dict[str, FeatureSpec]()
    for path in encoders:
        with suppress(ValueError, FileNotFoundError):
            spec = parse_record(FeatureSpec, read_json(path), "spec", file_names=True)
            check_spec(spec)
            if encoder_key(spec) == (key := path.parent.name):
                specs[key] = spec
    for key, spec in specs.items():
        for path in sorted((old / FEATURES / key).glob("??/*.npy")):
            sha256 = path.stem
            if not is_sha256(sha256) or any(place.is_symlink() for place in (path, *path.parents[:2])):
                continue
            try:
                rows = _rows(path, spec, hashes.get((sha256, key)))
            except Exception as error:  # numpy parses the header as Python, which fails in many ways on other content
                logger.warning("%s: not taken over (%s)", path, error)
                continue
            if not (target := feature_file(home, key, sha256)).exists():
                write_features(target, Film(sha256, spec=spec), rows, (), durable=False)  # it is described again
            count += 1
            if old == home:
                path.unlink()
    _places(tables, folders, specs)
    sync()
    if old == home:
        for path in (*encoders, old / FEATURES / "folders.json"):
            path.unlink(missing_ok=True)
        for path in old.glob(f"{DATABASE}*"):
            path.rename(path.with_name(f"old-{path.name}"))
    return count


def _tables(file: Path) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of the tables, as far as they can be read; SQLite follows no journal, view or trigger."""
    columns = {
        "features": "sha256, encoder, hash",
        "places": "path, size, mtime_ns, volume, sha256",
        "folders": "path, encoder",
    }
    tables: dict[str, list[tuple[Any, ...]]] = {name: [] for name in columns}
    blocks, kinds = iter(range(_STEPS // 1_000_000)), dict[str, bool]()
    with (
        suppress(*_UNREADABLE),
        closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as connection,
    ):
        connection.text_factory = lambda text: text.decode("utf-8", "replace")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.set_progress_handler(lambda: next(blocks, None) is None, 1_000_000)
        kinds |= dict(connection.execute("SELECT name, type = 'table' AND sql LIKE 'CREATE TABLE%' FROM sqlite_master"))
        for name, names in columns.items():
            if kinds.get(name):
                with suppress(*_UNREADABLE):
                    tables[name] += connection.execute(f"SELECT {names} FROM {name}")
    if kinds and not {"encoders", "features", "places"} & kinds.keys():
        raise DataError(f"{file}: the database of another program. Choose another folder with --library.")
    return tables


def _rows(path: Path, spec: FeatureSpec, digest: object) -> np.ndarray:
    content = read_bytes(path, 8 * LARGE)
    if digest is not None and hashlib.sha256(content).hexdigest() != digest:
        raise DataError("does not match its hash")
    rows = np.load(io.BytesIO(content), allow_pickle=False)
    is_matrix = rows.dtype.kind == "f" and rows.shape == (len(rows) or 1, spec.dim)
    if not is_matrix or not np.isfinite(rows := rows.astype(np.float32)).all():
        raise DataError(f"expected a matrix of {spec.dim} columns and finite numbers")
    return rows


def _places(tables: dict[str, list[tuple[Any, ...]]], folders: Folders, specs: dict[str, FeatureSpec]) -> None:
    """Notes the folders that were searched and where videos were seen below each."""
    for path, key in tables["folders"]:
        if not isinstance(path, bytes) or not (root := Path(os.fsdecode(path))).is_absolute():
            continue
        prefix, places = prefix_of(root), list[VideoPath]()
        for place, size, mtime_ns, volume, sha256 in tables["places"]:
            name = os.fsdecode(place) if isinstance(place, bytes) else ""
            is_ours = name.startswith(prefix) and os.path.normpath(name) == name and "\0" not in name
            if is_ours and is_sha256(sha256) and isinstance(size, int) and isinstance(mtime_ns, int):
                places.append(VideoPath(name[len(prefix) :], name, size, mtime_ns, str(volume), sha256=sha256))
        folders.add(Folder(root, specs.get(str(key)), {video.state: video for video in places}))
