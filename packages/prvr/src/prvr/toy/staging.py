"""The layout of a shot: where its things are and how they change, before any pixel is drawn."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64
from numpy.random import Generator, default_rng

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

    def centre(self, moment: Times) -> Int64[np.ndarray, "k 2"]:
        """The pixel it is centred on, x and y, before the camera's drift."""
        return np.rint(self.at(moment)[:SIZE].T).astype(np.int64)

    def discs(self) -> Float64[np.ndarray, "9 3"]:
        """Discs (x, y, radius) that cover the thing over the whole shot."""
        discs = self.at(np.arange(9) / 8)[:ANGLE].T
        discs[:, SIZE] = 1.2 * self.ends[:, SIZE].max()
        return discs


class Layout(NamedTuple):
    """A shot, ready to be drawn at some moments.

    Args:
        still: the bystanders.
        moving: the things that act, drawn in this order over the bystanders.
        post: middle column of a post in front of everything; None: there is no post.
        moments: the progress of the shot, from 0 to 1, or from 1 to 0 where the action is another one backwards.
        drift: the shift of the picture by the camera at each moment, x and y in whole pixels.
    """

    still: list[PlacedThing]
    moving: list[PlacedThing]
    post: int | None
    moments: Times
    drift: Int64[np.ndarray, "k 2"]


def draw_stage(video: Video, index: int, times: Times) -> Layout:
    """Places the things of a shot: draws layouts until no thing covers another, and takes the best after a few.

    Everything depends on the seed of the video and the number of the shot, in an order that opposite actions share.

    Args:
        video: what to draw.
        index: the number of the shot.
        times: in seconds, all of them in this shot.
    """
    shot = video.shots[index]
    rng = default_rng([video.seed, 0, index])
    # Rounded to multiples of 2^-20, so that 1 - moment is exact, and with it the reversal.
    moments = np.rint((times - shot.start) / (shot.end - shot.start) * 2**20) / 2**20
    moments = 1.0 - moments if OPPOSITE.get(str(shot.action)) in CHANGES else moments
    # Two waves of camera drift per axis: amplitude, cycles in the shot, phase.
    waves = rng.random((2, 2, 3)) * (0.0, 0.7, 1.0) + ((0.6 * DRIFT, 0.2, 0.0), (0.4 * DRIFT, 0.6, 0.0))
    size, cycles, phase = np.moveaxis(waves, -1, 0)
    swing = np.round(np.sin(2 * np.pi * (cycles * moments[:, None, None] + phase)), 6)
    drift = np.rint((size * swing).sum(-1)).astype(np.int64)
    most, still, moving = -np.inf, [], []
    angles = 2 * np.pi * rng.random(2 + len(shot.bystanders))
    for _ in range(TRIES):
        actors, others, least = _actors(shot, angles, rng), [], ROOM
        taken = np.concatenate([np.empty((0, 3)), *(part.discs() for part in actors)])
        for thing, angle in zip(shot.bystanders, angles[2:], strict=True):
            radius = RADIUS[thing.size]
            places = radius + 2 + (FRAME - 2 * radius - 4) * rng.random((PLACES, 2))
            gaps = np.sqrt(((places[:, None] - taken[:, :2]) ** 2).sum(-1)) - taken[:, 2] - 1.2 * radius
            room = gaps.min(axis=1, initial=ROOM)
            pick = room.argmax()  # the first that is good enough, or else the best
            least = min(least, room[pick])
            others.append(_placed(thing, places[pick], angle))
            taken = np.concatenate([taken, others[-1].discs()[:1]])
        if least > most:
            most, still, moving = least, others, actors
        if least >= ROOM:
            break
    return Layout(still, moving, _post(still, moving, rng) if video.occluder else None, moments, drift)


def _placed(thing: Thing, place: Times, angle: float, wait: float = 0.0) -> PlacedThing:
    """A thing that does not change yet."""
    return PlacedThing(thing, np.tile((*place, RADIUS[thing.size], angle, 1.0, 0.0), (2, 1)), wait)


def _actors(shot: Shot, angles: Times, rng: Generator) -> list[PlacedThing]:
    """The things that act, at a random place; the last one is drawn on top."""
    shares, actor, action = rng.random(2), shot.actor, shot.action
    lane = shares[[1, 1]]  # one share on both axes, for a thing that moves along one
    if not (actor and action):
        return []
    if shot.other and shot.heading:
        pair = (actor, shot.other) if action == PUSHES[0] else (shot.other, actor)
        return _push(pair, shot.heading, angles[:2], lane)
    number, start, end = CHANGES[action if action in CHANGES else OPPOSITE[action]]
    edge = 1.2 * (end if number == SIZE else RADIUS[actor.size]) + (6 if number == GLOW else 3)
    place = edge + (FRAME - 2 * edge) * (lane if number in (X, Y) else shares)
    part = _placed(actor, place, angles[0])
    part.ends[:, number] = start, end
    if number == ANGLE:
        part.ends[:, ANGLE] = angles[0] + (0.0, np.deg2rad(min(end, MAX_TURN * FPS * (shot.end - shot.start))))
    return [part]


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
    edge, axis = 1.2 * max(radii) + 3, X if heading in ("left", "right") else Y
    parts = []
    for thing, track, angle, wait in zip(pair, tracks, angles, (0.0, APPROACH), strict=True):
        parts.append(_placed(thing, edge + (FRAME - 2 * edge) * lane, angle, wait))
        parts[-1].ends[:, axis] = FRAME - np.array(track) if heading in ("left", "up") else track
    return parts


def _profile(thing: Thing, angle: float) -> Times:
    """How far a thing reaches upwards from its centre in each column of pixels; minus infinity where it does not."""
    radius = RADIUS[thing.size]
    steps = np.arange(-20, 21) / radius
    x, y = steps, steps[:, None]
    sin, cos = np.round((np.sin(angle), np.cos(angle)), 6)
    inside = shape_distance(thing.shape, x * sin - y * cos, x * cos + y * sin) <= 0
    return np.where(inside, -radius * steps[:, None], -np.inf).max(axis=0)


def _post(still: list[PlacedThing], moving: list[PlacedThing], rng: Generator) -> int:
    """A column for the post where no thing stays hidden: things pass behind a post, but do not stay there."""
    columns = rng.integers(6, FRAME - 6, PLACES)
    stays = [part.ends[0, X] for part in moving if part.ends[0, X] == part.ends[1, X]]
    free = [np.abs(columns - x) for x in stays] + [np.abs(columns - part.ends[0, X]) + 3 for part in still]
    return int(columns[np.min([np.full(PLACES, 12.0), *free], axis=0).argmax()])
