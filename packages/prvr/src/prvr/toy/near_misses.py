"""Relevance sets and near misses: which videos a claim is true of, which come near, and how those are planted."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
from jaxtyping import Bool
from numpy.random import Generator

from prvr.toy.timelines import Allowed, act, choice, draw_thing
from prvr.toy.world import ACTIONS, BACKGROUNDS, COLOURS, OPPOSITE, SHAPES, VALUES, Claim, Sentence, Shot, Thing, Video

KINDS = ("one factor", "rebound", "opposite")
NEEDED = np.array([[4], [2], [1]])
"""Videos of each kind that a test gallery holds for a sentence; the opposite action only where there is room."""
PLACES, REFUSALS = 60, 6  # shots that are tried for one near miss; shots that may not be shown until the search ends
SHORTEST = 3.0  # seconds an action takes
_NUMBER = {value: i for i, value in enumerate(chain(ACTIONS, *VALUES.values(), BACKGROUNDS))} | {None: -1}
_ACTION = 3  # the column of actions; the numbers of opposite ones differ in their last bit


def relevance(sentences: Sequence[Sentence], videos: Sequence[Video]) -> dict[str, list[str]]:
    """The ids of all videos that show what a sentence claims, in a shot with or without a caption, by its id."""
    rows = near_misses([sentence.claim for sentence in sentences], videos)[0]
    return {s.id: [videos[v].id for v in np.flatnonzero(row).tolist()] for s, row in zip(sentences, rows, strict=True)}


def near_misses(claims: Iterable[Claim], videos: Iterable[Video]) -> Bool[np.ndarray, "4 q v"]:
    """Compares every claim with every fact of every video.

    Returns:
        relevant: the claim is true of a shot.
        one factor: not relevant, but a shot differs in just one of the factors that the claim names.
        rebound: not relevant, but everything the claim names is somewhere in the video, bound otherwise.
        opposite: not relevant, but a shot shows the opposite action, and all else is as claimed.
    """
    rows = _numbers(claims)
    return np.stack([_compare(rows, video) for video in videos], -1)


def _numbers(claims: Iterable[Claim]) -> np.ndarray:
    """What claims say, (n 7), as numbers; -1 where they say nothing."""
    return np.array([[_NUMBER[value] for value in vars(claim).values()] for claim in claims], np.int64).reshape(-1, 7)


def _compare(claims: np.ndarray, video: Video) -> np.ndarray:
    """The column of a video in `near_misses`, (4 q), of (q 7) claims."""
    facts = [fact for shot in video.shots for fact in shot.facts()]
    rows = _numbers([*facts, *{sight for shot in video.shots for sight in shot.sights()}])
    rows[:, -1] = _NUMBER[video.background]
    differs = (claims[:, None] >= 0) & (claims[:, None] != rows)
    wrong = differs[:, : len(facts)]
    count = wrong.sum(2)
    relevant = (count == 0).any(1)
    opposite = rows[: len(facts), _ACTION] == claims[:, _ACTION, None] ^ 1
    near = (count == 1).any(1), ~differs.all(1).any(1), ((count == 1) & opposite).any(1)
    return np.stack([relevant, *(kind & ~relevant for kind in near)])


def plant_near_misses(videos: list[Video], claims: Sequence[Claim], rng: Generator, allowed: Allowed) -> bool:
    """Changes shots without a caption until every claim has the near misses it needs, where there is room.

    Captioned shots, times, backgrounds and seeds are unchanged.

    Args:
        videos: a gallery; the changed videos take their places in it.
        claims: the claims of its sentences.
        rng: source of randomness.
        allowed: whether a shot may be planted.

    Returns:
        Whether all have them but for opposite actions.
    """
    rows, compared = _numbers(claims), near_misses(claims, videos)
    count = compared[1:].sum(-1)

    def plant_one(q: int, kind: int) -> bool:
        """Puts one near miss of a claim into the first video where it helps more than it harms, if there is one."""
        claim, refused = claims[q], 0
        hosts = rng.permutation(np.flatnonzero(~compared[[0, 1 + kind], q].any(0))).tolist()
        shots = ((v, i, shot) for v in hosts for i, shot in enumerate(videos[v].shots))
        places = [(v, i) for v, i, shot in shots if not shot.captioned and shot.end - shot.start >= SHORTEST]
        for v, number in places[:PLACES]:
            video = videos[v]
            elsewhere = claim.background not in (None, video.background)
            if elsewhere and KINDS[kind] != "one factor":
                continue
            shot = _near_miss(claim, "elsewhere" if elsewhere else KINDS[kind], video.shots[number], rng)
            if not allowed(shot):
                refused += 1
                if refused == REFUSALS:  # the opposite action is held out for this shape
                    break
            elif shot.distinct:
                changed = replace(video, shots=(*video.shots[:number], shot, *video.shots[number + 1 :]))
                column = _compare(rows, changed)
                after = count + column[1:] - compared[1:, :, v]
                # It may not be relevant, has to come near, and other claims lose less than is gained.
                if not column[0, q] and column[1 + kind, q] and _missing(after).sum() < _missing(count).sum():
                    videos[v], compared[:, :, v], count[:] = changed, column, after
                    return True
        return False

    while (before := _missing(count)).any():
        for q in rng.permutation(np.flatnonzero(before.any(0))).tolist():
            for kind in range(len(KINDS)):
                while _missing(count)[kind, q] and plant_one(q, kind):
                    pass
        if _missing(count).sum() >= before.sum():  # what one claim gains another may lose
            break
    return not _missing(count)[:2].any()


def _missing(count: np.ndarray) -> np.ndarray:
    """The number of near misses of each kind that each claim lacks, (3 q), from the number of videos that come near."""
    return np.maximum(NEEDED - count, 0)


def _near_miss(claim: Claim, kind: str, place: Shot, rng: Generator) -> Shot:
    thing, action, other = draw_thing(rng), str(claim.action), None
    actor = Thing(claim.shape, claim.colour or thing.colour, claim.size or thing.size)
    standing = tuple[Thing, ...]()
    if claim.other_shape and claim.other_colour:
        other = Thing(claim.other_shape, claim.other_colour, thing.size)
    if kind == "opposite":
        action = OPPOSITE[action]
    elif kind == "rebound" and other:  # who does it to whom is exchanged, or whose colour is whose
        if rng.random() < 0.5:
            actor, other = other, actor
        else:
            actor, other = replace(actor, colour=other.colour), replace(other, colour=actor.colour)
    elif kind != "elsewhere":  # where the same is a near miss
        right, actor = actor, replace(actor, shape=_other(SHAPES, claim.shape, rng))
        if kind == "rebound":  # the right shape stands by, in another colour
            standing = (Thing(claim.shape, _other(COLOURS, right.colour, rng), thing.size),)
        elif claim.colour and rng.random() < 0.5:
            actor = replace(right, colour=_other(COLOURS, claim.colour, rng))
    return act(Shot(place.start, place.end, bystanders=standing), actor, action, other, rng)


def _other(values: tuple[str, ...], value: str, rng: Generator) -> str:
    place = values.index(value)
    return choice(values[place + 1 :] + values[:place], rng)
