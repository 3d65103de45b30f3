"""What the tests of all three packages leave to nightly runs, those with `HYPOTHESIS_PROFILE=nightly`."""

import os
from collections.abc import Iterable
from itertools import product
from typing import Any

NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"


def crossed(one_of: int, *values: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Combinations for `parametrize`: all in nightly runs, else one of so many.

    Those whose places add up to a multiple of `one_of` are kept. Where that is at most the length of each list, every
    value is tested, and of three lists or more any two values meet.
    """
    numbered = product(*(enumerate(some) for some in values))
    return [
        tuple(value for _, value in places)
        for places in numbered
        if NIGHTLY or sum(place for place, _ in places) % one_of == 0
    ]
