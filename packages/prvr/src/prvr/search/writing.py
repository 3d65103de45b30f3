"""Making and changing an index, one writer at a time: new segments first, then the manifest that names them."""

import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import log
from pathlib import Path

from prvr.data.atomic import HALF_WRITTEN, clear_half_written, mark, new_folder, owned, remove_marked, unmark
from prvr.errors import DISK_FULL, DataError, InputError
from prvr.search.confidence import write_bank
from prvr.search.manifest import MODEL, SEGMENTS, Manifest, WindowLength, check_windows
from prvr.search.model import SearchModel
from prvr.search.segments import Segment, VideoVectors, stamp_files, write_segment
from prvr.search.snapshot import Snapshot
from prvr.search.vectors import Dtype
from prvr.video import StoreHeader

_NAME = re.compile(rf"[0-9a-f]{{32}}|{re.escape(HALF_WRITTEN)}-new-[0-9a-f]{{8}}")  # of a segment, whole or not
_TIER = 8  # so many segments of about one size become one


def make_index(
    target: Path, model: SearchModel, encoder: StoreHeader, dtype: Dtype, window: WindowLength, stride: float | None
) -> None:
    """Makes an empty index with a copy of its model and a bank of unrelated sentences, whole or not at all.

    See `prvr.search.VideoIndex.create`.
    """
    check_windows(window, stride)
    if dtype not in ("float16", "float32", "int8"):
        raise InputError(f"dtype={dtype!r}: expected float16, float32 or int8")
    if model.identity.frames != encoder.encoder:
        raise DataError(f"the model reads features of {model.identity.frames}, the store holds {encoder.encoder}.")
    with new_folder(target) as made:
        (made / MODEL).mkdir()
        (made / SEGMENTS).mkdir()
        model.save(made / MODEL)
        bank = write_bank(made / MODEL, model)
        Manifest(
            index_id=secrets.token_hex(8),
            model=model.identity,
            encoder=encoder,
            dtype=dtype,
            window=window,
            stride=stride,
            dim=model.dim,
            clips=model.clips,
            clip_weight=float(model.clip_weight),
            frame_weight=float(model.frame_weight),
            model_files=stamp_files(made / MODEL),
            stored=dict(model.stored),
            bank=bank,
        ).write(made)


class IndexWriter:
    """Changes an index; after each method the manifest on disk is complete, and so are the segments that it names.

    Attributes:
        manifest: the manifest as it is on disk.
        places: the name of the segment and the number in it, by the id of the video.
        entries: the records of the videos, by id.
    """

    def __init__(self, folder: Path, snapshot: Snapshot) -> None:
        self._folder, self.manifest = folder, snapshot.manifest
        names = snapshot.segments
        self.places = {video: (names[place.segment], place.number) for video, place in snapshot.places.items()}
        self.entries = {video: snapshot.video(video) for video in snapshot.video_ids}
        self._clear()
        self._settle()

    def put(self, videos: Sequence[VideoVectors]) -> None:
        """Adds videos, in one step; they replace those with the same ids."""
        record = write_segment(self._folder, videos)
        manifest = self.manifest.without(self._places([one.entry.id for one in videos]))
        keys = 1 + max(int(one.keys[-1]) for one in videos)
        self._commit(replace(manifest, segments=(*manifest.segments, record), next_key=max(keys, manifest.next_key)))
        self.places |= {one.entry.id: (record.name, number) for number, one in enumerate(videos)}
        self.entries |= {one.entry.id: one.entry for one in videos}
        self._settle()

    def drop(self, video_ids: Sequence[str]) -> None:
        """Removes videos, in one step."""
        self._commit(self.manifest.without(self._places(video_ids)))
        for video in video_ids:
            del self.places[video], self.entries[video]
        self._settle()

    def _places(self, video_ids: Sequence[str]) -> dict[str, set[int]]:
        found: dict[str, set[int]] = {}
        for name, number in (self.places[video] for video in video_ids if video in self.places):
            found.setdefault(name, set()).add(number)
        return found

    def _commit(self, manifest: Manifest) -> None:
        kept = {one.name for one in manifest.segments}
        for name in {one.name for one in self.manifest.segments} - kept:
            if _NAME.fullmatch(name):
                mark(self._folder / SEGMENTS / name)
        manifest.write(self._folder)
        self.manifest = manifest
        self._clear()

    def _clear(self) -> None:
        """Deletes the segments that the manifest does not name, if they are marked as unfinished or replaced.

        A segment without the mark is left alone, for the manifest may have come from another index. Readers that have
        one open keep it; where that is forbidden, it is deleted later. What a killed process left half-written goes
        too.
        """
        named = {one.name for one in self.manifest.segments}
        for path in (self._folder / SEGMENTS).iterdir():
            if _NAME.fullmatch(path.name):
                (unmark if path.name in named else remove_marked)(path)
        clear_half_written(self._folder)

    def _settle(self) -> None:
        """Rewrites segments together until there are few, and most of their videos were not removed."""
        while names := due(self.manifest):
            records = [one for one in self.manifest.segments if one.name in names]
            opened = [Segment.open(self._folder, self.manifest, one) for one in records]
            videos = [segment.video(number) for segment in opened for number in segment.live]
            record = write_segment(self._folder, videos)
            rest = tuple(one for one in self.manifest.segments if one.name not in names)
            self._commit(replace(self.manifest, segments=(*rest, record)))
            self.places |= {one.entry.id: (record.name, number) for number, one in enumerate(videos)}


def due(manifest: Manifest) -> set[str]:
    """Names of the segments that should be rewritten as one; none if there is no need.

    These are a segment of which half the videos were removed, or eight segments of one size, in powers of eight.
    """
    for one in manifest.segments:
        if 2 * len(one.removed) >= one.videos:
            return {one.name}
    tiers: dict[int, list[str]] = {}
    for one in manifest.segments:
        tier = tiers.setdefault(int(log(one.live, _TIER) + 1e-9), [])
        tier.append(one.name)
        if len(tier) == _TIER:
            return set(tier)
    return set()


@contextmanager
def opened_for_writing(folder: Path) -> Iterator[IndexWriter]:
    """Opens the writer of an index, in its current state.

    Raises:
        DataError: there is no index, another process is writing it, or it cannot be written.
    """
    Manifest.read(folder)  # or else the lock would be made in any folder
    try:
        with owned(
            folder, f"{folder}: another process is writing this index. Wait until it has finished; searches still work."
        ):
            yield IndexWriter(folder, Snapshot.open(folder))
    except OSError as error:
        why = "the disk is full" if error.errno in DISK_FULL else "it cannot be written"
        raise DataError(
            f"{folder}: {why} ({error}). The index contains all videos that were finished. Free space or fix the "
            "permissions of the folder, then run the command again."
        ) from error
