"""What happens in the videos of the embedded corpus: objects, actions, timelines."""

from dataclasses import dataclass

import numpy as np

FPS = 2.0
SHAPES = ("circle", "square", "triangle", "star", "cross", "ring", "heart", "diamond", "crescent", "arrow")
COLOURS = ("red", "green", "blue", "yellow", "orange", "purple", "pink", "white", "brown")
SIZES = ("small", "medium", "large")
BACKGROUNDS = 8
# Opposite pairs: at a single moment the two of a pair look alike.
ACTIONS = (
    "left", "right", "up", "down", "grow", "shrink", "appear", "vanish",
    "clockwise", "anticlockwise", "brighten", "darken", "push", "pushed",
)  # fmt: skip
OPPOSITE = {a: b for pair in zip(ACTIONS[::2], ACTIONS[1::2], strict=True) for a, b in (pair, pair[::-1])}


@dataclass(frozen=True)
class Thing:
    """An object of the scene."""

    shape: str
    colour: str
    size: str


@dataclass(frozen=True)
class Event:
    """One thing does one action from ``start`` to ``end`` (seconds); a push has a second thing."""

    start: float
    end: float
    actor: Thing
    action: str
    other: Thing | None = None

    def told(self) -> tuple[tuple[Thing, str, Thing | None], ...]:
        """The ways to say what happens: a push is also told by the one that is pushed."""
        own = (self.actor, self.action, self.other)
        return (own,) if self.other is None else (own, (self.other, OPPOSITE[self.action], self.actor))


@dataclass(frozen=True)
class Video:
    """An untrimmed video: captioned events, and others that no caption speaks of."""

    id: str
    duration: float
    background: int
    captioned: tuple[Event, ...]
    others: tuple[Event, ...]

    @property
    def events(self) -> tuple[Event, ...]:
        """All events."""
        return self.captioned + self.others


def draw_video(video_id: str, rng: np.random.Generator) -> Video:
    """Draws a video of 20-120 s with 3-5 captioned moments of 3-15 s and, between them, 1-4 others."""
    duration = float(np.round(rng.uniform(20, 120), 1))
    captioned = int(rng.integers(3, 6)) if duration > 45 else 3
    others = int(rng.integers(2, 5)) if duration > 45 else 1
    count = captioned + others
    # Lengths, then gaps, out of a budget; at most 85 % of the video is action.
    lengths = rng.uniform(3, 15, count)
    budget = 0.85 * duration
    if lengths.sum() > budget:
        lengths = 3 + (lengths - 3) * max(0.0, (budget - 3 * count) / (lengths - 3).sum())
    gaps = rng.dirichlet(np.ones(count + 1)) * (duration - lengths.sum())
    starts = np.cumsum(gaps[:-1]) + np.concatenate([[0], np.cumsum(lengths)[:-1]])
    cast = _draw_cast(rng)
    events = [_draw_event(float(s), float(s + n), cast, rng) for s, n in zip(starts, lengths, strict=True)]
    chosen = set(rng.permutation(count)[:captioned].tolist())
    return Video(
        video_id,
        duration,
        int(rng.integers(BACKGROUNDS)),
        tuple(event for i, event in enumerate(events) if i in chosen),
        tuple(event for i, event in enumerate(events) if i not in chosen),
    )


def _draw_cast(rng: np.random.Generator) -> list[Thing]:
    """Two or three different things that a video is about: as in real videos, who acts once acts again."""
    cast: dict[tuple[str, str], Thing] = {}
    while len(cast) < 2 or (len(cast) < 3 and rng.random() < 0.5):
        shape, colour = str(rng.choice(SHAPES)), str(rng.choice(COLOURS))
        cast[shape, colour] = Thing(shape, colour, str(rng.choice(SIZES)))
    return list(cast.values())


def _draw_event(start: float, end: float, cast: list[Thing], rng: np.random.Generator) -> Event:
    action = str(rng.choice(ACTIONS))
    actor, other = (cast[i] for i in rng.permutation(len(cast))[:2])
    return Event(round(start, 2), round(end, 2), actor, action, other if action in ("push", "pushed") else None)
