"""The upkeep of a library: what is gone is deleted, another one is taken in, all of it is moved."""

import errno
import logging
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from prvr.data.atomic import ABANDONED_AFTER, LOCK, clear_half_written, replace_file, user_data
from prvr.data.hashes import hash_file
from prvr.errors import DataError, unknown_name
from prvr_search.films import Film, VideoPath
from prvr_search.films.listing import below, volume_of
from prvr_search.store.features import encoder_key, feature_file, read_features
from prvr_search.store.folders import Folders, State
from prvr_search.store.proof import FEATURES, FOLDERS, MOVED, moved_to, parts_of, sync
from prvr_search.store.store import CHANGED, CLAIMS, Store, feature_files

logger = logging.getLogger(__name__)


def prune(
    store: Store, folder: Path, videos: Sequence[VideoPath], unlisted: Sequence[Path] = ()
) -> tuple[list[Film], int, int]:
    """Deletes what is kept of videos that were seen below a folder, are gone now, and were seen nowhere else.

    Files that are not known yet are read first, for one may have been renamed. What is on a disk that is not there,
    or may be in what cannot be read, is kept, and so is what was never seen.

    Args:
        folder: the folder.
        videos: the videos that it holds now, and those of other folders that a video may have been moved to.
        unlisted: what of the folder cannot be listed.

    Returns:
        What was deleted, of how many videos, and how many are kept because it is not known whether they are gone.

    Raises:
        DataError: another process uses the library, or what is known of a folder was damaged.
    """
    if damaged := [*(store.home / FOLDERS).glob("*.damaged")]:
        raise DataError(
            f"{damaged[0]}: nothing was deleted, since it is not known what lies in a folder that was searched. "
            "Search all folders again, or delete this file."
        )
    with store.alone():
        states = {video.state for video in videos}
        records = {state for record in store.folders.all() for state in record.places}
        missing, unreachable = dict[State, str](), set[str]()
        for state, place in store.folders.places(folder).items():
            if state in states or below(place.path, unlisted):
                continue
            if volume_of(place.path) != place.volume:
                unreachable.add(place.sha256)
            else:
                missing[state] = place.sha256
        sizes, renamed, unread = {size for _, size, _ in missing}, list[VideoPath](), set[int]()
        for video in videos:
            if video.size in sizes and video.state not in records:
                with suppress(OSError):
                    sha256 = hash_file(video.path)
                    if video.unchanged:
                        renamed.append(video._replace(sha256=sha256))
                        continue
                unread.add(video.size)
        if any(map(_may_be_there, unlisted)):
            unread = sizes
        unreachable |= {sha256 for (_, size, _), sha256 in missing.items() if size in unread}
        store.folders.see(folder, [video for video in renamed if below(video.path, [folder])])
        store.folders.forget([state for state, sha256 in missing.items() if sha256 not in unreachable])
        seen = {place.sha256 for record in store.folders.all() for place in record.places.values()}
        seen |= {video.sha256 for video in renamed}  # in another folder, too
        unused = {*missing.values()} - seen
        films = [film for of_key in store.by_key().values() for film in of_key.values() if film.sha256 in unused]
        store.delete(films)
        store.lines.forget(unused)
        for place in (store.home / FEATURES).glob("*/??"):
            if not (place.is_symlink() or place.parent.is_symlink()):
                clear_half_written(place, older_than=ABANDONED_AFTER)
        return films, len(unused), len(unreachable)


def drop_encoder(store: Store, name: str, kept: str = "") -> int:
    """Deletes what encoders or recognisers of a name have made of all videos.

    Args:
        name: the name of the encoders or recognisers.
        kept: the key of one of them that stays.

    Returns:
        The number of features, one for each video and key.

    Raises:
        DataError: there is no such encoder, a folder is still searched with it, or another process uses the
            library.
    """
    with store.alone():
        specs = {key: spec for key, spec in store.specs().items() if key != kept}
        keys = [key for key, spec in specs.items() if spec.encoder.name == name]
        if not keys:
            raise DataError(unknown_name("replaced encoder", name, sorted({x.encoder.name for x in specs.values()})))
        for folder in store.folders.all():
            if folder.encoder is not None and encoder_key(folder.encoder) in keys:
                raise DataError(f"{folder.path}: is searched with {name}. Search it with another --encoder first.")
        store.delete(films := [film for key in keys for film in store.films(key).values()])
        return sum(not film.reason for film in films)


def import_from(store: Store, home: Path) -> tuple[int, int]:
    """Takes over the features of another library, in which nothing is changed; no file of this one is replaced.

    Files prove themselves, so they are copied as they are. A copy that was interrupted is continued.

    Returns:
        The number of videos that are new here, and of those that were skipped, because the file of their features
        is damaged or not as prvr writes it.

    Raises:
        DataError: there is no library.
    """
    home = home.expanduser().absolute()
    count = store.take_over(home)
    if not count and not parts_of(home):
        raise DataError(f"{home}: no library found, there is no folder {FEATURES}. Pass a folder given to --library.")
    videos, skipped = set[str](), set[str]()
    with store.writable():
        for key, sha256, _ in feature_files(home):
            path, target = (feature_file(place, key, sha256) for place in (home, store.home))
            if target.exists():
                continue
            try:
                file = read_features(path)
            except (DataError, OSError) as error:
                logger.info("skipped: %s", error)
                skipped.add(sha256)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            _copied(path, target)
            if file.film.frames or file.film.lines:
                videos.add(sha256)
        sync()
        store.touch()
        films = {sha256 for of_key in store.by_key().values() for sha256 in of_key}
        for record in Folders(lambda: home, None).all():
            if places := {state: place for state, place in record.places.items() if place.sha256 in films}:
                store.folders.add(replace(record, places=places))
    return count + len(videos), len(skipped - videos)


def move(store: Store, target: Path) -> None:
    """Moves the library to another folder; later commands find the library of the user there.

    Nothing is deleted before the copy is complete. A move that was interrupted is continued.

    Raises:
        DataError: the folder cannot take it, another process uses the library, or a part of it is a link.
    """
    target = Path(os.path.realpath(target.expanduser()))
    with store.alone():
        home, default = store.home.resolve(), user_data() / "library"
        is_users = home == (moved_to(default) or default).resolve()
        parts = parts_of(home)
        if links := [path for part in parts for path in (part, *part.rglob("*")) if path.is_symlink()]:
            raise DataError(
                f"{links[0]}: is a symbolic link; a library is moved with all that it holds. Put what the link leads "
                "to in its place, or move only that and renew the link."
            )
        if not parts:
            raise DataError(f"{home}: no library found to move.")
        _expect_free(target, home)
        try:
            for part in parts:
                shutil.copytree(part, target / part.name, copy_function=_copied, dirs_exist_ok=True)
            sync()
        except OSError as error:
            raise DataError(
                f"{target}: the library cannot be copied there ({error}). It is still in {home}. Free space, or "
                "name another folder."
            ) from error
        if is_users and target != default.resolve():  # any other is named with --library each time
            default.mkdir(parents=True, exist_ok=True)
            _note_move(default, target)
        (target / MOVED).unlink(missing_ok=True)
        _note_move(home, target)
        for part in (*parts, home / CLAIMS):
            shutil.rmtree(part, ignore_errors=True)
        (home / CHANGED).unlink(missing_ok=True)
        store.follow(target)


def _copied(source: Path | str, copy: Path | str) -> None:
    """Copies a file.

    Raises:
        OSError: it cannot be copied, or the copy differs.
    """
    content = Path(source).read_bytes()
    replace_file(Path(copy), content, durable=False)
    if Path(copy).read_bytes() != content:
        raise OSError(errno.EIO, "the copy differs", str(copy))


def _expect_free(target: Path, home: Path) -> None:
    """Refuses a folder that a library cannot be moved to.

    Raises:
        DataError: says why.
    """
    try:
        for inner, outer in ((target, home), (home, target)):
            if any(path.exists() and path.samefile(outer) for path in (inner, *inner.parents) if outer.exists()):
                raise DataError(f"{target}: overlaps the library {home}. Name another folder.")
        names = {path.name for path in target.iterdir()} if target.exists() else set()
    except OSError as error:
        raise DataError(f"{target}: cannot be read ({error}). Name a new folder.") from error
    was_ours = moved_to(target) == home  # the library comes back
    if MOVED in names and not was_ours:
        raise DataError(f"{target}: another library was moved away from there. Name a new folder.")
    if names - {FEATURES, FOLDERS, *((MOVED, LOCK) if was_ours else ())}:
        raise DataError(f"{target}: already exists and is not empty. Name a new folder.")


def _note_move(home: Path, target: Path) -> None:
    replace_file(home / MOVED, os.fsencode(target) + b"\n")


def _may_be_there(path: Path) -> bool:
    """Whether there is a file or folder, or that cannot be told; links to nothing are none."""
    try:
        path.stat()
    except OSError as error:
        return error.errno != errno.ENOENT
    return True
