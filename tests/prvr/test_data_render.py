"""The renderer of the toy world: the same bytes everywhere, and pixels that show what the scene says."""

import hashlib
from itertools import combinations

import numpy as np
import pytest

from prvr.data.synthetic.render import POST, POST_WIDTH, RGB, render, render_frames
from prvr.data.synthetic.shapes import EXTENT, draw_background, shape_distance
from prvr.data.synthetic.staging import DRIFT, draw_stage, progress
from prvr.data.synthetic.world import (
    ACTIONS,
    BACKGROUNDS,
    COLOURS,
    HEADINGS,
    OPPOSITE,
    PUSHES,
    SHAPES,
    SIZES,
    Shot,
    Thing,
    Video,
)

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


def test_frames_of_a_video() -> None:
    frames = render(mixed())
    assert frames.dtype == np.uint8
    assert frames.shape == (mixed().frame_count, 64, 64, 3) == (36, 64, 64, 3)


def test_a_video_shorter_than_a_frame_has_one() -> None:
    assert render(video("left", duration=0.1)).shape == (1, 64, 64, 3)


def test_the_bytes_of_this_version() -> None:
    # Weights of the committed encoder belong to these pixels: a change here is a new version of the corpus.
    assert hashlib.sha256(render(mixed()).tobytes()).hexdigest()[:16] == "118a98f898835950"


def test_another_seed_is_another_picture() -> None:
    assert (render(video("left", seed=0)) != render(video("left", seed=1))).mean() > 0.5


def test_some_frames_are_those_of_the_whole() -> None:
    whole, picks = render(mixed()), [30, 0, 7, 6, 6, -1, 35, 12, 26]
    np.testing.assert_array_equal(render_frames(mixed(), picks), whole[picks])
    assert render_frames(mixed(), []).shape == (0, 64, 64, 3)


@pytest.mark.parametrize("index", [36, -37])
def test_a_frame_that_is_not_there(index: int) -> None:
    with pytest.raises(IndexError, match="36 frames"):
        render_frames(mixed(), [0, index])


def test_noise_is_small_centred_and_new_in_every_frame() -> None:
    noise = render(mixed()).astype(int) - render(mixed(), noise=False)
    assert np.abs(noise).max() == 7
    assert abs(noise.mean()) < 0.05
    assert 3.1 < noise.std() < 3.4
    assert np.abs(np.corrcoef(noise.reshape(len(noise), -1)) - np.eye(len(noise))).max() < 0.06


@pytest.mark.parametrize("action", ALONE[::2])
@pytest.mark.parametrize(("seed", "duration"), [(0, 3.0), (1, 5.5)])
def test_opposites_are_the_same_frames_backwards(action: str, seed: int, duration: float) -> None:
    there, back = (
        render(
            video(name, STAR, seed, duration, background="brick", occluder=True, bystanders=(BALL, BOX)), noise=False
        )
        for name in (action, OPPOSITE[action])
    )
    np.testing.assert_array_equal(there, back[::-1])
    assert (there != back).any()


def test_a_push_told_by_either_is_the_same() -> None:
    told = Shot(0.0, 4.0, BALL, "push", BOX, "up")
    also = Shot(0.0, 4.0, BOX, "pushed", BALL, "up")
    frames = [render(Video("v", 4.0, "grid", False, 3, (shot,))) for shot in (told, also)]
    np.testing.assert_array_equal(frames[0], frames[1])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("action", HEADINGS)
def test_moves_go_where_they_say(action: str, seed: int) -> None:
    way = np.diff(centres(render(video(action, seed=seed), noise=False), "red"), axis=0)
    axis, sign = {"left": (0, -1), "right": (0, 1), "up": (1, -1), "down": (1, 1)}[action]
    assert (sign * way[:, axis]).sum() > 35
    assert (sign * way[:, axis] > 1).all()
    assert np.abs(way[:, 1 - axis].sum()) <= 2 * DRIFT


@pytest.mark.parametrize("size", SIZES)
def test_growing(size: str) -> None:
    area = painted(render(video("grow", Thing("square", "blue", size)), noise=False), "blue").sum(axis=(1, 2))
    assert (np.diff(area) > 0).all()
    assert area[-1] > 6 * area[0]


def test_appearing() -> None:
    empty = render(video(None), noise=False)
    frames = render(video("appear"), noise=False)
    redness = frames[..., 0].astype(int).max(axis=(1, 2))
    assert (np.diff(redness) >= 0).all()
    assert redness[0] < empty.max() + 30
    seen = [bool(mask.any()) for mask in painted(frames, "red")]
    assert seen[-1]
    assert not any(seen[: len(seen) // 2])


def test_brightening() -> None:
    frames = render(video("brighten"), noise=False).astype(int)
    red, green, blue = np.moveaxis(frames, -1, 0)
    pale = [np.count_nonzero(mask) for mask in (red > 170) & (green > 160) & (blue < 190)]
    assert pale[0] == 0
    assert pale[-1] > 100
    assert (np.diff(frames.sum(axis=(1, 2, 3))) > 0).all()


@pytest.mark.parametrize("shape", ["circle", "square", "ring"])
@pytest.mark.parametrize("duration", [3.0, 9.0])
def test_clockwise_is_clockwise_on_screen(shape: str, duration: float) -> None:
    turning = video("clockwise", Thing(shape, "white", "large"), duration=duration)
    frames, stage = render(turning, noise=False), draw_stage(turning, 0)
    moment = progress(turning.shots[0], turning.frame_times())
    x, y = np.meshgrid(np.arange(64), np.arange(64))
    hands = []
    for frame, (cx, cy) in zip(frames, stage.moving[0].centre(moment) + stage.drift(moment), strict=True):
        # half way to the rim nothing but the hand is black
        black = (frame.max(axis=-1) < 60) & (np.abs(np.hypot(x - cx, y - cy) - 6) < 1)
        hands.append(np.arctan2((y - cy)[black].mean(), (x - cx)[black].mean()))  # rows go down: grows clockwise
    turns = np.rad2deg(np.diff(np.unwrap(hands)))
    assert (turns > 5).all()
    assert (turns < 60).all()
    assert 240 < turns.sum() < 450


@pytest.mark.parametrize("heading", HEADINGS)
@pytest.mark.parametrize("action", PUSHES)
def test_a_pusher_comes_from_behind_and_both_go_on(action: str, heading: str) -> None:
    for seed in range(3):
        frames = render(video(action, heading=heading, seed=seed, duration=8.0), noise=False)
        ball, box = centres(frames, "red"), centres(frames, "blue")
        behind, ahead = (ball, box) if action == "push" else (box, ball)
        way = np.array({"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}[heading])
        gap = (ahead - behind) @ way
        assert (gap > 8).all()
        assert gap[0] > gap[-1] + 4
        assert np.ptp(gap[6:]) < 2  # in contact, after three tenths
        assert ((ahead[-1] - ahead[6]) @ way) > 10
        assert ((behind[-1] - behind[0]) @ way) > 15
        assert ((ball > 0) & (ball < 63) & (box > 0) & (box < 63)).all()


def test_the_camera_wanders_a_little_and_takes_things_along() -> None:
    drifts = np.array([draw_stage(video(seed=seed), 0).drift(np.arange(50) / 50) for seed in range(40)])
    assert np.abs(drifts).max() == DRIFT
    assert np.abs(np.diff(drifts, axis=1)).max() <= 1
    shot = video(None, seed=1, background="grid", bystanders=(STAR,))
    frames = render(shot, noise=False)
    moved = draw_stage(shot, 0).drift(progress(shot.shots[0], shot.frame_times()))
    x, y = (moved[-1] - moved[0]).tolist()
    assert (x, y) != (0, 0)
    np.testing.assert_array_equal(np.roll(frames[0], (y, x), axis=(0, 1))[3:-3, 3:-3], frames[-1][3:-3, 3:-3])


@pytest.mark.parametrize("colour", COLOURS)
def test_a_thing_has_its_colour(colour: str) -> None:
    shot = video(None, bystanders=(Thing("circle", colour, "large"),), background="fading", seed=5)
    stage = draw_stage(shot, 0)
    x, y = (stage.still[0].centre(np.zeros(1)) + stage.drift(progress(shot.shots[0], shot.frame_times())[:1]))[0]
    inside = render(shot)[0, y - 5 : y + 6, x - 5 : x + 6].reshape(-1, 3).astype(int)
    nearest = [min(RGB, key=lambda name: np.abs(pixel - np.array(RGB[name])).sum()) for pixel in inside]
    assert nearest.count(colour) > 0.7 * len(nearest)  # the rest is the hand
    assert np.abs(np.median(inside, axis=0) - RGB[colour]).max() <= 8


def test_colours_and_backgrounds_are_far_apart() -> None:
    assert set(RGB) == set(COLOURS)
    for first, second in combinations(COLOURS, 2):
        assert np.abs(np.subtract(RGB[first], RGB[second])).sum() >= 100, (first, second)
    for background in BACKGROUNDS:
        frame = render(video(None, background=background, seed=2))[0].astype(int)
        for colour in COLOURS:
            assert np.abs(frame - RGB[colour]).sum(axis=-1).min() > 50, (background, colour)


def test_each_background_is_its_own_pattern_and_cuts_change_the_crop() -> None:
    tint = np.full(3, 100, np.float32)
    drawn = {
        kind: draw_background(kind, tint, 70, np.random.Generator(np.random.PCG64(0))).mean(axis=-1)
        for kind in BACKGROUNDS
    }
    flat = {kind: picture - picture.mean() for kind, picture in drawn.items()}
    for first, second in combinations(BACKGROUNDS, 2):
        assert np.abs(flat[first] - flat[second]).mean() > 3, (first, second)
    assert flat["plain"].std() < 1e-3
    for kind in BACKGROUNDS:
        cut = Video("v", 4.0, kind, False, 0, (Shot(0.0, 2.0), Shot(2.0, 4.0)))
        frames = render(cut, noise=False).astype(int)
        assert np.abs(frames[3] - frames[4]).mean() > 1, kind


def mask(shape: str, turn: float) -> np.ndarray:
    """A shape as pixels, without hand or outline, moved to its middle."""
    steps = np.arange(-32, 33) / 16
    x, y = steps[None, None, :], steps[None, :, None]
    inside = shape_distance(shape, x * np.sin(turn) - y * np.cos(turn), x * np.cos(turn) + y * np.sin(turn))[0] <= 0
    middle = np.rint(np.argwhere(inside).mean(axis=0)).astype(int)
    return np.roll(inside, tuple(32 - middle), axis=(0, 1))


def test_shapes_differ_however_they_are_turned_and_look_equally_large() -> None:
    angles = np.arange(8) * np.pi / 4
    masks = {shape: np.stack([mask(shape, angle) for angle in angles]) for shape in SHAPES}
    for first, second in combinations(SHAPES, 2):
        both = masks[first][0]
        overlap = max(
            (both & other).sum() / (both | other).sum()
            for other in np.concatenate([masks[second], masks[second][:, ::-1]])
        )
        assert overlap < 0.86, (first, second, overlap)
    for shape in SHAPES:
        assert 1.0 < masks[shape][0].sum() / 256 < 3.4, shape  # of a disc: 3.14


@pytest.mark.parametrize("shape", SHAPES)
def test_distances(shape: str) -> None:
    steps = np.arange(-40, 41) / 16
    x, y = np.meshgrid(steps, steps)
    distance = shape_distance(shape, x[None], y[None])[0]
    assert (distance[np.hypot(x, y) > EXTENT] > 0).all()
    assert (distance < -0.25).any()  # room for a colour inside the outline
    # signed distances change by at most the step taken
    assert np.abs(np.diff(distance, axis=0)).max() < 1.001 / 16
    np.testing.assert_array_equal(distance, shape_distance(shape, x[None], -y[None])[0])  # all are symmetric


def test_sizes_are_told_apart() -> None:
    for shape in SHAPES:
        areas = []
        for size in SIZES:
            frames = render(video(None, bystanders=(Thing(shape, "white", size),)), noise=False)
            areas.append(painted(frames, "white")[0].sum())
        assert areas[1] > 1.7 * areas[0], shape
        assert areas[2] > 1.7 * areas[1], shape


def test_the_post_is_in_front_of_everything_and_hides_no_centre() -> None:
    for seed in range(12):
        for action in ("up", "down", "grow", "clockwise", "vanish", "right"):
            behind = video(action, STAR, seed, 3.0, occluder=True, bystanders=(BALL, BOX))
            frames = render(behind, noise=False)
            is_post = np.abs(frames.astype(int) - np.array(POST)).max(axis=-1) == 0
            columns = np.flatnonzero(is_post.all(axis=(0, 1)))
            assert len(columns) == POST_WIDTH
            stage = draw_stage(behind, 0)
            if action != "right":
                assert np.abs(columns - stage.moving[0].x.start).min() > DRIFT
    assert draw_stage(video("up"), 0).post is None


def test_things_stand_apart() -> None:
    large = (Thing("circle", "white", "large"), Thing("square", "blue", "medium"))
    for action in ALONE:
        for seed in range(4):
            stage = draw_stage(video(action, BALL, seed, bystanders=large), 0)
            assert len(stage.still) == 2
            discs = [part.discs() for part in (*stage.still, *stage.moving)]
            for first, second in combinations(discs, 2):
                apart = np.sqrt(((first[:, None, :2] - second[None, :, :2]) ** 2).sum(-1))
                assert (apart - first[:, None, 2] / 1.2 - second[None, :, 2] / 1.2).min() > 0, (action, seed)
