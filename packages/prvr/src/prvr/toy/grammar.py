"""The grammar of captions: sentences about moments, and the claims that they make."""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from prvr.toy.timelines import choice
from prvr.toy.world import HELD_OUT_ACTIONS, HELD_OUT_COLOURS, OPPOSITE, Shot

T = TypeVar("T")


def _listed(text: str) -> list[tuple[str, tuple[str, ...]]]:
    """The words of a name, on a line each: `name: word, word`."""
    lines = (line.strip().split(": ") for line in text.strip().splitlines())
    return [(name, tuple(words.split(", "))) for name, words in lines]


SHAPE_WORDS = dict(
    _listed(
        """
        circle: circle, ball, disc
        square: square, box, block
        triangle: triangle
        star: star
        cross: cross
        ring: ring, hoop
        heart: heart
        diamond: diamond, rhombus
        crescent: crescent, moon
        arrow: arrow
        """
    )
)
COLOUR_WORDS = dict(
    _listed(
        """
        red: red, scarlet, crimson
        green: green
        blue: blue, royal-blue
        yellow: yellow, golden
        orange: orange, amber
        purple: purple, violet
        pink: pink
        white: white
        brown: brown
        """
    )
)
SIZE_WORDS = dict(
    _listed(
        """
        small: small, little, tiny
        medium: medium-sized, mid-sized
        large: large, big, huge
        """
    )
)
BACKGROUND_WORDS = dict(
    _listed(
        """
        plain: on a plain background, against a blank background
        fading: on a gradient background, against a smooth gradient
        striped: on a striped background, against a background of stripes
        chequered: on a checkered background, against a checkerboard pattern
        dotted: on a dotted background, against a polka-dot background
        wavy: on a wavy background, against a background of wavy lines
        brick: in front of a brick wall, against a brick wall
        grid: in front of a grid, on graph paper
        """
    )
)
# Each phrase as a finite verb and as a participle; {o} is the partner of a push.
_VERBS = _listed(
    """
    left: moves to the left, moving to the left
    left: slides to the left, sliding to the left
    left: drifts left, drifting left
    left: goes left, going left
    right: moves to the right, moving to the right
    right: slides to the right, sliding to the right
    right: drifts right, drifting right
    right: goes right, going right
    up: rises, rising
    up: moves up, moving up
    up: floats up, floating up
    up: climbs to the top, climbing to the top
    down: falls, falling
    down: moves down, moving down
    down: sinks, sinking
    down: drops to the bottom, dropping to the bottom
    grow: grows, growing
    grow: gets bigger, getting bigger
    grow: becomes larger, becoming larger
    grow: expands, expanding
    shrink: shrinks, shrinking
    shrink: gets smaller, getting smaller
    shrink: becomes smaller, becoming smaller
    shrink: contracts, contracting
    appear: appears, appearing
    appear: fades in, fading in
    appear: comes into view, coming into view
    appear: becomes visible, becoming visible
    vanish: vanishes, vanishing
    vanish: fades out, fading out
    vanish: disappears, disappearing
    vanish: fades away, fading away
    clockwise: turns clockwise, turning clockwise
    clockwise: spins clockwise, spinning clockwise
    clockwise: rotates clockwise, rotating clockwise
    anticlockwise: turns counterclockwise, turning counterclockwise
    anticlockwise: spins counterclockwise, spinning counterclockwise
    anticlockwise: rotates anticlockwise, rotating anticlockwise
    brighten: lights up, lighting up
    brighten: gets brighter, getting brighter
    brighten: starts to glow, starting to glow
    darken: gets darker, getting darker
    darken: dims, dimming
    darken: loses its glow, losing its glow
    push: pushes {o}, pushing {o}
    push: pushes {o} along, pushing {o} along
    push: nudges {o} along, nudging {o} along
    push: shoves {o}, shoving {o}
    pushed: is pushed by {o}, being pushed by {o}
    pushed: gets pushed along by {o}, getting pushed along by {o}
    pushed: is nudged along by {o}, being nudged along by {o}
    pushed: is shoved by {o}, being shoved by {o}
    """
)
ACTION_WORDS = {action: tuple(forms for name, forms in _VERBS if name == action) for action, _ in _VERBS}
COMMON = 0.8  # probability of the first word
HELD_OUT_WORDS = frozenset({
    "crimson", "amber", "violet", "disc", "hoop", "rhombus", "huge",
    "expands", "expanding", "contracts", "contracting", "shoves", "shoving", "shoved",
})  # fmt: skip
"""Ten synonyms, in all their forms, that no training caption uses."""

# {a} a thing with its article, {the} the same with "the", {does} and {doing} the action. The action comes last, so that
# the background, where it is named, is that of the action.
TEMPLATES = tuple(
    line.strip()
    for line in """
        {a} {does}
        {a} {doing}
        there is {a} {doing}
        we see {a} as it {does}
        in this clip {a} {does}
        in this scene {a} {does}
        after a while {a} {does}
        at one point {the} {does}
        {a} can be seen {doing}
        the camera shows {a} as it {does}
        now {the} {does}
        at some point {a} {does}
        watch {the} {doing}
        the moment where {a} {does}
        the part where {the} {does}
        find the clip where {a} {does}
        then {the} {does}
        a few seconds of {a} {doing}
        the clip where {the} {does}
        what you see is {a} {doing}
        a short clip of {a} {doing}
        the video where {a} {does}
        the scene where {the} {does}
        a shot of {a} {doing}
        look at {the} {doing}
        here is {a} {doing}
        {a} is shown {doing}
        the video shows {a} {doing}
        somewhere in the video {a} {does}
        you can watch {a} {doing}
        in one of the shots {a} {does}
        meanwhile {a} {does}
        you can see {a} {doing}
        a video of {a} {doing}
        in this shot {the} {does}
        partway through, {a} {does}
        this is where {the} {does}
        it shows {a} {doing}
        later {the} {does}
        the one where {a} {does}
        during the video {the} {does}
        you will notice {a} {doing}
        a scene in which {a} {does}
        the moment when {the} {does}
        """.strip().splitlines()
)
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
    while True:
        text, claim, template = _draw(shot, background, rng)
        words = text.replace(",", "").split()
        new_template, new_word = template in HELD_OUT_TEMPLATES, not HELD_OUT_WORDS.isdisjoint(words)
        if WORDS_RANGE[0] <= len(words) <= WORDS_RANGE[1] and not (training and (new_template or new_word)):
            break
    new = (is_new_composition(claim), new_template, new_word)
    tags = [tag for tag, is_new in zip(UNSEEN, new, strict=True) if is_new]
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
    template = choice(TEMPLATES, rng)
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
    return choices[0] if rng.random() < COMMON else choice(choices, rng)
