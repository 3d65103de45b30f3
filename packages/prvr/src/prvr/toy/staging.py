"""The layout of a shot: where its things are and how they change, before any pixel is drawn."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from prvr.toy.shapes import shape_distance
from prvr.toy.world import FPS, FRAME, OPPOSITE, PUSHES, RADIUS, Shot, Thing, Video

Times = Float64[np.ndarray, " k"]
X, Y, SIZE, ANGLE, OPACITY, GLOW = range(6)
"""Numbers of a thing in a picture: centre and radius in pixels, clockwise angle in radians, two shares of 1."""
CHANGES = {
    "right": (X, 0.12 * FRAME, 0.88 * FRAME),
    "down": (Y, 0.12 * FRAME, 0.88 * FRAME),
    "grow": (SIZE, 4.5, 14.0),
    "appear": (OPACITY, 0.0, 1.0),
    "clockwise": (ANGLE, 0.0, 450.0),  # degrees, fewer in a short shot
    "brighten": (GLOW, 0.0, 1.0),
}
"""Which number an action changes, from what to what. Its opposite is the same played backwards: both show the same
frames, in opposite orders."""
MAX_TURN = 50.0  # degrees between two frames
APPROACH = 0.3  # of a push, before the two touch
DRIFT = 3  # pixels that the camera wanders at most
WAYS = {"left": -np.pi / 2, "right": np.pi / 2, "up": 0.0, "down": np.pi}
"""Clockwise angles from up, in radians."""
TRIES, PLACES = 12, 24  # of a layout; of a bystander in it
ROOM = 2.0  # pixels between two things that are enough


class PlacedThing(NamedTuple):
    """A thing in a shot: its six numbers go evenly from the first to the second row, after a share of the time."""

    thing: Thing
    ends: Float64[np.ndarray, "2 6"]
    wait: float = 0.0

    def at(self, moment: Times) -> Float64[np.ndarray, "6 k"]:
        """Its numbers at moments in 0..1."""
        share = np.maximum(moment - self.wait, 0.0) / (1.0 - self.wait)
        start, end = self.ends[..., None]
        return start + (end - start) * share

    @property
    def only_moves(self) -> bool:
        """Whether the thing moves but looks the same all the time."""
        return bool((self.ends[0] == self.ends[1])[SIZE:].all())

    def centre(self, moment: Times) -> Int64[np.ndarray, "k 2"]:
        """The pixel it is centred on, x and y, before the camera's drift."""
        return np.rint(self.at(moment)[:SIZE].T).astype(np.int64)

    def discs(self) -> Float64[np.ndarray, "9 3"]:
        """Discs (x, y, radius) that cover the thing over the whole shot."""
        discs = self.at(np.arange(9) / 8)[:ANGLE].T
        discs[:, SIZE] = 1.2 * self.ends[:, SIZE].max()
        return discs


class Layout(NamedTuple):
    """A shot, ready to be drawn.

    Args:
        still: the bystanders.
        moving: the things that act, drawn in this order over the bystanders.
        post: middle column of a post in front of everything; None: there is no post.
        wander: two waves of camera drift per axis: amplitude, cycles in the shot, phase.
    """

    still: list[PlacedThing]
    moving: list[PlacedThing]
    post: int | None
    wander: Float64[np.ndarray, "2 2 3"]

    def drift(self, moment: Times) -> Int64[np.ndarray, "k 2"]:
        """The shift of the picture at each moment, x and y in whole pixels."""
        size, cycles, phase = np.moveaxis(self.wander, -1, 0)
        waves = np.round(np.sin(2 * np.pi * (cycles * moment[:, None, None] + phase)), 6)
        return np.rint((size * waves).sum(-1)).astype(np.int64)


def progress(shot: Shot, times: Times) -> Times:
    """The progress of a shot at some times: from 0 to 1, or from 1 to 0 where the action is another one backwards.

    Values are rounded to multiples of 2^-20, so that 1 - progress is exact, and with it the reversal.
    """
    moment = np.rint((times - shot.start) / (shot.end - shot.start) * 2**20) / 2**20
    return 1.0 - moment if OPPOSITE.get(str(shot.action)) in CHANGES else moment


def draw_stage(video: Video, index: int) -> Layout:
    """Places the things of a shot: draws layouts until no thing covers another, and takes the best after a few.

    Everything depends on the seed of the video and the number of the shot, in an order that opposite actions share.
    """
    shot = video.shots[index]
    rng = np.random.default_rng([video.seed, 0, index])
    wander = rng.random((2, 2, 3)) * (0.0, 0.7, 1.0) + ((0.6 * DRIFT, 0.2, 0.0), (0.4 * DRIFT, 0.6, 0.0))
    most, still, moving = -np.inf, [], []
    angles = 2 * np.pi * rng.random(2 + len(shot.bystanders))
    for _ in range(TRIES):
        actors = _actors(shot, angles, rng)
        room, others = _bystanders(shot, angles[2:], actors, rng)
        if room > most:
            most, still, moving = room, others, actors
        if room >= ROOM:
            break
    return Layout(still, moving, _post(still, moving, rng) if video.occluder else None, wander)


def _placed(
    thing: Thing,
    place: Float64[np.ndarray, "2"],
    angle: float,
    change: tuple[int, float, float] | None = None,
    wait: float = 0.0,
) -> PlacedThing:
    ends = np.tile((*place, RADIUS[thing.size], angle, 1.0, 0.0), (2, 1))
    if change is not None:
        ends[:, change[0]] = change[1:]
    return PlacedThing(thing, ends, wait)


def _actors(shot: Shot, angles: Times, rng: np.random.Generator) -> list[PlacedThing]:
    """The things that act, at a random place; the last one is drawn on top."""
    shares, actor, action = rng.random(2), shot.actor, shot.action
    lane = shares[[1, 1]]  # of what moves along one axis
    if actor is None or action is None:
        return []
    if shot.other is not None and shot.heading is not None:
        pair = (actor, shot.other) if action == PUSHES[0] else (shot.other, actor)
        return _push(pair, shot.heading, angles[:2], lane)
    number, start, end = CHANGES[action if action in CHANGES else OPPOSITE[action]]
    edge = 1.2 * (end if number == SIZE else RADIUS[actor.size]) + (6 if number == GLOW else 3)
    if number == ANGLE:
        turn = np.deg2rad(min(end, MAX_TURN * FPS * (shot.end - shot.start)))
        start, end = angles[0], angles[0] + turn
    return [_placed(actor, _between(edge, lane if number in (X, Y) else shares), angles[0], (number, start, end))]


def _push(pair: tuple[Thing, Thing], heading: str, angles: Times, lane: Times) -> list[PlacedThing]:
    """One thing comes up behind the other, then both move on together; they cross the whole frame."""
    behind, ahead = pair
    radii = [RADIUS[thing.size] for thing in pair]
    turned = angles - WAYS[heading]  # as seen from the way they go
    # between the centres when they touch
    way = (_profile(behind, turned[0]) + _profile(ahead, turned[1] + np.pi)[::-1]).max()
    start, end = 0.65 * radii[0], FRAME - 0.65 * radii[1]
    travel = end - way - start
    tracks = (start, start + travel), (start + way + APPROACH * travel, end)
    lane = _between(1.2 * max(radii) + 3, lane)
    parts = []
    for thing, track, angle, wait in zip(pair, tracks, angles, (0.0, APPROACH), strict=True):
        start, end = (FRAME - place for place in track) if heading in ("left", "up") else track
        parts.append(_placed(thing, lane, angle, (X if heading in ("left", "right") else Y, start, end), wait))
    return parts


def _profile(thing: Thing, angle: float) -> Times:
    """How far a thing reaches upwards from its centre in each column of pixels; minus infinity where it does not."""
    radius = RADIUS[thing.size]
    steps = np.arange(-20, 21) / radius
    x, y = steps[None, None, :], steps[None, :, None]
    sin, cos = np.round((np.sin(angle), np.cos(angle)), 6)
    inside = shape_distance(thing.shape, x * sin - y * cos, x * cos + y * sin)[0] <= 0
    return np.where(inside, -radius * steps[:, None], -np.inf).max(axis=0)


def _bystanders(
    shot: Shot, angles: Times, moving: list[PlacedThing], rng: np.random.Generator
) -> tuple[float, list[PlacedThing]]:
    """Bystanders at random places apart from everything else, and the smallest gap that is left, in pixels."""
    taken = np.concatenate([np.empty((0, 3)), *(part.discs() for part in moving)])
    least, still = np.inf, []
    for thing, angle in zip(shot.bystanders, angles, strict=True):
        radius = RADIUS[thing.size]
        places = radius + 2 + (FRAME - 2 * radius - 4) * rng.random((PLACES, 2))
        gaps = np.sqrt(((places[:, None] - taken[:, :2]) ** 2).sum(-1)) - taken[:, 2] - 1.2 * radius
        room = gaps.min(axis=1, initial=ROOM)
        pick = room.argmax()  # the first that is good enough, or else the best
        least = min(least, room[pick])
        still.append(_placed(thing, places[pick], angle))
        taken = np.concatenate([taken, still[-1].discs()[:1]])
    return least, still


def _post(still: list[PlacedThing], moving: list[PlacedThing], rng: np.random.Generator) -> int:
    """A column for the post where no thing stays hidden: things pass behind a post, but do not stay there."""
    columns = rng.integers(6, FRAME - 6, PLACES)
    free = np.full(PLACES, 12.0)
    for part, room in [*((part, -3) for part in still), *((part, 0) for part in moving)]:
        start, end = part.ends[:, X]
        if start == end:
            free = np.minimum(free, np.abs(columns - start) - room)
    return int(columns[free.argmax()])


def _between(edge: float, shares: Float64[np.ndarray, "2"]) -> Float64[np.ndarray, "2"]:
    """A place at least `edge` away from all sides of the frame."""
    return edge + (FRAME - 2 * edge) * shares
