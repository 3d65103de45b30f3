"""Time stamps of frames: those that are sampled, those that are wrong, and the packets that sampling needs."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from itertools import chain, repeat
from typing import Any, TypeVar

T = TypeVar("T")
JUMP = 1
"""Seconds: a time stamp that goes back further begins a new part; less is jitter."""
_MOST_WRONG = 8  # frames in a row whose time stamps may be wrong; so many are held after a jump
_READ_AHEAD = 32  # packets that are read before one is judged: more than any encoder stores out of order


def resample(items: Iterable[tuple[Fraction, Fraction, T]], rate: Fraction) -> Iterator[tuple[Fraction, T]]:
    """The item that is shown in the middle of each period, for every middle before the end; at least one.

    Sample k stands for the time from `k / rate` to `(k + 1) / rate` and is the item shown at `(k + 1/2) / rate`: the
    last one that started by then, or the first one if none has. Middles are half a period away from the edges, so time
    stamps that are rounded, as those of most files are, neither drop nor double a frame.

    Args:
        items: (start, length, item) in order of starts, in seconds; only the length of the last one counts. They are
            taken one at a time, and one is held.
        rate: samples per second.

    Yields:
        (time of the sample, item).

    Examples:
        >>> shots = [(Fraction(0), Fraction(1), "a"), (Fraction(1), Fraction(2), "b")]
        >>> [(float(time), item) for time, item in resample(shots, Fraction(1))]
        [(0.5, 'a'), (1.5, 'b'), (2.5, 'b')]
    """
    shown: list[T] = []
    end, first = Fraction(0), 1 / (2 * rate)
    middle = first
    for start, length, item in items:
        while shown and middle < start:
            yield middle, shown[0]
            middle += 1 / rate
        shown, end = [item], start + length
    while shown and (middle == first or middle < end):
        yield middle, shown[0]
        middle += 1 / rate


def interpolate_stamps(
    items: Iterable[tuple[Fraction | None, T]], last: Fraction | None = None
) -> Iterator[tuple[Fraction | None, T, bool]]:
    """Replaces time stamps that jump and return within a few frames by times between their neighbours.

    A jump leads back, or far ahead of the frames before: by more than a second and ten times the last interval. Where
    the time stamps do not return, as where one recording follows another, they stay as they are.

    Args:
        items: (time stamp in seconds, item) in the order in which they are shown.
        last: a time stamp that precedes them.

    Yields:
        (time stamp, item, whether the time stamp was replaced).

    Examples:
        >>> times = [Fraction(0), Fraction(1), Fraction(3600), Fraction(3)]
        >>> [float(time) for time, _, _ in interpolate_stamps((time, "") for time in times)]
        [0.0, 1.0, 2.0, 3.0]
    """
    pending: deque[tuple[Fraction | None, T]] = deque()
    interval = Fraction(0)

    def is_near(stamp: Fraction | None) -> bool:
        return stamp is None or last is None or abs(stamp - last) <= max(JUMP, 10 * interval)

    for stamp, item in items:
        if pending and stamp is not None and last is not None and last < stamp and is_near(stamp):
            step = (stamp - last) / (len(pending) + 1)
            for number, (_, wrong) in enumerate(pending, 1):
                yield last + number * step, wrong, True
            pending.clear()
        pending.append((stamp, item))
        while pending and (is_near(pending[0][0]) or len(pending) > _MOST_WRONG):
            stamp, item = pending.popleft()
            if stamp is not None:
                interval, last = abs(stamp - (stamp if last is None else last)), stamp
            yield stamp, item, False
    yield from ((stamp, item, False) for stamp, item in pending)


def with_need(packets: Iterable[Any], samples_before: Callable[[int], int], jump: float) -> Iterator[tuple[Any, bool]]:
    """The packets of a video in their order, each with whether its frame may be sampled.

    A sample shows the last frame that began by then. That frame is needed, and those that are shown right before and
    after it, so that a time stamp which is slightly wrong does no harm. Where time stamps are missing, or go back
    further than frames are reordered, everything is needed from there on.

    Args:
        packets: of PyAV, in the order in which they are stored.
        samples_before: how many samples there are before a time stamp.
        jump: time stamps that go back by more begin a new part of the video.
    """
    waiting: deque[Any] = deque()
    stamps: list[int] = []  # of the packets that were read last, sorted
    regular = True
    for packet in chain(packets, repeat(None, _READ_AHEAD)):
        waiting.append(packet)
        if packet is not None and packet.size:  # the last one is empty
            if packet.pts is None or (stamps and packet.pts < stamps[-1] - jump):
                regular = False
            else:
                insort(stamps, packet.pts)
                del stamps[: -4 * _READ_AHEAD]
        if len(waiting) > _READ_AHEAD:
            first = waiting.popleft()
            place = bisect_left(stamps, first.pts) if regular and first.size else 0
            is_known = 0 < place < len(stamps) - 2
            yield first, not is_known or samples_before(stamps[place - 1]) < samples_before(stamps[place + 2])
