"""What every record of the configuration has in common."""

from pydantic import ConfigDict

from prvr.errors import InputError

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
"""An unknown key is an error, and so is a number that is not finite.

Every number has bounds as well. Beyond them, results would overflow or mean nothing, or take more memory or processes
than there are.
"""

MANY = 2**20
"""The most of anything that is held at once: videos of a batch, captions of a video."""

LARGE = 2**31 - 1
"""The most of what is only counted: epochs, steps."""

SEED = 2**32 - 1
"""The largest seed that torch, NumPy and Python all take."""

_LARGEST = 2**31
"""Numbers in the weights and tables of a model: 8 GiB of float32, some fifty times the largest that ships."""


def expect_size(what: str, size: int, keys: str) -> None:
    """Refuses a model that would not fit into memory.

    Args:
        what: the model, for the message.
        size: about how many numbers its weights and tables hold.
        keys: what makes it smaller.

    Raises:
        InputError: too many.
    """
    if size > _LARGEST:
        raise InputError(
            f"{what} would hold about {size:.1e} numbers in its weights and tables, expected at most "
            f"{_LARGEST:.1e}: lower {keys}"
        )
