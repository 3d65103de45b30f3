"""The layout of a shot: where its things are and how they change, before any pixel is drawn."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from prvr.toy.shapes import shape_distance
from prvr.toy.world import FPS, FRAME, PUSHES, Shot, Thing, Video

RADIUS = {"small": 5.5, "medium": 8.0, "large": 11.5}  # pixels
GROWN = (4.5, 14.0)
TURNS, MAX_TURN = 1.25, 50.0  # of a shot; degrees between two frames, where the shot is short
APPROACH = 0.3  # of a push, before the two touch
DRIFT = 3  # pixels that the camera wanders at most
# One of a pair is the other played backwards: both show the same frames, in opposite orders.
FORWARDS = {
    "left": "right", "up": "down", "shrink": "grow", "vanish": "appear", "anticlockwise": "clockwise",
    "darken": "brighten",
}  # fmt: skip
WAYS = {"left": -np.pi / 2, "right": np.pi / 2, "up": 0.0, "down": np.pi}
"""Clockwise angles from up, in radians."""
Times = Float64[np.ndarray, " k"]
TRIES, PLACES = 12, 24  # of a layout; of a bystander in it
ROOM = 2.0  # pixels between two things that are enough


@dataclass(frozen=True)
class Ramp:
    """A number that goes evenly from `start` to `end`, after it has waited for a share of the time."""

    start: float
    end: float
    wait: float = 0.0

    def at(self, moment: Times) -> Times:
        """Its value at moments in 0..1."""
        share = np.maximum(moment - self.wait, 0.0) / (1.0 - self.wait)
        return self.start + (self.end - self.start) * share


@dataclass(frozen=True)
class PlacedThing:
    """A thing in a shot and how it changes: centre and radius in pixels, clockwise angle in radians."""

    thing: Thing
    x: Ramp
    y: Ramp
    radius: Ramp
    angle: Ramp
    opacity: Ramp = Ramp(1.0, 1.0)
    glow: Ramp = Ramp(0.0, 0.0)

    @property
    def looks(self) -> tuple[Ramp, ...]:
        """All but its place."""
        return self.radius, self.angle, self.opacity, self.glow

    @property
    def only_moves(self) -> bool:
        """Whether the thing moves but looks the same all the time."""
        return all(ramp.start == ramp.end for ramp in self.looks)

    def centre(self, moment: Times) -> Int64[np.ndarray, "k 2"]:
        """The pixel it is centred on, x and y, before the camera's drift."""
        return np.rint(np.stack([self.x.at(moment), self.y.at(moment)], axis=1)).astype(np.int64)

    def discs(self) -> Float64[np.ndarray, "9 3"]:
        """Discs (x, y, radius) that cover the thing over the whole shot."""
        moment = np.arange(9) / 8
        room = 1.2 * max(self.radius.start, self.radius.end)
        return np.stack([self.x.at(moment), self.y.at(moment), np.full(9, room)], axis=1)


@dataclass(frozen=True)
class Layout:
    """A shot, ready to be drawn.

    Args:
        still: the bystanders.
        moving: the things that act, drawn in this order over the bystanders.
        post: middle column of a post in front of everything; None: there is no post.
        wander: two waves of camera drift per axis: amplitude, cycles in the shot, phase.
    """

    still: tuple[PlacedThing, ...]
    moving: tuple[PlacedThing, ...]
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
    return 1.0 - moment if shot.action in FORWARDS else moment


def draw_stage(video: Video, index: int) -> Layout:
    """Places the things of a shot: draws layouts until no thing covers another, and takes the best after a few.

    Everything depends on the seed of the video and the number of the shot, in an order that opposite actions share.
    """
    shot = video.shots[index]
    rng = np.random.default_rng([video.seed, 0, index])
    wander = rng.random((2, 2, 3)) * (0.0, 0.7, 1.0) + ((0.6 * DRIFT, 0.2, 0.0), (0.4 * DRIFT, 0.6, 0.0))
    most, still, moving = -np.inf, (), ()
    angles = 2 * np.pi * rng.random(2 + len(shot.bystanders))
    for _ in range(TRIES):
        actors = _actors(shot, angles, rng)
        room, others = _place(shot.bystanders, angles[2:], actors, rng)
        if room > most:
            most, still, moving = room, others, actors
        if room >= ROOM:
            break
    return Layout(still, moving, _post(still, moving, rng) if video.occluder else None, wander)


def _actors(shot: Shot, angles: Times, rng: np.random.Generator) -> tuple[PlacedThing, ...]:
    """The things that act, at a random place; the last one is drawn on top."""
    along, across = rng.random(2)
    if shot.actor is None or shot.action is None:
        return ()
    if shot.other is not None and shot.heading is not None:
        ahead, behind = (shot.other, shot.actor) if shot.action == PUSHES[0] else (shot.actor, shot.other)
        return _push(behind, ahead, shot.heading, angles, across)
    action = FORWARDS.get(shot.action, shot.action)
    radius, angle = RADIUS[shot.actor.size], float(angles[0])
    edge = 1.2 * (GROWN[1] if action == "grow" else radius) + (6 if action == "brighten" else 3)
    x, y = (_still(_between(edge, share)) for share in (along, across))
    if action in WAYS:
        path = Ramp(0.12 * FRAME, 0.88 * FRAME)
        x, y = (path, y) if action == "right" else (y, path)
    turn = np.deg2rad(min(360 * TURNS, MAX_TURN * FPS * (shot.end - shot.start)))
    return (
        PlacedThing(
            shot.actor,
            x,
            y,
            radius=Ramp(*GROWN) if action == "grow" else _still(radius),
            angle=Ramp(angle, angle + float(turn)) if action == "clockwise" else _still(angle),
            opacity=Ramp(0.0, 1.0) if action == "appear" else _still(1.0),
            glow=Ramp(0.0, 1.0) if action == "brighten" else _still(0.0),
        ),
    )


def _push(behind: Thing, ahead: Thing, heading: str, angles: Times, across: float) -> tuple[PlacedThing, ...]:
    """One thing comes up behind the other, then both move on together; they cross the whole frame."""
    radii = RADIUS[behind.size], RADIUS[ahead.size]
    turned = angles[:2] - WAYS[heading]  # as seen from the way they go
    front = _profile(behind, float(turned[0]))
    back = _profile(ahead, float(turned[1]) + np.pi)
    way = float((front + back[::-1]).max())  # between the centres when they touch
    start, end = 0.65 * radii[0], FRAME - 0.65 * radii[1]
    travel = end - way - start
    tracks = Ramp(start, start + travel), Ramp(start + way + APPROACH * travel, end, APPROACH)
    lane = _still(_between(1.2 * max(radii) + 3, across))
    parts = []
    for thing, track, radius, angle in zip((behind, ahead), tracks, radii, angles[:2].tolist(), strict=True):
        if heading in ("left", "up"):
            track = Ramp(FRAME - track.start, FRAME - track.end, track.wait)
        x, y = (track, lane) if heading in ("left", "right") else (lane, track)
        parts.append(PlacedThing(thing, x, y, _still(radius), _still(angle)))
    return tuple(parts)


def _profile(thing: Thing, angle: float) -> Times:
    """How far a thing reaches upwards from its centre in each column of pixels; minus infinity where it does not."""
    radius = RADIUS[thing.size]
    steps = np.arange(-20, 21) / radius
    x, y = steps[None, None, :], steps[None, :, None]
    sin, cos = np.round((np.sin(angle), np.cos(angle)), 6)
    inside = shape_distance(thing.shape, x * sin - y * cos, x * cos + y * sin)[0] <= 0
    return np.where(inside, -radius * steps[:, None], -np.inf).max(axis=0)


def _place(
    things: tuple[Thing, ...],
    angles: Times,
    moving: tuple[PlacedThing, ...],
    rng: np.random.Generator,
) -> tuple[float, tuple[PlacedThing, ...]]:
    """Bystanders at random places apart from everything else, and the smallest gap that is left, in pixels."""
    taken = np.concatenate([np.empty((0, 3)), *(part.discs() for part in moving)])
    least, still = np.inf, []
    for thing, angle in zip(things, angles.tolist(), strict=True):
        radius = RADIUS[thing.size]
        places = radius + 2 + (FRAME - 2 * radius - 4) * rng.random((PLACES, 2))
        gaps = np.sqrt(((places[:, None] - taken[:, :2]) ** 2).sum(-1)) - taken[:, 2] - 1.2 * radius
        room = gaps.min(axis=1, initial=ROOM)
        pick = int(room.argmax())  # the first that is good enough, or else the best
        least = min(least, float(room[pick]))
        part = PlacedThing(thing, _still(places[pick, 0]), _still(places[pick, 1]), _still(radius), _still(angle))
        still.append(part)
        taken = np.concatenate([taken, part.discs()[:1]])
    return least, tuple(still)


def _post(still: tuple[PlacedThing, ...], moving: tuple[PlacedThing, ...], rng: np.random.Generator) -> int:
    """A column for the post where no thing stays hidden: things pass behind a post, but do not stay there."""
    columns = rng.integers(6, FRAME - 6, PLACES)
    free = np.full(PLACES, 12.0)
    for part in still + moving:
        if part.x.start == part.x.end:
            free = np.minimum(free, np.abs(columns - part.x.start) - (0 if part in moving else -3))
    return int(columns[free.argmax()])


def _between(edge: float, share: float) -> float:
    """A place at least `edge` away from both sides of the frame."""
    return edge + (FRAME - 2 * edge) * float(share)


def _still(value: float) -> Ramp:
    return Ramp(float(value), float(value))
