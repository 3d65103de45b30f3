"""Draws the videos of a split at random: timelines, casts and actions, many of them one detail apart."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

import numpy as np

from prvr.toy.world import (
    ACTIONS,
    BACKGROUNDS,
    COLOURS,
    HEADINGS,
    OPPOSITE,
    PUSHES,
    SHAPES,
    SIZES,
    Shot,
    Thing,
    Video,
)

T = TypeVar("T")
Allowed = Callable[[Shot], bool]
FEW = 50  # videos
_VALUES = {"shape": SHAPES, "colour": COLOURS, "size": SIZES}


def draw_videos(names: list[str], rng: np.random.Generator, allowed: Allowed) -> list[Video]:
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
    earlier: list[Shot] = []
    same_cast, same_action = (0.6, 0.7) if len(names) < FEW else (0.4, 0.35)
    # Few videos share fewer backgrounds, so that no background belongs to a single video.
    backgrounds = rng.permutation(BACKGROUNDS)[: max(2, len(names) // 5)].tolist()
    for name in names:
        cast = _until(lambda: draw_cast(rng, casts, same_cast), lambda cast: allowed(Shot(0.0, 1.0, bystanders=cast)))
        video = _draw_video(name, choice(backgrounds, rng), cast, earlier, rng, allowed, same_action)
        earlier += [shot for shot in video.shots if shot.action is not None]
        casts.append(cast)
        videos.append(video)
    return videos


def draw_cast(rng: np.random.Generator, earlier: list[tuple[Thing, ...]], again: float) -> tuple[Thing, ...]:
    """Two or three different things that act in a video; as in real videos, the same ones act several times."""
    if earlier and rng.random() < again:
        things = choice(earlier, rng)
        colours = [thing.colour for thing in things]
        return tuple(replace(t, colour=colour) for t, colour in zip(things, colours[1:] + colours[:1], strict=True))
    cast: dict[tuple[str, str], Thing] = {}
    while len(cast) < 2 or (len(cast) < 3 and rng.random() < 0.5):
        thing = draw_thing(rng)
        cast[thing.look] = thing
    return tuple(cast.values())


def draw_thing(rng: np.random.Generator) -> Thing:
    """A random thing."""
    return Thing(choice(SHAPES, rng), choice(COLOURS, rng), choice(SIZES, rng))


def draw_bystanders(rng: np.random.Generator, shot: Shot, cast: tuple[Thing, ...]) -> Shot:
    """The shot with up to two bystanders, none of which looks like a thing that acts."""
    for _ in range(int(rng.choice(3, p=(0.6, 0.3, 0.1)))):
        thing = choice(cast, rng) if rng.random() < 0.7 else draw_thing(rng)
        more = replace(shot, bystanders=(*shot.bystanders, thing))
        shot = more if more.distinct else shot
    return shot


def one_detail_changed(shot: Shot, rng: np.random.Generator) -> Shot:
    """The action of a shot, not yet placed in time, with the opposite action, another shape, colour or size of the
    actor, or another partner.
    """
    actor, action, other = shot.actor, shot.action, shot.other
    assert actor is not None and action is not None  # noqa: PT018
    detail = choice(("action", "action", "shape", "colour", "size", *["other"] * (other is not None)), rng)
    if detail == "action":
        action = OPPOSITE[action]
    elif detail == "other":
        other = _unlike(actor, rng)
    else:
        actor = replace(actor, **{detail: choice(_VALUES[detail], rng)})
    return act(actor, action, other, rng)


def act(actor: Thing, action: str, other: Thing | None, rng: np.random.Generator) -> Shot:
    """A shot of an action, not yet placed in time; a push gets a heading, and a partner if it has none."""
    if action not in PUSHES:
        return Shot(0.0, 0.0, actor, action)
    return Shot(0.0, 0.0, actor, action, other or _unlike(actor, rng), choice(HEADINGS, rng))


def _draw_video(
    name: str,
    background: str,
    cast: tuple[Thing, ...],
    earlier: list[Shot],
    rng: np.random.Generator,
    allowed: Allowed,
    again: float,
) -> Video:
    duration = round(float(rng.uniform(20, 120)), 1)
    captioned, others = (int(rng.integers(3, 6)), int(rng.integers(2, 5))) if duration > 45 else (3, 1)
    count = captioned + others
    # Lengths, then gaps, out of a budget; at most 85 % of the video is action.
    lengths = rng.uniform(3, 15, count)
    budget = 0.85 * duration
    if lengths.sum() > budget:
        lengths = 3 + (lengths - 3) * max(0.0, (budget - 3 * count) / (lengths - 3).sum())
    gaps = rng.dirichlet(np.ones(count + 1)) * (duration - lengths.sum())
    chosen = set(rng.permutation(count)[:captioned].tolist())
    cuts = np.round(np.cumsum(np.stack([gaps[:-1], lengths], 1).ravel()), 2).tolist()

    def action() -> Shot:
        if earlier and rng.random() < again:
            return one_detail_changed(choice(earlier, rng), rng)
        actor, other = (cast[i] for i in rng.permutation(len(cast))[:2])
        return act(actor, choice(ACTIONS, rng), other, rng)

    shots: list[Shot] = []
    for i, (start, end) in enumerate(pairwise((0.0, *cuts, duration))):
        if i % 2:
            shot = replace(_until(action, lambda shot: allowed(shot) and shot.distinct), captioned=i // 2 in chosen)
        elif end > start:
            shot = Shot(0.0, 0.0)  # nothing happens
        else:
            continue
        shot = replace(shot, start=start, end=end)
        shots.append(_until(lambda shot=shot: draw_bystanders(rng, shot, cast), allowed))
    return Video(name, duration, background, bool(rng.random() < 0.3), int(rng.integers(2**31)), tuple(shots))


def _unlike(thing: Thing, rng: np.random.Generator) -> Thing:
    return _until(lambda: draw_thing(rng), lambda other: other.look != thing.look)


def _until(draw: Callable[[], T], accept: Callable[[T], bool]) -> T:
    while not accept(drawn := draw()):
        pass
    return drawn


def choice(values: Sequence[T], rng: np.random.Generator) -> T:
    """Any of some values."""
    return values[int(rng.integers(len(values)))]
