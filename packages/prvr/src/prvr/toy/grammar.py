"""The grammar of captions: sentences about moments, and the claims that they make."""

from collections.abc import Iterable
from itertools import compress

from numpy.random import Generator

from prvr.toy.timelines import choice
from prvr.toy.world import Claim, Shot


def _listed(text: str) -> dict[str, list[str]]:
    """What may be said of each name, the usual way first: lines `name: phrase, phrase`, of a name one or several."""
    phrases: dict[str, list[str]] = {}
    for line in text.strip().splitlines():
        name, listed = line.strip().split(": ")
        phrases.setdefault(name, []).extend(listed.split(", "))
    return phrases


WORDS = _listed(
    """
    circle: circle, ball, disc*
    square: square, box, block
    triangle: triangle
    star: star
    cross: cross
    ring: ring, hoop*
    heart: heart
    diamond: diamond, rhombus*
    crescent: crescent, moon
    arrow: arrow
    red: red, scarlet, crimson*
    green: green
    blue: blue, royal-blue
    yellow: yellow, golden
    orange: orange, amber*
    purple: purple, violet*
    pink: pink
    white: white
    brown: brown
    small: small, little, tiny
    medium: medium-sized, mid-sized
    large: large, big, huge*
    plain: on a plain background, against a blank background
    fading: on a gradient background, against a smooth gradient
    striped: on a striped background, against a background of stripes
    chequered: on a checkered background, against a checkerboard pattern
    dotted: on a dotted background, against a polka-dot background
    wavy: on a wavy background, against a background of wavy lines
    brick: in front of a brick wall, against a brick wall
    grid: in front of a grid, on graph paper
    left: moves to the left / moving to the left, slides to the left / sliding to the left
    left: drifts left / drifting left, goes left / going left
    right: moves to the right / moving to the right, slides to the right / sliding to the right
    right: drifts right / drifting right, goes right / going right
    up: rises / rising, moves up / moving up, floats up / floating up, climbs to the top / climbing to the top
    down: falls / falling, moves down / moving down, sinks / sinking, drops to the bottom / dropping to the bottom
    grow: grows / growing, gets bigger / getting bigger, becomes larger / becoming larger, expands* / expanding*
    shrink: shrinks / shrinking, gets smaller / getting smaller, becomes smaller / becoming smaller
    shrink: contracts* / contracting*
    appear: appears / appearing, fades in / fading in, comes into view / coming into view
    appear: becomes visible / becoming visible
    vanish: vanishes / vanishing, fades out / fading out, disappears / disappearing, fades away / fading away
    clockwise: turns clockwise / turning clockwise, spins clockwise / spinning clockwise
    clockwise: rotates clockwise / rotating clockwise
    anticlockwise: turns counterclockwise / turning counterclockwise, spins counterclockwise / spinning counterclockwise
    anticlockwise: rotates anticlockwise / rotating anticlockwise
    brighten: lights up / lighting up, gets brighter / getting brighter, starts to glow / starting to glow
    darken: gets darker / getting darker, dims / dimming, loses its glow / losing its glow
    push: pushes {o} / pushing {o}, pushes {o} along / pushing {o} along
    push: nudges {o} along / nudging {o} along, shoves* {o} / shoving* {o}
    pushed: is pushed by {o} / being pushed by {o}, gets pushed along by {o} / getting pushed along by {o}
    pushed: is nudged along by {o} / being nudged along by {o}, is shoved* by {o} / being shoved* by {o}
    """
)
"""What may be said of each shape, colour, size and background, and of each action as a finite verb and as a participle;
{o} is the partner of a push. No training caption uses the ten synonyms with a star."""
COMMON = 0.8  # probability of the first phrase

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
WORDS_RANGE = (4, 20)
UNSEEN = ("unseen composition", "unseen template", "unseen word")
"""Tags of what a test sentence may have that training lacks; it is "unseen" if it has any, else "seen"."""


def describe(shot: Shot, background: str, rng: Generator, training: bool) -> tuple[str, Claim, tuple[str, ...]]:
    """A sentence about a moment: always shape and action, colour mostly, size and background sometimes.

    Args:
        shot: with an action.
        background: the background of its video.
        rng: source of randomness.
        training: keep to templates and words that training may use.

    Returns:
        the sentence (4-20 words), its claim, and its tags: "seen", or "unseen" and what of it is.
    """
    actor, other, action = shot.actor, shot.other, shot.action
    assert actor is not None and action is not None  # noqa: PT018
    while True:
        colour = actor.colour if rng.random() < 0.9 else None
        # A thing that grows has no size of its own.
        sized = action not in ("grow", "shrink") and (colour is None or rng.random() < 0.35)
        size = actor.size if sized else None
        words = _words((size, colour, actor.shape), rng)
        (phrase,) = _words([action], rng)
        template = choice(range(len(TEMPLATES)), rng)
        partner = with_article(_words((other.colour, other.shape), rng)) if other else ""
        does, doing = phrase.format(o=partner).split(" / ")
        text = TEMPLATES[template].format(a=with_article(words), the=" ".join(["the", *words]), does=does, doing=doing)
        where = background if rng.random() < 0.12 else None
        text = " ".join([text, *_words([where], rng)])
        claim = Claim(actor.shape, colour, size, action, *(other.look if other else (None, None)), where)
        new = (claim.is_new, template % 4 == 3, "*" in text)  # no training caption uses one template in four
        if WORDS_RANGE[0] <= len(text.split()) <= WORDS_RANGE[1] and not (training and any(new[1:])):
            tags = ("unseen", *compress(UNSEEN, new)) if any(new) else ("seen",)
            return text.replace("*", ""), claim, tags


def with_article(words: list[str]) -> str:
    """A noun phrase with "a" or "an"."""
    return " ".join(["an" if words[0][0] in "aeiou" else "a", *words])


def _words(names: Iterable[str | None], rng: Generator) -> list[str]:
    """A phrase for each name: mostly the first, so that synonyms are rarer than common words; otherwise any."""
    return [WORDS[name][0] if rng.random() < COMMON else choice(WORDS[name], rng) for name in names if name]
