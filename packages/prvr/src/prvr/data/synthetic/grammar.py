"""Sentences about events, what they claim, and which videos they are true of."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from prvr.data.synthetic.world import Event, Thing, Video

SHAPE_WORDS = {
    "circle": ("circle", "disc", "ball"), "square": ("square", "box", "block"), "triangle": ("triangle", "wedge"),
    "star": ("star", "starlet"), "cross": ("cross", "plus"), "ring": ("ring", "hoop", "loop"),
    "heart": ("heart", "valentine"), "diamond": ("diamond", "rhombus"), "crescent": ("crescent", "moon"),
    "arrow": ("arrow", "pointer"),
}  # fmt: skip
COLOUR_WORDS = {
    "red": ("red", "crimson", "scarlet"), "green": ("green", "emerald"), "blue": ("blue", "azure", "navy"),
    "yellow": ("yellow", "golden"), "orange": ("orange", "amber"), "purple": ("purple", "violet"),
    "pink": ("pink", "rosy"), "white": ("white", "snowy"), "brown": ("brown", "chocolate"),
}  # fmt: skip
SIZE_WORDS = {"small": ("small", "little", "tiny"), "medium": ("medium", "middling"), "large": ("large", "big", "huge")}
ACTION_WORDS = {
    "left": ("moves to the left", "slides left", "drifts leftwards", "goes left"),
    "right": ("moves to the right", "slides right", "drifts rightwards", "goes right"),
    "up": ("rises", "moves up", "floats upwards", "climbs to the top"),
    "down": ("falls", "moves down", "sinks downwards", "drops to the bottom"),
    "grow": ("grows", "gets bigger", "expands", "swells up"),
    "shrink": ("shrinks", "gets smaller", "contracts", "dwindles"),
    "appear": ("appears", "fades in", "comes into view", "emerges"),
    "vanish": ("vanishes", "fades out", "disappears from view", "dissolves"),
    "clockwise": ("turns clockwise", "spins clockwise", "rotates to the right like a clock hand"),
    "anticlockwise": ("turns anticlockwise", "spins counterclockwise", "rotates against the clock"),
    "brighten": ("brightens", "lights up", "starts to glow"),
    "darken": ("darkens", "dims", "loses its glow"),
    "push": ("pushes", "shoves", "drives forward"),
    "pushed": ("is pushed by", "is shoved along by", "gets driven forward by"),
}
COMMON = 0.8
# {a} a thing with its article, {the} the same with "the", {does} the action with what it is done to
TEMPLATES = (
    "{a} {does}", "{the} {does}", "there is {a} that {does}", "we see how {a} {does}", "{a} slowly {does}",
    "in this scene {a} {does}", "after a while {a} {does}", "somewhere {a} {does}", "the camera shows {a} as it {does}",
    "{a} {does} while nothing else happens", "now {the} {does}", "at some point {the} {does}",
)  # fmt: skip


@dataclass(frozen=True)
class Claim:
    """What a sentence says; None where it says nothing."""

    shape: str
    colour: str | None
    size: str | None
    action: str
    other_shape: str | None = None
    other_colour: str | None = None

    def fits(self, thing: Thing, other: Thing | None) -> bool:
        """Whether it is true of a thing that does the claimed action, and of what it does it to."""
        pairs = [(self.shape, thing.shape), (self.colour, thing.colour), (self.size, thing.size)]
        if other is not None:
            pairs += [(self.other_shape, other.shape), (self.other_colour, other.colour)]
        return all(said is None or said == true for said, true in pairs)


def matching_videos(claims: Mapping[str, Claim], videos: Iterable[Video]) -> dict[str, list[str]]:
    """For each claim the ids of all videos where some event, captioned or not, is as it says."""
    told: defaultdict[tuple[str, str], list[tuple[str, Thing, Thing | None]]] = defaultdict(list)
    for video in videos:
        for thing, action, other in (telling for event in video.events for telling in event.told()):
            told[thing.shape, action].append((video.id, thing, other))
    return {
        name: sorted({video for video, thing, other in told[claim.shape, claim.action] if claim.fits(thing, other)})
        for name, claim in claims.items()
    }


def describe(event: Event, rng: np.random.Generator) -> tuple[str, Claim]:
    """A sentence about an event and what it claims: always shape and action, colour mostly, size sometimes."""
    actor, other = event.actor, event.other
    colour = actor.colour if rng.random() < 0.9 else None
    sized = event.action not in ("grow", "shrink") and (colour is None or rng.random() < 0.35)
    size = actor.size if sized else None
    words = [_name(SIZE_WORDS[size], rng)] if size else []
    words += [_name(COLOUR_WORDS[colour], rng)] if colour else []
    words.append(_name(SHAPE_WORDS[actor.shape], rng))
    does = _name(ACTION_WORDS[event.action], rng)
    if other is not None:
        does += " " + _article([_name(COLOUR_WORDS[other.colour], rng), _name(SHAPE_WORDS[other.shape], rng)])
    text = _pick(TEMPLATES, rng).format(a=_article(words), the=" ".join(["the", *words]), does=does)
    claim = Claim(
        actor.shape, colour, size, event.action, other.shape if other else None, other.colour if other else None
    )
    return text, claim


def _article(words: list[str]) -> str:
    return " ".join(["an" if words[0][0] in "aeiou" else "a", *words])


def _name(names: tuple[str, ...], rng: np.random.Generator) -> str:
    """The first name mostly, else a synonym."""
    return names[0] if rng.random() < COMMON else _pick(names, rng)


def _pick(choices: tuple[str, ...], rng: np.random.Generator) -> str:
    return choices[int(rng.integers(len(choices)))]
