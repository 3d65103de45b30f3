"""Seconds as a player shows them."""

import math

__all__ = ["clock", "clock_span"]


def clock(seconds: int | float) -> str:
    """`m:ss`, or `h:mm:ss` from an hour on; what is left of a second is dropped.

    Example:
        >>> clock(65.9), clock(3723)
        ('1:05', '1:02:03')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def clock_span(start: int | float, end: int | float) -> str:
    """From the second in which a moment starts to that by which it has ended: never an empty one.

    Example:
        >>> clock_span(12.5, 17.25)
        '0:12-0:18'
    """
    return f"{clock(start)}-{clock(max(math.ceil(end - 1e-6), int(start) + 1))}"
