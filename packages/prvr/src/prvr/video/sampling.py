"""Frames at a fixed rate out of frames at any times."""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import TypeVar

T = TypeVar("T")


def hold(items: Iterable[tuple[Fraction, Fraction, T]], rate: Fraction) -> Iterator[tuple[Fraction, T]]:
    """What is on the screen in the middle of each period, as long as the middle is before the end; at least one.

    Sample k stands for the time from `k / rate` to `(k + 1) / rate` and is what is shown at `(k + 1/2) / rate`: the
    last item that started by then, or the first item if none has. Middles are half a period away from the edges, so
    that time stamps that are rounded, as those of most files are, neither drop nor double a frame.

    Args:
        items: (start, length, item) in order of starts, in seconds; only the length of the last one counts. They are
            taken one at a time, and one is held.
        rate: samples per second.

    Yields:
        (time of the sample, item).

    Example:
        >>> film = [(Fraction(0), Fraction(1), "a"), (Fraction(1), Fraction(2), "b")]
        >>> [(float(time), item) for time, item in hold(film, Fraction(1))]
        [(0.5, 'a'), (1.5, 'b'), (2.5, 'b')]
    """
    shown: list[T] = []
    end, number = Fraction(0), 0
    for start, length, item in items:
        while shown and (middle := (number + Fraction(1, 2)) / rate) < start:
            yield middle, shown[0]
            number += 1
        shown, end = [item], start + length
    while shown and (number == 0 or (number + Fraction(1, 2)) / rate < end):
        yield (number + Fraction(1, 2)) / rate, shown[0]
        number += 1
