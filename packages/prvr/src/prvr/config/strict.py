"""What every record of the configuration has in common."""

from typing import Annotated

from pydantic import ConfigDict, Field

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

Count = Annotated[int, Field(ge=1, le=MANY)]
"""How many are held at once."""

Size = Annotated[int, Field(gt=0, le=65_536)]
"""A width, or the length of a sequence."""

Factor = Annotated[float, Field(ge=1e-6, le=1e6)]
"""What something is multiplied with."""
