"""What every record of the configuration has in common."""

from typing import Annotated, TypeVar, dataclass_transform

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

_T = TypeVar("_T")
STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
"""An unknown key is an error, and so is a number that is not finite.

Every number has bounds as well, most by a type below. Beyond them, results would overflow or mean nothing, or take more
memory or processes than there are.
"""


@dataclass_transform(frozen_default=True, field_specifiers=(Field,))
def record(kind: type[_T]) -> type[_T]:
    """Makes a class a frozen dataclass whose fields are checked, as `STRICT` says."""
    return dataclass(frozen=True, config=STRICT)(kind)  # pyright: ignore[reportReturnType]


MANY = 2**20
"""The most of anything that is held at once: videos of a batch, captions of a video."""

LARGE = 2**31 - 1
"""The most of what is only counted: epochs, steps."""

SEED = 2**32 - 1
"""The largest seed that torch, NumPy and Python all take."""

Width = Annotated[int, Field(ge=0, le=MANY)]
"""The width of features; 0 where it is that of the data."""

Size = Annotated[int, Field(ge=1, le=65_536)]
"""A width, or the length of a sequence."""

TwoOrMore = Annotated[int, Field(ge=2, le=65_536)]
"""A size of at least two."""

Depth = Annotated[int, Field(ge=1, le=256)]
"""Layers or blocks, one after the other."""

Steps = Annotated[int, Field(ge=1, le=10_000)]
"""The steps of a diffusion."""

Count = Annotated[int, Field(ge=1, le=MANY)]
"""How many are held at once."""

Number = Annotated[int, Field(ge=0, le=LARGE)]
"""A number that is counted from 0, such as an epoch."""

Times = Annotated[int, Field(ge=1, le=LARGE)]
"""A number that is counted from 1, such as epochs or steps in all."""

Share = Annotated[float, Field(ge=0, le=1)]
"""A share of a whole."""

Rate = Annotated[float, Field(ge=0, lt=1)]
"""A share that leaves something over."""

Weight = Annotated[float, Field(ge=0, le=1e6)]
"""0 is off."""

Scale = Annotated[float, Field(ge=0, le=100)]
"""A factor or a margin."""

Factor = Annotated[float, Field(ge=1e-6, le=1e6)]
"""What something is multiplied with, or divided by."""

LearningRate = Annotated[float, Field(gt=0, le=100)]
