"""The toy world: things, actions, shots and videos, and what no training video may show."""

from dataclasses import dataclass
from math import ceil

FPS = 2.0
FRAME = 64  # pixels, square
RADIUS = {"small": 5.5, "medium": 8.0, "large": 11.5}  # pixels
RGB = {
    "red": (215, 25, 35),
    "green": (35, 165, 55),
    "blue": (40, 80, 230),
    "yellow": (246, 228, 40),
    "orange": (250, 130, 10),
    "purple": (125, 35, 175),
    "pink": (252, 145, 195),
    "white": (244, 244, 244),
    "brown": (136, 74, 26),
}
COLOURS, SIZES = tuple(RGB), tuple(RADIUS)
SHAPES = ("circle", "square", "triangle", "star", "cross", "ring", "heart", "diamond", "crescent", "arrow")
BACKGROUNDS = ("plain", "fading", "striped", "chequered", "dotted", "wavy", "brick", "grid")
# Opposite pairs: a single frame does not tell the two of a pair apart.
ACTIONS = (
    "left", "right", "up", "down", "grow", "shrink", "appear", "vanish",
    "clockwise", "anticlockwise", "brighten", "darken", "push", "pushed",
)  # fmt: skip
OPPOSITE = {action: ACTIONS[i ^ 1] for i, action in enumerate(ACTIONS)}
PUSHES = ("push", "pushed")
HEADINGS = ACTIONS[:4]
VALUES = {"shape": SHAPES, "colour": COLOURS, "size": SIZES}
"""The values of each property of a thing."""

# One pair in five is kept from training, the same for every seed, because the encoder is trained only once.
# Every shape, colour and action is left with pairs that do occur.
HELD_OUT = frozenset(
    (shape, value)
    for values, turns, step in ((COLOURS, 1, 2), (ACTIONS, 2, 1))
    for i, shape in enumerate(SHAPES)
    for j, value in enumerate(values)
    if (turns * i + step * j) % 5 == 0
)
"""Colours and actions that a shape does not have in training."""


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


@dataclass(frozen=True)
class Claim:
    """What is said of a shot: a thing does an action; in a push, to or by another thing. None: it is left open."""

    shape: str
    colour: str | None
    size: str | None
    action: str | None
    other_shape: str | None = None
    other_colour: str | None = None
    background: str | None = None

    @property
    def is_new(self) -> bool:
        """Whether it pairs a shape with a colour or an action that training never shows."""
        pairs = [(self.shape, self.colour), (self.shape, self.action), (self.other_shape, self.other_colour)]
        # if rings never push in training, being pushed by a ring is new as well
        pairs.append((self.other_shape, OPPOSITE.get(str(self.action))))
        return not HELD_OUT.isdisjoint(pairs)


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
        return (*filter(None, (self.actor, self.other)), *self.bystanders)

    @property
    def distinct(self) -> bool:
        """Whether no two of its things look alike."""
        return len({thing.look for thing in self.things}) == len(self.things)

    def facts(self) -> list[Claim]:
        """All that happens; a push is also a fact of the thing that is pushed, and both things move."""
        actor, other, action = self.actor, self.other, self.action
        if not (actor and action):
            return []
        own = _claim(actor, action, other)
        if not (other and self.heading):
            return [own]
        moves = [_claim(thing, self.heading) for thing in (actor, other)]
        return [own, _claim(other, OPPOSITE[action], actor), *moves]

    def sights(self) -> set[Claim]:
        """All that can be seen, whatever it does, as if each thing were also the partner of a push."""
        return {_claim(thing, None, thing) for thing in self.things}


def _claim(thing: Thing, action: str | None, other: Thing | None = None) -> Claim:
    return Claim(thing.shape, thing.colour, thing.size, action, *(other.look if other else ()))


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
        """Number of frames; frame i shows the middle of its interval, the time (i + 0.5) / `FPS`."""
        return max(1, ceil(self.duration * FPS))

    def moments(self) -> tuple[Shot, ...]:
        """The captioned shots."""
        return tuple(shot for shot in self.shots if shot.captioned)


@dataclass(frozen=True)
class Sentence:
    """A caption: the shot of a video that it was written for, what it claims, and tags for what training lacks."""

    id: str
    video_id: str
    text: str
    start: float
    end: float
    claim: Claim
    tags: tuple[str, ...]


def in_training(shot: Shot) -> bool:
    """Whether training videos may show a shot: no held-out colour of a shape, no held-out action of a shape."""
    return not any(claim.is_new for claim in (*shot.sights(), *shot.facts()))
