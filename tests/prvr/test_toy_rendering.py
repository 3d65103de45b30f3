"""The renderer of the toy world: the same bytes everywhere, and pixels that show what the scene says."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict

import numpy as np
import pytest

from prvr.toy import render, render_frames
from prvr.toy.scenes import draw_split
from prvr.toy.world import ACTIONS, BACKGROUNDS, COLOURS, HEADINGS, OPPOSITE, PUSHES, SHAPES, SIZES, Shot, Thing, Video

BALL, BOX, STAR = Thing("circle", "red", "medium"), Thing("square", "blue", "small"), Thing("star", "green", "large")
ALONE = [action for action in ACTIONS if action not in PUSHES]


def mixed() -> Video:
    """A video with everything: six shots, a post, bystanders, times between the frames."""
    shots = (
        Shot(0.0, 3.3, BALL, "left", bystanders=(BOX, STAR)),
        Shot(3.3, 6.25, bystanders=(BOX,)),
        Shot(6.25, 10.0, BALL, "push", BOX, "down", (STAR,)),
        Shot(10.0, 13.0, STAR, "brighten"),
        Shot(13.0, 13.2),  # shorter than a frame
        Shot(13.2, 17.7, STAR, "anticlockwise", bystanders=(BALL,)),
    )
    return Video("mixed", 17.7, "wavy", True, 12345, shots)


def everything() -> Iterator[Video]:
    """180 videos: every shape, colour, size, action, way and background, with and without a post."""
    for number in range(180):
        thing, other, bystander = (
            Thing(SHAPES[(number + k) % 10], COLOURS[(number + c) % 9], SIZES[(number + k + (k == 5) * 2) % 3])
            for k, c in ((0, 0), (3, 6), (5, 5))
        )
        action = ACTIONS[number % 14]
        push = (other, HEADINGS[number // 14 % 4]) if action in PUSHES else (None, None)
        acted = Shot(0.0, 3.2, thing, action, *push, (bystander,))
        shots = (acted, Shot(3.2, 4.0, bystanders=(thing,)))
        yield Video(f"v{number}", 4.0, BACKGROUNDS[number % 8], number % 3 == 0, number, shots)


def test_the_bytes_of_this_version() -> None:
    """The weights of the encoder belong to these pixels: a change here is a new version of the corpus."""
    assert hashlib.sha256(render(mixed()).tobytes()).hexdigest()[:16] == "118a98f898835950"
    pixels = hashlib.sha256(b"".join(render(drawn).tobytes() for drawn in everything()))
    assert pixels.hexdigest()[:16] == "4c84509096a25975"


@pytest.mark.parametrize(("split", "expected"), [("train", "ca82ada4b50fe78b"), ("test", "e6179fc4c4193ff5")])
def test_the_scenes_and_sentences_of_this_version(split: str, expected: str) -> None:
    scenes = json.dumps(asdict(draw_split(split, 20, 0)), sort_keys=True)
    assert hashlib.sha256(scenes.encode()).hexdigest()[:16] == expected


def test_some_frames_are_those_of_the_whole() -> None:
    whole, picks = render(mixed()), [30, 0, 7, 6, 6, -1, 35, 12, 26]
    np.testing.assert_array_equal(render_frames(mixed(), picks), whole[picks])
    assert render_frames(mixed(), []).shape == (0, 64, 64, 3)
    with pytest.raises(IndexError, match="size 36"):
        render_frames(mixed(), [0, 36])


@pytest.mark.parametrize("action", ALONE[::2])
def test_opposites_are_the_same_frames_backwards(action: str) -> None:
    shots = (Shot(0.0, 5.5, STAR, name, bystanders=(BALL, BOX)) for name in (action, OPPOSITE[action]))
    there, back = (render(Video("v", 5.5, "brick", True, 1, (shot,))).astype(int) for shot in shots)
    noise = render(Video("v", 5.5, "plain", False, 1, (Shot(0.0, 5.5),))).astype(int)  # on one colour
    np.testing.assert_array_equal(there - noise, (back - noise)[::-1])
    assert (there != back).any()
