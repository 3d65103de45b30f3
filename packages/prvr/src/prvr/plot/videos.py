"""Contact sheets of drawn videos: frames, moments and sentences."""

from collections.abc import Sequence
from itertools import cycle
from string import ascii_uppercase
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np

from prvr.data.synthetic import Sentence, render_frames
from prvr.data.synthetic.render import DAY, with_look
from prvr.data.synthetic.world import FPS, Video
from prvr.plot.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = 8  # frames in a row
_SPREAD, _PER_MOMENT = 24, 4  # frames of the whole video, and of each captioned moment
_TO_SEE_TURNS = 8  # of a moment in which something turns: less than a third of a turn from one to the next
_ACTING, _STILL = "#8e8e93", "#e3e3e8"
_WIDTH = 12.0  # inches
_LETTERS = 110  # of a sentence in one line
_NO_TICKS = {"xticks": [], "yticks": []}  # not seen beside a picture, but measured each time it is drawn


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
    times = video.frame_times()
    inside = np.flatnonzero((times >= start) & (times < end))
    if not inside.size:
        inside = np.array([np.abs(times - (start + end) / 2).argmin()])
    spread = np.linspace(0, len(inside) - 1, min(count, len(inside)))
    return inside[np.floor(spread + 0.5).astype(np.int64)].tolist()


def video_figure(video: Video, sentences: Sequence[Sentence], look: str = DAY) -> "Figure":
    """One video: frames with their times, a time line of its shots, and its sentences.

    At least 4 frames of each captioned moment are shown, its first and last among them, and 8 where a thing turns.

    Args:
        video: the video.
        sentences: sentences about this video; each is about one of its captioned moments.
        look: one of `prvr.data.synthetic.render.LOOKS`.

    Raises:
        ValueError: there is no such look.
    """
    moments = video.moments()
    letters = dict(zip(moments, cycle(ascii_uppercase), strict=False))
    colours = {shot: _ACTING if shot.action else _STILL for shot in video.shots}
    colours |= {shot: f"C{number % 7}" for number, shot in enumerate(moments)}  # C7 is grey
    lines = []
    for shot in moments:
        own = [text for s in sentences if (s.start, s.end) == (shot.start, shot.end) for text in wrap(s.text, _LETTERS)]
        lines += [f"{letters[shot]}   {shot.start:.1f}–{shot.end:.1f} s", *(f"       {text}" for text in own)]

    numbers = _choose_frames(video)
    rows = -(-len(numbers) // _COLUMNS)
    heights = (1.7 * rows, 1.2, 0.22 * len(lines) + 0.2)
    figure = new_figure(_WIDTH, 0.5 + sum(heights))
    facts = [f"{video.duration:g} s", f"{video.background} background", *["a post in front"] * video.occluder]
    figure.suptitle(f"{video.id}: {', '.join(facts)}")
    pictures, line, text = figure.subfigures(3, 1, squeeze=False, height_ratios=heights)[:, 0]
    cells = pictures.subplots(rows, _COLUMNS, squeeze=False, subplot_kw=_NO_TICKS).ravel()
    for axes in cells:
        axes.axis("off")
    for axes, number, frame in zip(cells, numbers, with_look(render_frames(video, numbers), look), strict=False):
        shot = next((shot for shot in video.shots if (number + 0.5) / FPS < shot.end), video.shots[-1])
        title = f"{letters.get(shot, '')} {(number + 0.5) / FPS:.2f} s"
        axes.imshow(frame, interpolation="nearest")
        axes.set_title(title, fontsize="small", color=colours[shot] if shot in letters else "black")
    axes = line.subplots()
    for shot in video.shots:
        axes.broken_barh([(shot.start, shot.end - shot.start)], (0, 1), color=colours[shot])
        axes.text((shot.start + shot.end) / 2, 0.5, letters.get(shot, ""), color="white", ha="center", va="center")
    axes.set(xlim=(0, video.duration), yticks=[], xlabel="seconds; dark grey: other action, light grey: nothing moves")
    text.text(0.01, 1, "\n".join(lines), va="top", parse_math=False)
    return figure


def _choose_frames(video: Video) -> list[int]:
    """Frames of the whole video, and more of each captioned moment."""
    chosen = set(moment_frames(video, 0.0, video.frame_count / FPS, _SPREAD))
    for shot in video.moments():
        turns = shot.action in ("clockwise", "anticlockwise")
        chosen.update(moment_frames(video, shot.start, shot.end, _TO_SEE_TURNS if turns else _PER_MOMENT))
    return sorted(chosen)
