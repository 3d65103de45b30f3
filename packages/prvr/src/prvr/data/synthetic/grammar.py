"""The grammar of captions: sentences about moments, and the claims that they make."""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from prvr.data.synthetic.world import HELD_OUT_ACTIONS, HELD_OUT_COLOURS, OPPOSITE, Shot
from prvr.errors import InputError

T = TypeVar("T")
SHAPE_WORDS = {
    "circle": ("circle", "ball", "disc"), "square": ("square", "box", "block"), "triangle": ("triangle", "wedge"),
    "star": ("star", "starlet"), "cross": ("cross", "plus"), "ring": ("ring", "loop", "hoop"),
    "heart": ("heart", "valentine"), "diamond": ("diamond", "lozenge", "rhombus"), "crescent": ("crescent", "moon"),
    "arrow": ("arrow", "pointer"),
}  # fmt: skip
COLOUR_WORDS = {
    "red": ("red", "scarlet", "crimson"), "green": ("green", "emerald"), "blue": ("blue", "azure", "navy"),
    "yellow": ("yellow", "golden"), "orange": ("orange", "tangerine", "amber"), "purple": ("purple", "violet"),
    "pink": ("pink", "rosy"), "white": ("white", "snowy"), "brown": ("brown", "chocolate"),
}  # fmt: skip
SIZE_WORDS = {"small": ("small", "little", "tiny"), "medium": ("medium", "middling"), "large": ("large", "big", "huge")}
BACKGROUND_WORDS = {
    "plain": ("on a plain ground", "against an empty backdrop"),
    "fading": ("on a ground that shades from light to grey", "against a gradient"),
    "striped": ("on a striped ground", "against stripes"),
    "chequered": ("on a chequered floor", "against a checkerboard"),
    "dotted": ("on a dotted ground", "against polka dots"),
    "wavy": ("on a wavy ground", "against waves"),
    "brick": ("before a brick wall", "against bricks"),
    "grid": ("on squared paper", "against a grid of lines"),
}
# Each phrase as a finite verb and as a participle; {o} is the partner of a push.
ACTION_WORDS = {
    "left": (("moves to the left", "moving to the left"), ("slides left", "sliding left"),
             ("drifts leftwards", "drifting leftwards"), ("goes left", "going left")),
    "right": (("moves to the right", "moving to the right"), ("slides right", "sliding right"),
              ("drifts rightwards", "drifting rightwards"), ("goes right", "going right")),
    "up": (("rises", "rising"), ("moves up", "moving up"), ("floats upwards", "floating upwards"),
           ("climbs to the top", "climbing to the top")),
    "down": (("falls", "falling"), ("moves down", "moving down"), ("sinks downwards", "sinking downwards"),
             ("drops to the bottom", "dropping to the bottom")),
    "grow": (("grows", "growing"), ("gets bigger", "getting bigger"), ("expands", "expanding"),
             ("swells", "swelling")),
    "shrink": (("shrinks", "shrinking"), ("gets smaller", "getting smaller"), ("contracts", "contracting"),
               ("dwindles", "dwindling")),
    "appear": (("appears", "appearing"), ("fades in", "fading in"), ("comes into view", "coming into view"),
               ("emerges", "emerging")),
    "vanish": (("vanishes", "vanishing"), ("fades out", "fading out"),
               ("disappears from view", "disappearing from view"), ("dissolves", "dissolving")),
    "clockwise": (("turns clockwise", "turning clockwise"), ("spins clockwise", "spinning clockwise"),
                  ("rotates like the hand of a clock", "rotating like the hand of a clock")),
    "anticlockwise": (("turns anticlockwise", "turning anticlockwise"),
                      ("spins counterclockwise", "spinning counterclockwise"),
                      ("rotates against the clock", "rotating against the clock")),
    "brighten": (("brightens", "brightening"), ("lights up", "lighting up"),
                 ("starts to glow", "starting to glow")),
    "darken": (("darkens", "darkening"), ("dims", "dimming"), ("loses its glow", "losing its glow")),
    "push": (("pushes {o}", "pushing {o}"), ("nudges {o} along", "nudging {o} along"),
             ("drives {o} forward", "driving {o} forward"), ("shoves {o}", "shoving {o}")),
    "pushed": (("is pushed by {o}", "being pushed by {o}"), ("is nudged along by {o}", "being nudged along by {o}"),
               ("gets driven forward by {o}", "getting driven forward by {o}"),
               ("is shoved by {o}", "being shoved by {o}")),
}  # fmt: skip
COMMON = 0.8  # probability of the first word
HELD_OUT_WORDS = frozenset({
    "crimson", "navy", "amber", "disc", "hoop", "rhombus", "huge",
    "swells", "swelling", "dwindles", "dwindling", "shoves", "shoving", "shoved",
})  # fmt: skip
"""Ten synonyms, in all their forms, that no training caption uses."""

# {a} a thing with its article, {the} the same with "the", {does} and {doing} the action
TEMPLATES = (
    "{a} {does}", "the camera shows {a} as it {does}", "there is {a} that {does}", "we see how {a} {does}",
    "in this clip {a} {does}", "in this scene {a} {does}", "after a while {a} {does}", "somewhere {a} {does}",
    "{a} can be seen {doing}", "{a} {does} in this shot", "now {the} {does}", "at some point {the} {does}",
    "watch {the} {doing}", "a moment with {a} {doing}", "the part where {the} {does}", "find {a} that {does}",
    "{the}, {doing}", "then {the} {does}", "for a few seconds {a} {does}", "what you see is {a} {doing}",
    "a short clip of {a} {doing}", "it is {the} that {does}", "once {the} {does}", "a view of {a} {doing}",
    "look how {the} {does}", "here {a} {does}", "{a} is filmed {doing}", "the video shows {the} {doing}",
    "over there {a} {does}", "one can watch how {a} {does}", "{the} {does} in front of us", "meanwhile {a} {does}",
    "you can see {a} {doing}", "someone filmed {a} {doing}", "during this shot {the} {does}",
    "all the while {the} {does}",
    "for a moment {a} {does}", "it shows {a} {doing}", "later on {the} {does}", "the one where {a} {does}",
    "before our eyes {the} {does}", "one notices {a} {doing}", "a scene in which {a} {does}",
    "the moment when {the} {does}",
)  # fmt: skip
HELD_OUT_TEMPLATES = frozenset(TEMPLATES[3::4])
WORDS_RANGE = (4, 20)
UNSEEN = ("unseen composition", "unseen template", "unseen word")
"""Tags of what a test sentence may have that training lacks; it is "unseen" if it has any, else "seen"."""


@dataclass(frozen=True)
class Claim:
    """The properties that a sentence names; None for those it leaves open."""

    shape: str
    colour: str | None
    size: str | None
    action: str
    other_shape: str | None = None
    other_colour: str | None = None
    background: str | None = None


def describe(
    shot: Shot, background: str, rng: np.random.Generator, training: bool
) -> tuple[str, Claim, frozenset[str]]:
    """A sentence about a moment: always shape and action, colour mostly, size and background sometimes.

    Args:
        shot: with an action.
        background: the background of its video.
        rng: source of randomness.
        training: keep to templates and words that training may use.

    Returns:
        the sentence (4-20 words), its claim, and its tags: "seen", or "unseen" and what of it is.
    """
    if shot.actor is None or shot.action is None:
        raise InputError(f"describe: expected a shot with an action, got {shot}")
    while True:
        text, claim, template = _draw(shot, background, rng)
        words = text.replace(",", "").split()
        new_template, new_word = template in HELD_OUT_TEMPLATES, not HELD_OUT_WORDS.isdisjoint(words)
        if WORDS_RANGE[0] <= len(words) <= WORDS_RANGE[1] and not (training and (new_template or new_word)):
            break
    new = (is_new_composition(claim), new_template, new_word)
    tags = [tag for tag, found in zip(UNSEEN, new, strict=True) if found]
    return text, claim, frozenset(["unseen", *tags] if tags else ["seen"])


def is_new_composition(claim: Claim) -> bool:
    """Whether a claim pairs a shape with a colour or an action that training never shows."""
    looks = {(claim.shape, claim.colour), (claim.other_shape, claim.other_colour)}
    does = {(claim.shape, claim.action)}
    if claim.other_shape is not None:  # if rings never push in training, being pushed by a ring is new as well
        does.add((claim.other_shape, OPPOSITE[claim.action]))
    return not (looks.isdisjoint(HELD_OUT_COLOURS) and does.isdisjoint(HELD_OUT_ACTIONS))


def _draw(shot: Shot, background: str, rng: np.random.Generator) -> tuple[str, Claim, str]:
    actor, other, action = shot.actor, shot.other, shot.action
    assert actor is not None and action is not None  # noqa: PT018
    colour = actor.colour if rng.random() < 0.9 else None
    # A thing that grows has no size of its own.
    sized = action not in ("grow", "shrink") and (colour is None or rng.random() < 0.35)
    size = actor.size if sized else None
    words = [_pick(SIZE_WORDS[size], rng)] if size else []
    words += [_pick(COLOUR_WORDS[colour], rng)] if colour else []
    words.append(_pick(SHAPE_WORDS[actor.shape], rng))
    phrase = _pick(ACTION_WORDS[action], rng)
    template = TEMPLATES[int(rng.integers(len(TEMPLATES)))]
    if other is not None:
        object_ = with_article([_pick(COLOUR_WORDS[other.colour], rng), _pick(SHAPE_WORDS[other.shape], rng)])
        phrase = tuple(form.format(o=object_) for form in phrase)
    text = template.format(a=with_article(words), the=" ".join(["the", *words]), does=phrase[0], doing=phrase[1])
    where = background if rng.random() < 0.12 else None
    if where is not None:
        text += " " + _pick(BACKGROUND_WORDS[where], rng)
    claim = Claim(
        actor.shape, colour, size, action, other.shape if other else None, other.colour if other else None, where
    )
    return text, claim, template


def with_article(words: list[str]) -> str:
    """A noun phrase with "a" or "an"."""
    return " ".join(["an" if words[0][0] in "aeiou" else "a", *words])


def _pick(choices: tuple[T, ...], rng: np.random.Generator) -> T:
    """Mostly the first, so that synonyms are rarer than common words; otherwise any."""
    return choices[0 if rng.random() < COMMON else int(rng.integers(len(choices)))]
