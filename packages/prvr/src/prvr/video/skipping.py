"""Which frames need not be decoded, where only a few of a second are sampled."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat
from typing import Any

_AHEAD = 32  # packets that are read before one is judged: more than any encoder stores out of order
_KEPT = 4 * _AHEAD


def with_need(packets: Iterable[Any], samples_before: Callable[[int], int], jump: float) -> Iterator[tuple[Any, bool]]:
    """The packets of a film in their order, each with whether its frame may be sampled.

    A sample shows the last frame that began by then. That frame is needed, and those that are shown right before and
    after it, so that a time stamp which is slightly wrong does no harm. Where time stamps are missing, or go back
    further than frames are reordered, everything is needed from there on.

    Args:
        packets: of PyAV, in the order in which they are stored.
        samples_before: how many samples there are before a time stamp.
        jump: time stamps that go back by more begin a new part of the film.
    """
    waiting: deque[Any] = deque()
    stamps: list[int] = []  # of the packets that were read last, sorted
    regular = True
    for packet in chain(packets, repeat(None, _AHEAD)):
        waiting.append(packet)
        if packet is not None and packet.size:  # the last one is empty
            if packet.pts is None or (stamps and packet.pts < stamps[-1] - jump):
                regular = False
            else:
                insort(stamps, packet.pts)
                del stamps[:-_KEPT]
        if len(waiting) > _AHEAD:
            first = waiting.popleft()
            place = bisect_left(stamps, first.pts) if regular and first.size else 0
            known = 0 < place < len(stamps) - 2
            yield first, not known or samples_before(stamps[place - 1]) < samples_before(stamps[place + 2])
