"""Draws the videos of a split at random: timelines, casts and actions, many of them one detail apart."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.random import Generator

from prvr.toy.world import ACTIONS, BACKGROUNDS, HEADINGS, OPPOSITE, PUSHES, VALUES, Shot, Thing, Video

T = TypeVar("T")
Allowed = Callable[[Shot], bool]
FEW = 50  # videos


def draw_videos(names: list[str], rng: Generator, allowed: Allowed) -> list[Video]:
    """Draws videos of 20-120 s with 3-5 captioned moments of 3-15 s and, between them, other action and stillness.

    A third of the actions repeat one of an earlier video with one detail changed, and two in five casts are an earlier
    one with colours exchanged (more where there are few videos). To tell such videos apart, a model must know which
    property belongs to which thing, and which way an action goes.

    Args:
        names: ids of the videos.
        rng: source of randomness.
        allowed: whether a shot may be shown; otherwise another one is drawn.
    """
    videos: list[Video] = []
    casts: list[tuple[Thing, ...]] = []
    earlier: list[tuple[Thing, str, Thing | None]] = []
    same_cast, same_action = (0.6, 0.7) if len(names) < FEW else (0.4, 0.35)
    # Few videos share fewer backgrounds, so that no background belongs to a single video.
    backgrounds = rng.permutation(BACKGROUNDS)[: max(2, len(names) // 5)].tolist()

    def draw_action(empty: Shot, cast: tuple[Thing, ...]) -> Shot:
        if not earlier or rng.random() >= same_action:
            actor, other = (cast[i] for i in rng.permutation(len(cast))[:2])
            return act(empty, actor, choice(ACTIONS, rng), other, rng)
        actor, action, other = choice(earlier, rng)
        detail = choice(("action", "action", *VALUES, *["other"] * (other is not None)), rng)
        if detail == "action":
            action = OPPOSITE[action]
        elif detail == "other":
            other = None  # another one is drawn
        else:
            actor = replace(actor, **{detail: choice(VALUES[detail], rng)})
        return act(empty, actor, action, other, rng)

    for name in names:
        cast = _until(partial(_draw_cast, rng, casts, same_cast), lambda cast: allowed(Shot(0.0, 1.0, bystanders=cast)))
        background, duration = choice(backgrounds, rng), round(rng.uniform(20, 120), 1)
        cuts, captioned = _draw_cuts(duration, rng)
        shots: list[Shot] = []
        for i, (start, end) in enumerate(pairwise(cuts)):
            shot = Shot(start, end, captioned=i in captioned)
            if i % 2:
                shot = _until(partial(draw_action, shot, cast), lambda shot: allowed(shot) and shot.distinct)
            if start < end:
                shots.append(_until(partial(_with_bystanders, shot, cast, rng), allowed))
        earlier += [(shot.actor, shot.action, shot.other) for shot in shots if shot.actor and shot.action]
        casts.append(cast)
        occluder, seed = rng.random() < 0.3, int(rng.integers(2**31))
        videos.append(Video(name, duration, background, occluder, seed, tuple(shots)))
    return videos


def _draw_cuts(duration: float, rng: Generator) -> tuple[list[float], list[int]]:
    """The times between which shots lie, each second one with an action, and the numbers of the captioned ones."""
    captioned, others = (rng.integers(3, 6), rng.integers(2, 5)) if duration > 45 else (3, 1)
    count = captioned + others
    # Lengths, then gaps, out of a budget; at most 85 % of the video is action.
    lengths = rng.uniform(3, 15, count)
    budget = 0.85 * duration
    if lengths.sum() > budget:
        lengths = 3 + (lengths - 3) * max(0.0, (budget - 3 * count) / (lengths - 3).sum())
    gaps = rng.dirichlet(np.ones(count + 1)) * (duration - lengths.sum())
    chosen = 2 * rng.permutation(count)[:captioned] + 1
    cuts = np.round(np.cumsum(np.stack([gaps[:-1], lengths], 1).ravel()), 2)
    return [0.0, *cuts.tolist(), duration], chosen.tolist()


def _draw_cast(rng: Generator, earlier: list[tuple[Thing, ...]], again: float) -> tuple[Thing, ...]:
    """Two or three different things that act in a video; as in real videos, the same ones act several times."""
    if earlier and rng.random() < again:
        things = choice(earlier, rng)
        return tuple(replace(a, colour=b.colour) for a, b in zip(things, things[1:] + things[:1], strict=True))
    cast: dict[tuple[str, str], Thing] = {}
    while len(cast) < 2 or (len(cast) < 3 and rng.random() < 0.5):
        thing = draw_thing(rng)
        cast[thing.look] = thing
    return tuple(cast.values())


def draw_thing(rng: Generator) -> Thing:
    """A random thing."""
    return Thing(*(choice(values, rng) for values in VALUES.values()))


def _with_bystanders(shot: Shot, cast: tuple[Thing, ...], rng: Generator) -> Shot:
    """The shot with up to two bystanders, none of which looks like a thing that acts."""
    for _ in range(rng.choice(3, p=(0.6, 0.3, 0.1))):
        thing = choice(cast, rng) if rng.random() < 0.7 else draw_thing(rng)
        more = replace(shot, bystanders=(*shot.bystanders, thing))
        shot = more if more.distinct else shot
    return shot


def act(empty: Shot, actor: Thing, action: str, other: Thing | None, rng: Generator) -> Shot:
    """A shot in which nothing happened, with an action; a push gets a heading, and a partner if it has none."""
    if action not in PUSHES:
        return replace(empty, actor=actor, action=action)
    other = other or _until(partial(draw_thing, rng), lambda thing: thing.look != actor.look)
    return replace(empty, actor=actor, action=action, other=other, heading=choice(HEADINGS, rng))


def _until(draw: Callable[[], T], accept: Callable[[T], bool]) -> T:
    while not accept(drawn := draw()):
        pass
    return drawn


def choice(values: Sequence[T], rng: Generator) -> T:
    """Any of some values."""
    return values[int(rng.integers(len(values)))]
