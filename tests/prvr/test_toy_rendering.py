"""The renderer of the toy world: the same bytes everywhere, and pixels that show what the scene says."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict

import numpy as np
import pytest

from prvr.toy import render, render_frames
from prvr.toy.rendering import RGB
from prvr.toy.scenes import draw_split
from prvr.toy.staging import DRIFT
from prvr.toy.world import ACTIONS, BACKGROUNDS, COLOURS, HEADINGS, OPPOSITE, PUSHES, SHAPES, SIZES, Shot, Thing, Video

BALL, BOX, STAR = Thing("circle", "red", "medium"), Thing("square", "blue", "small"), Thing("star", "green", "large")
ALONE = [action for action in ACTIONS if action not in PUSHES]


def video(
    action: str | None = None,
    actor: Thing | None = BALL,
    seed: int = 0,
    duration: float = 5.0,
    background: str = "plain",
    occluder: bool = False,
    heading: str = "right",
    bystanders: tuple[Thing, ...] = (),
) -> Video:
    """A video of one shot; in a push, a small blue square is the other."""
    pushes = action in PUSHES
    other = (BOX, heading) if pushes else (None, None)
    shot = Shot(0.0, duration, actor if action else None, action, *other, bystanders)
    return Video("v", duration, background, occluder, seed, (shot,))


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


def painted(frames: np.ndarray, colour: str) -> np.ndarray:
    """Where the pixels have a colour."""
    return np.all(np.abs(frames.astype(int) - np.array(RGB[colour])) < 25, axis=-1)


def centres(frames: np.ndarray, colour: str) -> np.ndarray:
    """Column and row of the middle of what has a colour, frame by frame."""
    return np.array([np.argwhere(mask).mean(axis=0)[::-1] for mask in painted(frames, colour)])


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
    assert render(video("left", duration=0.1)).shape == (1, 64, 64, 3)  # shorter than a frame
    for index in (36, -37):
        with pytest.raises(IndexError, match="36 frames"):
            render_frames(mixed(), [0, index])


@pytest.mark.parametrize("action", ALONE[::2])
def test_opposites_are_the_same_frames_backwards(action: str) -> None:
    there, back = (
        render(video(name, STAR, 1, 5.5, "brick", True, bystanders=(BALL, BOX)), noise=False)
        for name in (action, OPPOSITE[action])
    )
    np.testing.assert_array_equal(there, back[::-1])
    assert (there != back).any()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("action", HEADINGS)
def test_moves_go_where_they_say(action: str, seed: int) -> None:
    way = np.diff(centres(render(video(action, seed=seed), noise=False), "red"), axis=0)
    axis, sign = {"left": (0, -1), "right": (0, 1), "up": (1, -1), "down": (1, 1)}[action]
    assert (sign * way[:, axis]).sum() > 35
    assert (sign * way[:, axis] > 1).all()
    assert np.abs(way[:, 1 - axis].sum()) <= 2 * DRIFT
