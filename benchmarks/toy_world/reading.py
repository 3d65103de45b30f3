"""What a sentence says and what a video shows, worked out a second time: from the words alone, by plain loops.

The audit compares this with what the generator wrote. It shares with it the tables of words and the scene graphs, and
neither the stored claims nor the code that judges them.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from prvr.data.synthetic.grammar import (
    ACTION_WORDS,
    BACKGROUND_WORDS,
    COLOUR_WORDS,
    SHAPE_WORDS,
    SIZE_WORDS,
    TEMPLATES,
    Claim,
)
from prvr.data.synthetic.world import Shot, Thing, Video
from prvr.errors import InputError

ARTICLES = ("a", "an", "the")
_KEYS = ("shape", "colour", "size", "action", "other_shape", "other_colour", "background")

Happening = tuple[str, str, str, str, str | None, str | None, str]
"""Something that a video shows: the values of a claim's seven fields, in their order."""


@dataclass(frozen=True)
class Reading:
    """A sentence that was read: what it says, and the template it was made of."""

    claim: Claim
    template: str


def split_text(text: str) -> list[str]:
    """The words of a sentence."""
    return text.lower().replace(",", "").split()


def read_sentence(text: str) -> Reading:
    """Takes a sentence apart: a background at its end, the longest phrase of an action, and who acts before it.

    Args:
        text: a sentence of the grammar.

    Raises:
        ValueError: it is none.

    Example:
        >>> reading = read_sentence("now the tiny red hoop is pushed by a royal-blue box on graph paper")
        >>> reading.template, reading.claim.action, reading.claim.other_shape, reading.claim.background
        ('now {the} {does}', 'pushed', 'square', 'grid')
    """
    words = split_text(text)
    background = None
    for value, phrases in BACKGROUND_WORDS.items():
        for phrase in phrases:
            ending = split_text(phrase)
            if background is None and words[-len(ending) :] == ending:
                background, words = value, words[: -len(ending)]
    longest = max(_actions(words), key=lambda action: action[2] - action[1], default=None)
    if longest is None:
        raise InputError(f"no action in {text!r}")
    action, start, end, slot, other = longest
    actors = [(at, *thing) for at in range(start) if (thing := _noun_phrase(words, at)) is not None]
    if len(actors) != 1 or actors[0][1] > start:
        raise InputError(f"{len(actors)} who might act in {text!r}")
    at, stop, (size, colour, shape) = actors[0]
    who = "{the}" if words[at] == "the" else "{a}"
    pattern = " ".join([*words[:at], who, *words[stop:start], slot, *words[end:]])
    if pattern not in _templates():
        raise InputError(f"no template {pattern!r}, in {text!r}")
    _, other_colour, other_shape = other or (None, None, None)
    claim = Claim(shape, colour, size, action, other_shape, other_colour, background)
    return Reading(claim, _templates()[pattern])


def happenings(shots: Iterable[Shot], background: str) -> list[Happening]:
    """All that shots show, each once: a push is the being pushed of the other, and both go where they head."""
    events: list[tuple[Thing, str, Thing | None]] = []
    for shot in shots:
        if shot.actor is None or shot.action is None:
            continue
        events.append((shot.actor, shot.action, shot.other))
        if shot.other is not None:
            events.append((shot.other, "pushed" if shot.action == "push" else "push", shot.actor))
            events += [(thing, str(shot.heading), None) for thing in (shot.actor, shot.other)]
    seen: dict[Happening, None] = {}
    for thing, action, other in events:
        shape, colour = (None, None) if other is None else (other.shape, other.colour)
        seen[thing.shape, thing.colour, thing.size, action, shape, colour, background] = None
    return list(seen)


def mistakes(claim: Claim, shown: Sequence[Happening]) -> int:
    """In how many of the things it names a claim is wrong, of the happening that fits it best."""
    named = [(i, value) for i, key in enumerate(_KEYS) if (value := getattr(claim, key)) is not None]
    fewest = len(named)
    for happening in shown:
        wrong = 0
        for i, value in named:
            if happening[i] != value:
                wrong += 1
        if wrong < fewest:
            fewest = wrong
    return fewest


def satisfied(claim: Claim, wrong: int) -> float:
    """The share of what a claim names that is right."""
    named = sum(getattr(claim, key) is not None for key in _KEYS)
    return (named - wrong) / named


def words_held(video: Video) -> dict[str, set[str]]:
    """For each field of a claim, the values that are somewhere in a video."""
    things = [thing for shot in video.shots for thing in shot.things]
    shapes, colours = {thing.shape for thing in things}, {thing.colour for thing in things}
    return {
        "shape": shapes,
        "colour": colours,
        "size": {thing.size for thing in things},
        "action": {happening[3] for happening in happenings(video.shots, video.background)},
        "other_shape": shapes,
        "other_colour": colours,
        "background": {video.background},
    }


def all_held(claim: Claim, held: Mapping[str, Container[str]]) -> bool:
    """Whether everything that a claim names is somewhere in a video, bound as it may be."""
    return all((value := getattr(claim, key)) is None or value in held[key] for key in _KEYS)


def true_videos(claims: Iterable[Claim], videos: Iterable[Video]) -> list[frozenset[str]]:
    """For each claim, the ids of the videos that it is true of."""
    where: dict[tuple[str, str], list[tuple[str, Happening]]] = {}
    for video in videos:
        for happening in happenings(video.shots, video.background):
            where.setdefault((happening[0], happening[3]), []).append((video.id, happening))
    videos_of_claims = []
    for claim in claims:
        likely = where.get((claim.shape, claim.action), ())
        videos_of_claims.append(frozenset(name for name, happening in likely if mistakes(claim, [happening]) == 0))
    return videos_of_claims


_Noun = tuple[str | None, str | None, str]  # size, colour, shape
_Action = tuple[str, int, int, str, _Noun | None]  # which, first word, behind its last, slot of the template, to whom


def _actions(words: list[str]) -> list[_Action]:
    """Every phrase of an action that stands in the words."""
    actions = []
    for start, first in enumerate(words):
        for action, slot, head, takes_object, tail in _phrases().get(first, ()):
            end, other = start + len(head), None
            if words[start:end] != head:
                continue
            if takes_object:
                noun = _noun_phrase(words, end)
                if noun is None:
                    continue
                end, other = noun
            if words[end : end + len(tail)] == tail:
                actions.append((action, start, end + len(tail), slot, other))
    return actions


@cache
def _phrases() -> dict[str, list[tuple[str, str, list[str], bool, list[str]]]]:
    """By first word: the action, the slot of a template, the words before and behind whom it is done to, or by."""
    phrases: dict[str, list[tuple[str, str, list[str], bool, list[str]]]] = {}
    for action, forms in ACTION_WORDS.items():
        for pair in forms:
            for slot, phrase in zip(("{does}", "{doing}"), pair, strict=True):
                head, object_, tail = phrase.partition("{o}")
                row = action, slot, split_text(head), bool(object_), split_text(tail)
                phrases.setdefault(row[2][0], []).append(row)
    return phrases


def _noun_phrase(words: list[str], at: int) -> tuple[int, _Noun] | None:
    """The thing whose article is word `at`, and the place behind it; None where there is none."""
    if at >= len(words) or words[at] not in ARTICLES:
        return None
    at += 1
    values = []
    for table in _nouns():
        value = table.get(words[at]) if at < len(words) else None
        at += value is not None
        values.append(value)
    size, colour, shape = values
    return None if shape is None else (at, (size, colour, shape))


@cache
def _nouns() -> tuple[dict[str, str], ...]:
    tables = SIZE_WORDS, COLOUR_WORDS, SHAPE_WORDS
    return tuple({word: value for value, words in table.items() for word in words} for table in tables)


@cache
def _templates() -> dict[str, str]:
    return {" ".join(split_text(template)): template for template in TEMPLATES}
