"""One's own videos divided into splits, and named as a corpus can hold them."""

import hashlib
import re
from collections.abc import Iterable, Mapping

from prvr.errors import DataError, InputError

__all__ = ["SPLITS", "divide", "plain_ids"]

SPLITS = ("train", "val", "test")


def divide(contents: Mapping[str, str], test: float = 0.2, val: float = 0.1, seed: int = 0) -> dict[str, str]:
    """Which split each video goes to: by its content alone, so that copies of a video stay together.

    The different contents are put in the order of a hash; the first `test` of them, rounded, at least one, are the
    split "test", those that follow are "val". The same videos give the same splits, under whatever names and in
    whatever order.

    Args:
        contents: of each video, the sha256 of its file.
        test, val: shares of the different contents.
        seed: draws other splits.

    Returns:
        "train", "val" or "test" by video.

    Raises:
        DataError: fewer than 4 different videos, or shares that leave fewer than 2 to train on.
        ValueError: a share out of range.

    Example:
        >>> found = divide({name: name for name in "abcdefghij"})
        >>> [sum(split == name for split in found.values()) for name in SPLITS]
        [7, 1, 2]
    """
    if not 0 < test < 1 or not 0 < val < 1 or not test + val < 1:
        raise InputError(f"test={test:g}, val={val:g}: expected shares above 0 that leave something to train on")
    order = sorted(set(contents.values()), key=lambda content: hashlib.sha256(f"{seed}:{content}".encode()).digest())
    tests, vals = (max(1, round(share * len(order))) for share in (test, val))
    if len(order) - tests - vals < 2:
        copies = f" ({len(contents) - len(order)} more are copies)" if len(contents) > len(order) else ""
        raise DataError(
            f"{len(order)} different videos with captions{copies}, of which {tests} would be for test and {vals} for "
            "val: too few are left to train on, which takes at least 2. Caption more videos, or choose smaller shares."
        )
    place = {content: number for number, content in enumerate(order)}
    bounds = {"test": tests, "val": tests + vals}

    def side(content: str) -> str:
        return next((split for split, bound in bounds.items() if place[content] < bound), "train")

    return {video: side(content) for video, content in contents.items()}


def plain_ids(videos: Iterable[str]) -> dict[str, str]:
    """Ids as the files of a corpus can hold them: without spaces, `/` and `#`, and not too long.

    An id that can stay does; of others the odd characters become `-`, and a hash of the whole is added.

    Example:
        >>> plain_ids(["beach.mp4", "day 1/beach.mp4"])
        {'beach.mp4': 'beach.mp4', 'day 1/beach.mp4': 'day-1-beach.mp4-b3da85cb'}
    """
    found: dict[str, str] = {}
    for video in videos:
        plain = re.sub(r"[^\w.+-]+", "-", video.encode("utf-8", "replace").decode())[-80:].strip("-")
        told = hashlib.sha256(video.encode("utf-8", "surrogateescape")).hexdigest()
        found[video] = plain if plain == video else f"{plain}-{told[:8]}"
    if len(set(found.values())) < len(found):  # a name that looks like what another became
        return {video: f"video-{number}" for number, video in enumerate(found)}
    return found
