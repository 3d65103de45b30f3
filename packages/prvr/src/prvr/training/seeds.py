"""Seeds derived from the run's seed: an epoch draws the same whatever came before it, in this process or another."""

import hashlib

__all__ = ["derived_seed"]


def derived_seed(*parts: int | str) -> int:
    """A seed in [0, 2^63) that depends on all parts, for example (run seed, epoch, purpose).

    Example:
        >>> derived_seed(0, 1, "dropout") == derived_seed(0, 1, "dropout") != derived_seed(0, 2, "dropout")
        True
    """
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
