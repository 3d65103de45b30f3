"""Relevance sets and near misses: which videos a claim is true of, which come near, and how those are planted."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from prvr.toy.grammar import Claim
from prvr.toy.timelines import Allowed, act, draw_thing
from prvr.toy.world import ACTIONS, BACKGROUNDS, COLOURS, OPPOSITE, SHAPES, SIZES, Shot, Thing, Video

ONE_FACTOR, REBOUND = 4, 2
"""Minimum number of videos in a test gallery that hold a moment which differs from a sentence in one factor, or all its
words bound to other things."""
KINDS = ("one factor", "rebound", "opposite")
PLACES, REFUSALS = 60, 6  # shots that are tried for one near miss; shots that may not be shown until the search ends
SHORTEST = 3.0  # seconds an action takes
NEEDED = np.array([[ONE_FACTOR], [REBOUND], [1]])  # of each kind; the opposite action only where there is room
_VALUES = (SHAPES, COLOURS, SIZES, ACTIONS, SHAPES, COLOURS, BACKGROUNDS)
_NUMBER = tuple({value: i for i, value in enumerate(values)} for values in _VALUES)
_ACTION = 3  # the column of actions


class NearMisses(NamedTuple):
    """Boolean matrices of q claims and v videos: what matches, and what does not match but comes near.

    Args:
        relevant: ``(q, v)`` the claim is true of a shot.
        one_factor: ``(q, v)`` not relevant, but a shot differs in just one of the factors that the claim names.
        rebound: ``(q, v)`` not relevant, but everything the claim names is somewhere in the video, bound otherwise.
        opposite: ``(q, v)`` not relevant, but a shot shows the opposite action, and all else is as claimed.
    """

    relevant: np.ndarray
    one_factor: np.ndarray
    rebound: np.ndarray
    opposite: np.ndarray


def relevance(claims: Mapping[str, Claim], videos: Sequence[Video]) -> dict[str, list[str]]:
    """For each claim the ids of all videos that it is true of: of a shot, captioned or not."""
    relevant = near_misses(list(claims.values()), videos).relevant
    return {
        name: [videos[v].id for v in np.flatnonzero(row).tolist()] for name, row in zip(claims, relevant, strict=True)
    }


def near_misses(claims: Sequence[Claim], videos: Sequence[Video]) -> NearMisses:
    """Compares every claim with every fact of every video."""
    rows = _claim_rows(claims)
    return NearMisses(*np.stack([_compare(rows, video) for video in videos], -1))


def missing(count: Int[np.ndarray, "3 q"]) -> Int[np.ndarray, "3 q"]:
    """The number of near misses that each claim lacks: one factor, rebound, opposite.

    Args:
        count: the number of videos that come near, of each kind.
    """
    return np.maximum(NEEDED - count, 0)


def _claim_rows(claims: Sequence[Claim]) -> Int[np.ndarray, "q 7"]:
    return _numbers(vars(claim).values() for claim in claims)


def _numbers(rows: Iterable[Iterable[str | None]]) -> Int[np.ndarray, "n 7"]:
    """The numbers of values, -1 where nothing is said."""
    numbers = [[number.get(value, -1) for value, number in zip(row, _NUMBER, strict=True)] for row in rows]  # pyright: ignore[reportArgumentType, reportCallIssue]
    return np.array(numbers, np.int64).reshape(-1, len(_NUMBER))


def _compare(claims: Int[np.ndarray, "q 7"], video: Video) -> Bool[np.ndarray, "4 q"]:
    """The column of a video in each matrix of `NearMisses`."""
    facts = video.facts()
    looks = {(thing, None, thing) for shot in video.shots for thing in shot.things}  # as if each were also a partner
    rows = _numbers(
        (thing.shape, thing.colour, thing.size, action, other and other.shape, other and other.colour, video.background)
        for thing, action, other in (*facts, *looks)
    )
    differs = (claims[:, None] >= 0) & (claims[:, None] != rows)
    wrong = differs[:, : len(facts)]
    count = wrong.sum(2)
    relevant = (count == 0).any(1)
    opposite = wrong[:, :, _ACTION] & (rows[: len(facts), _ACTION] == claims[:, _ACTION, None] ^ 1)
    near = (count == 1).any(1), ~differs.all(1).any(1), ((count == 1) & opposite).any(1)
    return np.stack([relevant, *(kind & ~relevant for kind in near)])


class NearMissPlanter:
    """Changes shots without a caption until every claim has the near misses it needs, where there is room.

    Args:
        videos: a gallery.
        claims: the claims of its sentences.
        own: number of the video that each sentence was written for.
        rng: source of randomness.
        allowed: whether a shot may be planted.
    """

    def __init__(
        self,
        videos: Sequence[Video],
        claims: Sequence[Claim],
        own: Sequence[int],
        rng: np.random.Generator,
        allowed: Allowed,
    ) -> None:
        self.videos, self.claims, self.own, self.rng, self.allowed = list(videos), claims, own, rng, allowed
        self.rows, self.compared = _claim_rows(claims), np.stack(near_misses(claims, videos))  # (4 q v)
        self.count = self.compared[1:].sum(-1)

    def plant(self) -> list[Video]:
        """The changed gallery; captioned shots, times, backgrounds and seeds are unchanged."""
        while (before := missing(self.count)).any():
            for q in self.rng.permutation(np.flatnonzero(before.any(0))).tolist():
                for kind in range(len(KINDS)):
                    while missing(self.count)[kind, q] and self._plant_one(q, kind):
                        pass
            if missing(self.count).sum() >= before.sum():  # what one claim gains another may lose
                break
        return self.videos

    def _plant_one(self, q: int, kind: int) -> bool:
        """Puts one near miss of a claim into the first video where it helps more than it harms, if there is one."""
        claim, refused = self.claims[q], 0
        hosts = self.rng.permutation(np.flatnonzero(~self.compared[[0, 1 + kind], q].any(0)))
        places = [(v, i) for v in hosts.tolist() if v != self.own[q] for i in self._room(v)]
        for v, number in places[:PLACES]:
            elsewhere = claim.background not in (None, self.videos[v].background)
            if elsewhere and KINDS[kind] != "one factor":
                continue
            shot = self._near_miss(claim, "elsewhere" if elsewhere else KINDS[kind], self.videos[v].shots[number])
            if self.allowed(shot):
                if self._accept(q, kind, v, number, shot):
                    return True
            else:
                refused += 1
                if refused == REFUSALS:  # the opposite action is held out for this shape
                    break
        return False

    def _room(self, v: int) -> list[int]:
        shots = self.videos[v].shots
        return [i for i, shot in enumerate(shots) if not shot.captioned and shot.end - shot.start >= SHORTEST]

    def _near_miss(self, claim: Claim, kind: str, shot: Shot) -> Shot:
        rng, thing, action = self.rng, draw_thing(self.rng), claim.action
        actor = Thing(claim.shape, claim.colour or thing.colour, claim.size or thing.size)
        other, standing = None, tuple[Thing, ...]()
        if claim.other_shape is not None and claim.other_colour is not None:
            other = Thing(claim.other_shape, claim.other_colour, thing.size)
        if kind == "opposite":
            action = OPPOSITE[action]
        elif kind == "rebound" and other is not None:  # who does it to whom is exchanged, or whose colour is whose
            if rng.random() < 0.5:
                actor, other = other, actor
            else:
                actor, other = replace(actor, colour=other.colour), replace(other, colour=actor.colour)
        elif kind != "elsewhere":  # where the same is a near miss
            right, actor = actor, replace(actor, shape=_other(SHAPES, claim.shape, rng))
            if kind == "rebound":  # the right shape stands by, in another colour
                standing = (Thing(claim.shape, _other(COLOURS, right.colour, rng), thing.size),)
            elif claim.colour is not None and rng.random() < 0.5:
                actor = replace(right, colour=_other(COLOURS, claim.colour, rng))
        return replace(act(actor, action, other, rng), start=shot.start, end=shot.end, bystanders=standing)

    def _accept(self, q: int, kind: int, v: int, number: int, shot: Shot) -> bool:
        """Plants the shot unless the video becomes relevant, no near miss results, or other claims lose as many."""
        if not shot.distinct:
            return False
        shots = self.videos[v].shots
        changed = replace(self.videos[v], shots=(*shots[:number], shot, *shots[number + 1 :]))
        column = _compare(self.rows, changed)
        count = self.count + column[1:] - self.compared[1:, :, v]
        if column[0, q] or not column[1 + kind, q] or missing(count).sum() >= missing(self.count).sum():
            return False
        self.videos[v], self.compared[:, :, v], self.count = changed, column, count
        return True


def _other(values: tuple[str, ...], value: str, rng: np.random.Generator) -> str:
    return values[(values.index(value) + 1 + int(rng.integers(len(values) - 1))) % len(values)]
