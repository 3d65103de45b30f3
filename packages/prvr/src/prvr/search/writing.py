"""Changing an index, one writer at a time: new segments first, then the manifest that names them."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from math import log
from pathlib import Path

from prvr.search.manifest import SEGMENTS, Manifest
from prvr.search.segments import Segment, VideoVectors, write_segment
from prvr.search.snapshot import Snapshot

_TIER = 8  # so many segments of about one size become one


class IndexWriter:
    """Changes an index; after each method the manifest on disk is complete, and so are the segments that it names.

    Args:
        folder: the folder of the index, which no other process changes meanwhile.
        snapshot: its current state.

    Attributes:
        manifest: the current manifest.
        entries: what is known of each video, by id.
    """

    def __init__(self, folder: Path, snapshot: Snapshot) -> None:
        self._folder, self.manifest = folder, snapshot.manifest
        names = snapshot.segments
        self._places = {video: (names[place.segment], place.number) for video, place in snapshot.places.items()}
        self.entries = {video: snapshot.video(video) for video in snapshot.video_ids}

    def put(self, videos: Sequence[VideoVectors]) -> None:
        """Adds videos, in one step; they replace those with the same ids."""
        record = write_segment(self._folder, videos)
        manifest = self.manifest.without(self._numbers([one.entry.id for one in videos]))
        keys = 1 + max(int(one.keys[-1]) for one in videos)
        self._commit(replace(manifest, segments=(*manifest.segments, record), next_key=max(keys, manifest.next_key)))
        self._places |= {one.entry.id: (record.name, number) for number, one in enumerate(videos)}
        self.entries |= {one.entry.id: one.entry for one in videos}
        self._settle()

    def drop(self, video_ids: Sequence[str]) -> None:
        """Removes videos, in one step."""
        self._commit(self.manifest.without(self._numbers(video_ids)))
        for video in video_ids:
            del self._places[video], self.entries[video]
        self._settle()

    def _numbers(self, video_ids: Sequence[str]) -> dict[str, set[int]]:
        """The numbers of videos in each segment."""
        numbers: dict[str, set[int]] = {}
        for name, number in (self._places[video] for video in video_ids if video in self._places):
            numbers.setdefault(name, set()).add(number)
        return numbers

    def _commit(self, manifest: Manifest) -> None:
        """Writes the manifest, then deletes the segments that it does not name; readers that have one open keep it."""
        manifest.write(self._folder)
        self.manifest = manifest
        named = {one.name for one in manifest.segments}
        for path in (self._folder / SEGMENTS).iterdir():
            if path.name not in named and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)

    def _settle(self) -> None:
        """Rewrites segments together until there are few, and most of their videos were not removed."""
        while names := due(self.manifest):
            records = [one for one in self.manifest.segments if one.name in names]
            opened = [Segment.open(self._folder, self.manifest, one) for one in records]
            videos = [segment.video(number) for segment in opened for number in segment.live]
            record = write_segment(self._folder, videos)
            rest = tuple(one for one in self.manifest.segments if one.name not in names)
            self._commit(replace(self.manifest, segments=(*rest, record)))
            self._places |= {one.entry.id: (record.name, number) for number, one in enumerate(videos)}


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
