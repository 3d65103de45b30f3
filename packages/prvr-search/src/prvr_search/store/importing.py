"""Taking over the features of another library, of which nothing is believed that can be checked."""

import logging
import os
import time
from pathlib import Path

from prvr.errors import DataError
from prvr.reading import printable
from prvr_search.store.arrays import feature_file, is_sha256, parse_about, read_rows, read_specs
from prvr_search.store.database import FILE, LibraryUnwritable, OtherDatabase
from prvr_search.store.lines import lines_of
from prvr_search.store.storage import Fault, Storage, is_place

logger = logging.getLogger(__name__)
_LONGEST = 1000  # characters of the reason of a fault, or of the name of a volume


def import_library(storage: Storage, home: Path) -> tuple[int, int]:
    """Takes over the features of another library, in which nothing is changed; no file of this one is replaced.

    Args:
        storage: the library that gets them.
        home: the folder of the other one.

    Returns:
        The number of videos that are new here, and of those that were skipped: the file of their features is missing,
        does not match its hash, or does not hold finite rows of the width of their encoder.

    Raises:
        DataError: there is no library, or it cannot be read; nothing is taken over then.
    """
    home = home.expanduser().absolute()
    with OtherDatabase(home / FILE) as database:
        specs = read_specs(home, database.read("SELECT key, spec FROM encoders"))
        about = dict(database.read("SELECT sha256, about FROM videos"))
        features = {row[:2]: row[2:] for row in database.read("SELECT sha256, encoder, frames, hash FROM features")}
        faults = {row[:2]: row[2:] for row in database.read("SELECT sha256, encoder, reason, remedy FROM faults")}
        places = set(database.read("SELECT path, size, mtime_ns, volume, seen, sha256 FROM places"))
        folders = [*database.read("SELECT path, encoder, named FROM folders")]
        hashes = {key: {*storage.encoded(key)} for key in specs}
        videos, skipped = set[str](), set[object]()
        for (sha256, key), (frames, digest) in features.items():
            if sha256 in hashes.get(key, ()):
                continue
            try:
                path = feature_file(home, key, sha256)
                if key not in specs:
                    raise DataError(f"{path}: unknown encoder.")
                rows, hash_now = read_rows(path, specs[key])
                if (len(rows), hash_now) != (frames, digest):
                    raise DataError(f"{path}: does not match its hash.")
                if storage.has_features(key, sha256):
                    hashes[key].add(sha256)
                    continue
                if os.path.lexists(mine := feature_file(storage.home, key, sha256)):
                    raise DataError(f"{mine}: is damaged and was not replaced.")
            except LibraryUnwritable:
                raise
            except DataError as error:
                logger.info("skipped: %s", printable(str(error)))
                skipped.add(sha256)
                continue
            storage.add_encoder(specs[key])
            if database.version > 1 and (lines := lines_of(database.read, sha256)):
                storage.lines.add(sha256, lines)
            try:
                details = parse_about(about.get(sha256), sha256, frames)
            except DataError:
                details = None
            storage.add(key, sha256, rows, details)
            hashes[key].add(sha256)
            videos.add(sha256)
    contents = {sha256 for shas in hashes.values() for sha256 in shas}
    reasons = {
        (sha256, key): Fault(reason, remedy)
        for (sha256, key), (reason, remedy) in faults.items()
        if key in specs and is_sha256(sha256) and sha256 not in contents and _is_text(reason) and _is_text(remedy)
    }
    contents |= {sha256 for sha256, _ in reasons}
    storage.take_over(
        [
            (*place, volume, min(seen, time.time()), sha256)
            for *place, volume, seen, sha256 in places
            if sha256 in contents and is_place(*place) and _is_text(volume) and isinstance(seen, float)
        ],
        [folder for folder in folders if is_place(folder[0]) and hashes.get(folder[1]) and folder[2] in (0, 1)],
        reasons,
    )
    return len(videos), len(skipped - videos)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST and value.isprintable()
