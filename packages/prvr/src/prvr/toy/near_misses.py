"""Relevance sets and near misses: which videos a claim is true of, which come near, and how those are planted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Int

from prvr.toy.grammar import Claim
from prvr.toy.timelines import Allowed, act, draw_thing
from prvr.toy.world import ACTIONS, BACKGROUNDS, COLOURS, OPPOSITE, SHAPES, SIZES, Fact, Shot, Thing, Video

ONE_FACTOR, REBOUND = 4, 2
"""Minimum number of videos in a test gallery that hold a moment which differs from a sentence in one factor, or all its
words bound to other things."""
KINDS = ("one factor", "rebound", "opposite")
PLACES, REFUSALS = 60, 6  # shots that are tried for one near miss; shots that may not be shown until the search ends
SHORTEST = 3.0  # seconds an action takes
NEEDED = np.array([ONE_FACTOR, REBOUND, 1])  # of each kind; the opposite action only where there is room
FACTORS = ("shape", "colour", "size", "action", "other_shape", "other_colour", "background")
_VALUES = (SHAPES, COLOURS, SIZES, ACTIONS, SHAPES, COLOURS, BACKGROUNDS)
_NUMBER = tuple({value: i for i, value in enumerate(values)} for values in _VALUES)
_WORDS = np.cumsum([0, *map(len, (SHAPES, COLOURS, SIZES, ACTIONS, BACKGROUNDS))])


@dataclass(frozen=True)
class NearMisses:
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

    def missing(self) -> Int[np.ndarray, "q 3"]:
        """The number of near misses that each claim lacks: one factor, rebound, opposite."""
        misses = [kind.sum(1) for kind in (self.one_factor, self.rebound, self.opposite)]
        return np.maximum(NEEDED - np.stack(misses, 1), 0)


def relevance(claims: Mapping[str, Claim], videos: Sequence[Video]) -> dict[str, list[str]]:
    """For each claim the ids of all videos that it is true of: of a shot, captioned or not."""
    relevant = near_misses(list(claims.values()), videos).relevant
    return {
        name: [videos[v].id for v in np.flatnonzero(row).tolist()] for name, row in zip(claims, relevant, strict=True)
    }


def near_misses(claims: Sequence[Claim], videos: Sequence[Video]) -> NearMisses:
    """Compares every claim with every fact of every video."""
    claim_rows = _claim_rows(claims)
    columns = [_Column(video) for video in videos]
    return NearMisses(*(np.stack(kind, 1) for kind in zip(*(c.compare(claim_rows) for c in columns), strict=True)))


def _claim_rows(claims: Sequence[Claim]) -> np.ndarray:
    """Claims as ``(q, 7)`` numbers of values, -1 where a claim says nothing."""
    return np.array(
        [[-1 if (v := getattr(c, f)) is None else n[v] for f, n in zip(FACTORS, _NUMBER, strict=True)] for c in claims],
        np.int64,
    ).reshape(-1, len(FACTORS))


class _Column:
    """The facts of one video as numbers, to be compared with all claims at once."""

    def __init__(self, video: Video) -> None:
        self.rows = _claim_rows([_whole_claim(fact, video.background) for fact in video.facts()])
        self.words = np.zeros(_WORDS[-1], bool)
        for thing in (thing for shot in video.shots for thing in shot.things):
            self.words[[SHAPES.index(thing.shape), _WORDS[1] + COLOURS.index(thing.colour)]] = True
            self.words[_WORDS[2] + SIZES.index(thing.size)] = True
        self.words[_WORDS[3] + self.rows[:, 3]] = True
        self.words[_WORDS[4] + BACKGROUNDS.index(video.background)] = True

    def compare(self, claim_rows: np.ndarray) -> tuple[np.ndarray, ...]:
        wrong = (claim_rows[:, None] >= 0) & (claim_rows[:, None] != self.rows)  # (q, facts, 7)
        count = wrong.sum(2)
        relevant = (count == 0).any(1)
        opposite = (count == 1) & wrong[:, :, 3] & (self.rows[:, 3] == (claim_rows[:, 3] ^ 1)[:, None])
        bound = np.ones(len(claim_rows), bool)
        for factor, first in enumerate((0, 1, 2, 3, 0, 1, 4)):
            bound &= (claim_rows[:, factor] < 0) | self.words[_WORDS[first] + claim_rows[:, factor]]
        return relevant, (count == 1).any(1) & ~relevant, bound & ~relevant, opposite.any(1) & ~relevant


def _whole_claim(fact: Fact, background: str) -> Claim:
    """The claim that names every property of a fact."""
    thing, action, other = fact
    partner = (None, None) if other is None else (other.shape, other.colour)
    return Claim(thing.shape, thing.colour, thing.size, action, *partner, background)


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
        self.claim_rows = _claim_rows(claims)
        misses = near_misses(claims, videos)
        self.relevant = misses.relevant
        self.near = np.stack([misses.one_factor, misses.rebound, misses.opposite], 1)  # (q 3 v)
        self.count = self.near.sum(2)

    def plant(self) -> list[Video]:
        """The changed gallery; captioned shots, times, backgrounds and seeds are unchanged."""
        while (missing := self._missing()).any():
            for q in self.rng.permutation(np.flatnonzero(missing.any(1))).tolist():
                for kind in range(len(KINDS)):
                    while self._missing()[q, kind] and self._plant_one(q, kind):
                        pass
            if self._missing().sum() >= missing.sum():  # what one claim gains another may lose
                break
        return self.videos

    def _missing(self) -> np.ndarray:
        return np.maximum(NEEDED - self.count, 0)

    def _plant_one(self, q: int, kind: int) -> bool:
        """Puts one near miss of a claim into the first video where it helps more than it harms, if there is one."""
        claim = self.claims[q]
        hosts = np.flatnonzero(~(self.relevant[q] | self.near[q, kind]))
        places = [(v, i) for v in self.rng.permutation(hosts).tolist() if v != self.own[q] for i in self._room(v)]
        refused = 0
        for v, number in places[:PLACES]:
            elsewhere = claim.background not in (None, self.videos[v].background)
            if elsewhere and KINDS[kind] != "one factor":
                continue
            shot = self._near_miss(claim, "elsewhere" if elsewhere else KINDS[kind], self.videos[v].shots[number])
            if not self.allowed(shot):
                refused += 1
                if refused == REFUSALS:  # the opposite action is held out for this shape
                    return False
                continue
            if self._accept(q, kind, v, number, shot):
                return True
        return False

    def _room(self, v: int) -> list[int]:
        shots = self.videos[v].shots
        return [i for i, shot in enumerate(shots) if not shot.captioned and shot.end - shot.start >= SHORTEST]

    def _near_miss(self, claim: Claim, kind: str, shot: Shot) -> Shot:
        rng = self.rng
        thing = draw_thing(rng)
        actor = Thing(claim.shape, claim.colour or thing.colour, claim.size or thing.size)
        other = None
        if claim.other_shape is not None and claim.other_colour is not None:
            other = Thing(claim.other_shape, claim.other_colour, thing.size)
        if kind in ("opposite", "elsewhere"):  # on another background the same is a near miss
            action = OPPOSITE[claim.action] if kind == "opposite" else claim.action
            return replace(act(actor, action, other, rng), start=shot.start, end=shot.end)
        if kind == "rebound" and other is not None:  # who does it to whom is exchanged, or whose colour is whose
            pair = (other, actor) if rng.random() < 0.5 else (_recoloured(actor, other), _recoloured(other, actor))
            return replace(act(pair[0], claim.action, pair[1], rng), start=shot.start, end=shot.end)
        wrong = replace(actor, shape=_other(SHAPES, claim.shape, rng))
        standing: tuple[Thing, ...] = ()
        if kind == "rebound":  # the right shape stands by, in another colour
            colour = _other(COLOURS, actor.colour, rng)
            standing = (Thing(claim.shape, colour, thing.size),)
        elif claim.colour is not None and rng.random() < 0.5:
            wrong = replace(actor, colour=_other(COLOURS, claim.colour, rng))
        return replace(act(wrong, claim.action, other, rng), start=shot.start, end=shot.end, bystanders=standing)

    def _accept(self, q: int, kind: int, v: int, number: int, shot: Shot) -> bool:
        """Plants the shot unless the video becomes relevant, no near miss results, or other claims lose as many."""
        looks = [(thing.shape, thing.colour) for thing in shot.things]
        if len(set(looks)) < len(looks):
            return False
        video = self.videos[v]
        changed = replace(video, shots=(*video.shots[:number], shot, *video.shots[number + 1 :]))
        relevant, *near = _Column(changed).compare(self.claim_rows)
        if relevant[q] or not near[kind][q]:
            return False
        near = np.stack(near, 1)
        count = self.count + near - self.near[:, :, v]
        if np.maximum(NEEDED - count, 0).sum() >= self._missing().sum():
            return False
        self.videos[v], self.relevant[:, v], self.near[:, :, v], self.count = changed, relevant, near, count
        return True


def _recoloured(thing: Thing, like: Thing) -> Thing:
    return replace(thing, colour=like.colour)


def _other(values: tuple[str, ...], value: str, rng: np.random.Generator) -> str:
    return values[(values.index(value) + 1 + int(rng.integers(len(values) - 1))) % len(values)]
