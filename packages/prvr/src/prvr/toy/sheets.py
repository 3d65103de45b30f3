"""Contact sheets of drawn videos: frames, moments and sentences."""

from collections.abc import Sequence
from string import ascii_uppercase
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np

from prvr.plot.figures import evenly, new_figure
from prvr.toy import Sentence, render_frames
from prvr.toy.rendering import DAY, with_look
from prvr.toy.world import FPS, Video

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = 8  # frames in a row
_SPREAD, _PER_MOMENT = 24, 8  # frames of the whole video, and of each captioned moment: enough to see what turns
_LETTERS = 110  # of a sentence in one line


def moment_frames(video: Video, start: float, end: float, count: int = 8) -> list[int]:
    """Numbers of frames, spread evenly from the first to the last that lie in a moment.

    Args:
        video: the video.
        start, end: the times of the moment in seconds; a moment between two frames gets the nearest one.
        count: maximum number of frames.

    Examples:
        >>> moment_frames(Video("v0", 20.0, "plain", False, 0, ()), 5.0, 9.0, 4)
        [10, 12, 15, 17]
    """
    times = (np.arange(video.frame_count) + 0.5) / FPS
    inside = np.flatnonzero((times >= start) & (times < end))
    if not inside.size:
        inside = np.array([np.abs(times - (start + end) / 2).argmin()])
    return inside[evenly(len(inside), count)].tolist()


def video_figure(video: Video, sentences: Sequence[Sentence], look: str = DAY) -> "Figure":
    """One video: frames with their times, each with the letter of its moment, and the sentences of each moment.

    At least 8 frames of each captioned moment are shown, its first and last among them.

    Args:
        video: the video.
        sentences: sentences about this video; each is about one of its captioned moments.
        look: one of `prvr.toy.rendering.LOOKS`.

    Raises:
        ValueError: there is no such look.
    """
    letters = dict(zip(video.moments(), ascii_uppercase, strict=False))
    numbers = set(moment_frames(video, 0.0, video.frame_count / FPS, _SPREAD))
    lines = list[str]()
    for shot, letter in letters.items():
        own = [text for s in sentences if (s.start, s.end) == (shot.start, shot.end) for text in wrap(s.text, _LETTERS)]
        lines += [f"{letter}   {shot.start:.1f}–{shot.end:.1f} s", *(f"       {text}" for text in own)]
        numbers.update(moment_frames(video, shot.start, shot.end, _PER_MOMENT))
    rows = -(-len(numbers) // _COLUMNS)
    heights = (1.7 * rows, 0.22 * len(lines) + 0.2)
    figure = new_figure(12.0, 0.5 + sum(heights))
    facts = [f"{video.duration:g} s", f"{video.background} background", *["a post in front"] * video.occluder]
    figure.suptitle(f"{video.id}: {', '.join(facts)}")
    pictures, text = figure.subfigures(2, 1, squeeze=False, height_ratios=heights)[:, 0]
    cells = pictures.subplots(rows, _COLUMNS, squeeze=False).ravel()
    for axes in cells:
        axes.axis("off")
    frames = with_look(render_frames(video, sorted(numbers)), look)
    for axes, number, frame in zip(cells, sorted(numbers), frames, strict=False):
        time = (number + 0.5) / FPS
        letter = next((letter for shot, letter in letters.items() if shot.start <= time < shot.end), "")
        axes.imshow(frame, interpolation="nearest")
        axes.set_title(f"{letter} {time:.2f} s", fontsize="small")
    text.text(0.01, 1, "\n".join(lines), va="top", parse_math=False)
    return figure
