"""Renders a video of the toy world: its pixels depend on the video alone, to the byte, and on the light."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt8

from prvr.errors import InputError
from prvr.toy.shapes import EXTENT, OPEN, draw_background, length, shape_distance
from prvr.toy.staging import DRIFT, SIZE, PlacedThing, Times, draw_stage
from prvr.toy.world import FPS, FRAME, RGB, Video

INK, GLOW, POST = (8, 8, 10), (255, 246, 170), (30, 30, 34)
POST_WIDTH = 7
GLOW_REACH = 11  # pixels beyond the radius
NOISE_REACH = 7  # of a byte of noise, the difference of two 3-bit integers, to either side
NOISE_DRAWS = FRAME * FRAME * 3 // 8  # of 64 bits, in one frame

DAY = "day"
# What is left of the light, and a light that lies over everything; red, green, blue.
_LIGHT = {
    "dusk": ((0.38, 0.42, 0.62), (2.0, 4.0, 14.0)),
    "haze": ((0.45, 0.45, 0.45), (112.0, 114.0, 116.0)),
}
LOOKS = (DAY, *_LIGHT)
"""day: as the encoder has learned the world; dusk: dark and bluish, white looks nearly blue; haze: pale, of little
contrast, and colours keep their hue."""


def render(video: Video) -> UInt8[np.ndarray, "n 64 64 3"]:
    """Every frame of a video, red green blue.

    The bytes depend on `video` only: random choices come from its seed, pixel arithmetic is float32 with + - * / and
    square roots. Frame i is taken at (i + 0.5) / FPS.

    Args:
        video: what to draw.

    Examples:
        >>> from prvr.toy.world import Shot, Thing, Video
        >>> ball = Thing("circle", "red", "large")
        >>> shot = Shot(0.0, 3.0, ball, "left", other=None, heading=None, bystanders=(), captioned=True)
        >>> render(Video("v0", 3.0, "plain", occluder=False, seed=0, shots=(shot,))).shape
        (6, 64, 64, 3)
    """
    return render_frames(video, range(video.frame_count))


def render_frames(video: Video, indices: Sequence[int]) -> UInt8[np.ndarray, "k 64 64 3"]:
    """Some frames of a video: equal to ``render(video)[indices]``, at the cost of these frames and their shots.

    Args:
        video: what to draw.
        indices: numbers of frames in any order; negative ones count from the end.

    Raises:
        IndexError: the video has no such frame.
    """
    numbers = np.arange(video.frame_count)[list(indices)]
    times = (numbers + 0.5) / FPS
    shots = np.searchsorted([shot.end for shot in video.shots[:-1]], times, side="right")
    frames = np.empty((len(numbers), FRAME, FRAME, 3), dtype=np.uint8)
    for index in np.unique(shots):
        rows = np.flatnonzero(shots == index)
        frames[rows] = _draw_shot(video, int(index), times[rows])
    np.clip(frames, NOISE_REACH, 255 - NOISE_REACH, out=frames)  # noise never wraps round
    for frame, number in zip(frames, numbers.tolist(), strict=True):  # each has its own stretch of one stream
        stream = np.random.PCG64([video.seed, 3]).advance(number * NOISE_DRAWS)
        drawn = stream.random_raw(NOISE_DRAWS).astype("<u8", copy=False).view(np.uint8).reshape(frame.shape)
        frame += drawn & NOISE_REACH
        frame -= (drawn >> 3) & NOISE_REACH
    return frames


def _draw_shot(video: Video, index: int, times: Times) -> np.ndarray:
    """The frames of one shot at some times, without noise."""
    stage = draw_stage(video, index, times)
    canvas = draw_background(video.background, FRAME + 2 * DRIFT, video.seed, index)
    for part in stage.still:
        _paste(canvas[None], part, np.zeros(1), DRIFT)
    frames = np.stack([canvas[DRIFT - y : DRIFT - y + FRAME, DRIFT - x : DRIFT - x + FRAME] for x, y in stage.drift])
    for part in stage.moving:
        _paste(frames, part, stage.moments, stage.drift)
    if stage.post is not None:
        left = stage.post - POST_WIDTH // 2
        frames[:, :, left : left + POST_WIDTH] = POST
    return frames


def _sprites(part: PlacedThing, moment: Times) -> tuple[np.ndarray, np.ndarray]:
    """A thing drawn on its own for some moments, or once for all: premultiplied colour, what shows through."""
    if (part.ends[0] == part.ends[1])[SIZE:].all():  # it may move, but looks the same all the time
        moment = moment[:1]
    radius, angle, opacity, glow = part.at(moment)[SIZE:, :, None, None, None]
    turned = np.round([np.sin(angle), np.cos(angle)], 6)
    radius, opacity, glow, sin, cos = np.array([radius, opacity, glow, *turned], np.float32)

    reach = int(np.ceil(radius.max() * EXTENT)) + 1
    reach = max(reach, int(radius.max()) + GLOW_REACH) if glow.any() else reach
    steps = np.arange(-reach, reach + 1, dtype=np.float32)
    x, y = steps[:, None], steps[:, None, None]
    along, across = x * sin - y * cos, x * cos + y * sin  # angle 0 points up, growing ones turn clockwise
    rim = radius * shape_distance(part.thing.shape, along / radius, across / radius)

    half_width = 0.4 + 0.045 * radius
    hand = np.maximum(np.abs(across), np.abs(along - 0.5 * radius) - 0.5 * radius) - half_width
    if part.thing.shape not in OPEN:
        hand = np.maximum(hand, rim)
    hand = np.clip(0.5 - hand, 0, 1)
    body = np.clip(0.5 - rim, 0, 1)
    outline = np.clip(1 + 0.035 * radius + rim, 0, 1)
    dark, alpha = np.maximum(hand, outline), np.maximum(hand, body)

    fill, ink, shine = (np.array(colour, np.float32) for colour in (RGB[part.thing.colour], INK, GLOW))
    fill = fill + np.float32(0.35) * glow * (255 - fill)
    colour = alpha * (fill + dark * (ink - fill))
    clear = 1 - alpha
    if glow.any():
        fall = np.clip(1 - (length(x, y) - radius) / GLOW_REACH, 0, 1)  # round about any shape
        halo = np.float32(0.9) * glow * fall * clear
        colour += halo * shine
        clear -= halo
    return opacity * colour + np.float32(0.5), 1 - opacity * (1 - clear)


def _paste(images: np.ndarray, part: PlacedThing, moment: Times, shift: np.ndarray | int) -> None:
    """Draws a thing over images (k h w 3) of some moments, in place; what falls outside is cut off, not its centre."""
    colours, clears = _sprites(part, moment)
    size = colours.shape[1]
    for k, (image, centre) in enumerate(zip(images, part.centre(moment) + shift, strict=True)):
        x, y = (centre - size // 2).tolist()
        patch = image[max(y, 0) : y + size, max(x, 0) : x + size]
        (height, width, _), top, left = patch.shape, max(-y, 0), max(-x, 0)
        seen = np.s_[k % len(colours), top : top + height, left : left + width]  # one sprite of a thing that only moves
        patch[...] = patch * clears[seen] + colours[seen]  # the cast cuts off; the colour has its half to round already


def with_look(frames: UInt8[np.ndarray, "n h w 3"], look: str) -> UInt8[np.ndarray, "n h w 3"]:
    """Frames in another light.

    Args:
        frames: as `render` gives them.
        look: one of `LOOKS`.

    Raises:
        ValueError: there is no such look.

    Examples:
        >>> with_look(np.full((1, 1, 1, 3), 200, np.uint8), "dusk")[0, 0, 0].tolist()
        [78, 88, 138]
    """
    if look not in LOOKS:
        raise InputError(f"look {look!r} is not one of {', '.join(LOOKS)}")
    if look == DAY:
        return frames
    factor, offset = (np.array(values, np.float32) for values in _LIGHT[look])
    return (frames * factor + offset + np.float32(0.5)).astype(np.uint8)
