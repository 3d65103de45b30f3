"""The toy world: things, actions, shots and videos, and what no training video may show."""

from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

FPS = 2.0
FRAME = 64  # pixels, square
SHAPES = ("circle", "square", "triangle", "star", "cross", "ring", "heart", "diamond", "crescent", "arrow")
COLOURS = ("red", "green", "blue", "yellow", "orange", "purple", "pink", "white", "brown")
SIZES = ("small", "medium", "large")
BACKGROUNDS = ("plain", "fading", "striped", "chequered", "dotted", "wavy", "brick", "grid")
# Opposite pairs: a single frame does not tell the two of a pair apart.
ACTIONS = (
    "left", "right", "up", "down", "grow", "shrink", "appear", "vanish",
    "clockwise", "anticlockwise", "brighten", "darken", "push", "pushed",
)  # fmt: skip
OPPOSITE = {a: b for pair in zip(ACTIONS[::2], ACTIONS[1::2], strict=True) for a, b in (pair, pair[::-1])}
PUSHES = ("push", "pushed")
HEADINGS = ACTIONS[:4]

# One pair in five is kept from training, the same for every seed, because the encoder is trained only once.
# Every shape, colour and action is left with pairs that do occur.
HELD_OUT_COLOURS = frozenset(
    (shape, colour) for i, shape in enumerate(SHAPES) for j, colour in enumerate(COLOURS) if (i + 2 * j) % 5 == 0
)
HELD_OUT_ACTIONS = frozenset(
    (shape, action) for i, shape in enumerate(SHAPES) for j, action in enumerate(ACTIONS) if (2 * i + j) % 5 == 0
)


@dataclass(frozen=True)
class Thing:
    """An object of a scene."""

    shape: str
    colour: str
    size: str

    @property
    def look(self) -> tuple[str, str]:
        """What tells it from other things: the size alone does not."""
        return self.shape, self.colour


class Fact(NamedTuple):
    """Something that is true of a shot: a thing does an action; in a push, to or by another thing."""

    thing: Thing
    action: str
    other: Thing | None


@dataclass(frozen=True)
class Shot:
    """A part of a video between two cuts, ``start`` to ``end`` in seconds: one action, at an even pace, or none.

    Args:
        start, end: in seconds.
        actor: the thing that acts; None: nothing happens.
        action: one of `ACTIONS`.
        other: in a push, the thing that is pushed, or that pushes.
        heading: in a push, the way both go.
        bystanders: things that stand still.
        captioned: whether captions describe it.
    """

    start: float
    end: float
    actor: Thing | None = None
    action: str | None = None
    other: Thing | None = None
    heading: str | None = None
    bystanders: tuple[Thing, ...] = ()
    captioned: bool = False

    @property
    def things(self) -> tuple[Thing, ...]:
        """All things that can be seen."""
        return tuple(thing for thing in (self.actor, self.other) if thing is not None) + self.bystanders

    @property
    def distinct(self) -> bool:
        """Whether no two of its things look alike."""
        return len({thing.look for thing in self.things}) == len(self.things)

    def facts(self) -> tuple[Fact, ...]:
        """All facts of the shot; a push is also a fact of the thing that is pushed, and both things move."""
        if self.actor is None or self.action is None:
            return ()
        own = Fact(self.actor, self.action, self.other)
        if self.other is None or self.heading is None:
            return (own,)
        back = Fact(self.other, OPPOSITE[self.action], self.actor)
        return (own, back, Fact(self.actor, self.heading, None), Fact(self.other, self.heading, None))


@dataclass(frozen=True)
class Video:
    """An untrimmed video: shots from 0 to ``duration`` seconds without a gap.

    Args:
        id: its name.
        duration: in seconds.
        background: one of `BACKGROUNDS`.
        occluder: whether a post stands in front of everything.
        seed: the seed of everything random in its pixels.
        shots: in order of time.
    """

    id: str
    duration: float
    background: str
    occluder: bool
    seed: int
    shots: tuple[Shot, ...]

    @property
    def frame_count(self) -> int:
        """Number of frames."""
        return max(1, ceil(self.duration * FPS))

    def frame_times(self) -> Float[np.ndarray, " n"]:
        """The time of each frame in seconds: the middle of the interval that it covers."""
        return (np.arange(self.frame_count) + 0.5) / FPS

    def facts(self) -> tuple[Fact, ...]:
        """The facts of all shots."""
        return tuple(fact for shot in self.shots for fact in shot.facts())

    def moments(self) -> tuple[Shot, ...]:
        """The captioned shots."""
        return tuple(shot for shot in self.shots if shot.captioned)


def in_training(shot: Shot) -> bool:
    """Whether training videos may show a shot: no held-out colour of a shape, no held-out action of a shape."""
    looks = HELD_OUT_COLOURS.isdisjoint(thing.look for thing in shot.things)
    return looks and HELD_OUT_ACTIONS.isdisjoint((fact.thing.shape, fact.action) for fact in shot.facts())
