"""Pictures a person checks the embedded world with: a video and its sentences, and moments that were found."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, UInt8
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from prvr.data.synthetic.page import FAINT, INK, PICTURE, QUIET, WIDTH, Page, Pixels, write_png
from prvr.data.synthetic.render import DAY, render_frames, with_look
from prvr.data.synthetic.scenes import Sentence
from prvr.data.synthetic.world import FPS, Shot, Video
from prvr.errors import InputError

MARGIN, GAP = 39, 14  # pixels, of a sheet: eight pictures in a row
COLUMNS, SHOWN = 8, 40  # frames
AT_LEAST = 4  # frames of each captioned moment
TO_SEE_TURNS = 8  # of one that turns: less than a third of a turn from one to the next
ACTING, STILL = "#8e8e93", "#e3e3e8"
HUES = ("#3f6ea5", "#b4503f", "#2f7d4f", "#8a3f7e", "#8f6d12")  # dark enough for white letters
RIGHT, WRONG = "#2f7d4f", "#b4503f"


@dataclass(frozen=True)
class Strip:
    """Frames of a moment of a video; its times in seconds, None where they are not known."""

    video_id: str
    start: float | None
    end: float | None
    frames: UInt8[np.ndarray, "k h w 3"]


@dataclass(frozen=True)
class MomentRow:
    """A query: its sentence, the moment that was found, the moment it was written for, whether the video is right.

    Args:
        sentence: as it was typed.
        found: of the first hit.
        true: what the sentence was written for.
        right: whether the sentence is true of the video found; more than one may be.
        shared: how much of the found and the true moment is common to both (IoU); None where that is not known. From a
            half on, the moment is right too.
        note: a few words beside the sentence, such as a rank.
    """

    sentence: str
    found: Strip
    true: Strip
    right: bool
    shared: float | None
    note: str = ""


def moment_frames(video: Video, start: float, end: float, count: int = COLUMNS) -> list[int]:
    """Numbers of frames, evenly from the first to the last that lie in a moment; all where it has fewer than `count`.

    Args:
        video: of which.
        start, end: of the moment in seconds; a moment between two frames gets the nearest one.
        count: how many at most.

    Example:
        >>> moment_frames(Video("v0", 20.0, "plain", False, 0, ()), 5.0, 9.0, 4)
        [10, 12, 15, 17]
    """
    times = video.frame_times()
    inside = np.flatnonzero((times >= start) & (times < end))
    if not inside.size:
        inside = np.array([np.abs(times - (start + end) / 2).argmin()])
    spread = np.linspace(0, len(inside) - 1, min(count, len(inside)))
    return inside[np.floor(spread + 0.5).astype(np.int64)].tolist()


def contact_sheet(video: Video, sentences: Sequence[Sentence], path: Path | str, look: str = DAY) -> None:
    """Draws one video as a PNG of 1200 pixels width: frames with their times, a time line, the sentences.

    Of each captioned moment at least 4 frames are shown, its first and last among them, and 8 where a thing turns; 40
    frames in all, as evenly spread as that allows.

    Args:
        video: to be drawn.
        sentences: about this video; each speaks of one of its captioned moments.
        path: the file to write.
        look: one of `prvr.data.synthetic.render.LOOKS`.

    Raises:
        ValueError: a sentence is about another video, there is no such look, or no captioned moment has its times.
        OSError: the file cannot be written.
    """
    write_png(_draw_sheet(video, sentences, look), path)


def moments_figure(rows: Sequence[MomentRow], path: Path | str) -> None:
    """Draws what was found for some queries, and what is true, as a PNG of 1200 pixels width.

    Args:
        rows: one per query; of each strip the first 8 frames are shown.
        path: the file to write.

    Raises:
        ValueError: no rows.
        OSError: the file cannot be written.
    """
    if not rows:
        raise InputError("moments_figure: no rows; expected at least one query")
    write_png(_draw_moments(rows), path)


def choose_frames(video: Video) -> list[int]:
    """The frames that a sheet shows: of each captioned moment, then wherever the largest gap is."""
    taken: Bool[np.ndarray, " n"] = np.zeros(video.frame_count, dtype=bool)
    for shot in video.moments():
        least = TO_SEE_TURNS if shot.action in ("clockwise", "anticlockwise") else AT_LEAST
        taken[moment_frames(video, shot.start, shot.end, least)] = True
    taken[[0, -1]] = True
    total = min(len(taken), max(SHOWN, COLUMNS * -(-int(taken.sum()) // COLUMNS)))
    while taken.sum() < total:
        chosen = np.flatnonzero(taken)
        gaps = np.diff(chosen)
        widest = int(gaps.argmax())
        taken[chosen[widest] + gaps[widest] // 2] = True
    return np.flatnonzero(taken).tolist()


# The sheet of a video


def _draw_sheet(video: Video, sentences: Sequence[Sentence], look: str = DAY) -> Figure:
    moments = video.moments()
    told: list[list[Sentence]] = [[] for _ in moments]
    spans = [(shot.start, shot.end) for shot in moments]
    for sentence in sentences:
        span = (sentence.start, sentence.end)
        if sentence.video_id != video.id or span not in spans:
            raise InputError(
                f"contact_sheet: sentence {sentence.id!r} is about {sentence.start}-{sentence.end} s of "
                f"{sentence.video_id!r}; {video.id!r} has captioned moments {spans}. Give each video its own sentences."
            )
        told[spans.index(span)].append(sentence)
    letters = {shot: chr(ord("A") + i % 26) for i, shot in enumerate(moments)}
    colours = {shot: ACTING if shot.action else STILL for shot in video.shots}
    colours |= {shot: HUES[i % len(HUES)] for i, shot in enumerate(moments)}

    page = Page()
    end = page.text(MARGIN, 48, video.id, 22, weight="bold")
    facts = [f"{video.duration:g} s", f"{video.background} background", *["a post in front"] * video.occluder]
    page.text(end + 16, 48, "  ·  ".join(facts), 16, color=QUIET)
    y = _grid(page, video, look, colours, letters, 72)
    y = _time_line(page, video, colours, letters, y + 14)
    for shot, own in zip(moments, told, strict=True):
        y = _sentences(page, video, shot, own, colours[shot], letters[shot], y)
    return page.finish(y + 16)


def _grid(page: Page, video: Video, look: str, colours: dict[Shot, str], letters: dict[Shot, str], y: Pixels) -> Pixels:
    """The frames; a line under each tells its shot apart, and runs on as long as the shot does."""
    numbers = choose_frames(video)
    frames = with_look(render_frames(video, numbers), look)
    shots = [_shot_at(video, number) for number in numbers]
    for i, (number, shot) in enumerate(zip(numbers, shots, strict=True)):
        x, top = MARGIN + (PICTURE + GAP) * (i % COLUMNS), y + (PICTURE + 36) * (i // COLUMNS)
        page.picture(x, top, frames[i])
        runs_on = (i + 1) % COLUMNS != 0 and i + 1 < len(shots) and shots[i + 1] is shot
        page.bar(x, top + PICTURE + 3, PICTURE + runs_on * GAP, 4, colours[shot])
        after = x
        if shot in letters:
            after = page.text(x, top + PICTURE + 22, letters[shot], 13, weight="bold", color=colours[shot]) + 7
        page.text(
            after, top + PICTURE + 22, f"{(number + 0.5) / FPS:.2f} s", 13, color=INK if shot.captioned else QUIET
        )
    return y + (PICTURE + 36) * -(-len(numbers) // COLUMNS)


def _time_line(page: Page, video: Video, colours: dict[Shot, str], letters: dict[Shot, str], y: Pixels) -> Pixels:
    """From 0 to the end, a bar per shot, with a scale and a legend."""
    scale = (WIDTH - 2 * MARGIN) / video.duration
    for number in choose_frames(video):  # where the frames above were taken
        page.bar(MARGIN + scale * min((number + 0.5) / FPS, video.duration) - 0.5, y - 7, 1, 5, QUIET)
    for shot in video.shots:
        x, width = MARGIN + scale * shot.start, scale * (shot.end - shot.start)
        page.bar(x, y, max(width - 1, 1), 24, colours[shot])
        if shot in letters:
            page.text(x + width / 2, y + 17, letters[shot], 14, weight="bold", color="white", ha="center")
    for tick in MaxNLocator(12, steps=[1, 2, 5, 10]).tick_values(0, video.duration):
        if tick <= video.duration:
            page.bar(MARGIN + scale * tick - 0.5, y + 26, 1, 5, QUIET)
            page.text(MARGIN + scale * tick, y + 45, f"{tick:g}", 12, color=QUIET, ha="center")
    y += 70
    x: Pixels = MARGIN
    for colour, words in ((HUES[0], "captioned moment, by letter"), (ACTING, "other action"), (STILL, "nothing moves")):
        page.bar(x, y - 10, 22, 10, colour)
        x = page.text(x + 30, y, words, 13, color=QUIET) + 28
    page.bar(x + 4, y - 9, 1, 8, QUIET)
    page.text(x + 14, y, "a frame above", 13, color=QUIET)
    page.text(WIDTH - MARGIN, y, "time in seconds", 13, color=QUIET, ha="right")
    return y + 26


def _sentences(
    page: Page, video: Video, shot: Shot, own: Sequence[Sentence], colour: str, letter: str, y: Pixels
) -> Pixels:
    """The letter of a moment, its times and all that was written for it."""
    page.bar(MARGIN, y, 24, 24, colour, round_by=4)
    page.text(MARGIN + 12, y + 17, letter, 14, weight="bold", color="white", ha="center")
    page.text(MARGIN + 36, y + 17, _span(shot.start, shot.end), 14, color=QUIET)
    left, right = MARGIN + 170, WIDTH - MARGIN
    if not own:
        page.text(left, y + 17, "no sentence", 15, color=QUIET, style="italic")
        return y + 36
    for sentence in own:
        page.text(right, y + 17, sentence.id.removeprefix(f"{video.id}#"), 12, color=QUIET, ha="right")
        for line in page.wrap(sentence.text, right - 70 - left, 16):
            page.text(left, y + 17, line, 16)
            y += 24
        y += 3
    return y + 9


def _shot_at(video: Video, number: int) -> Shot:
    """The shot that a frame belongs to."""
    return next((shot for shot in video.shots if (number + 0.5) / FPS < shot.end), video.shots[-1])


# Moments that were found


def _draw_moments(rows: Sequence[MomentRow]) -> Figure:
    page, y, margin = Page(), 22, 24
    left = WIDTH - margin - COLUMNS * (PICTURE + 2) + 2
    for i, row in enumerate(rows):
        if i:
            page.bar(margin, y, WIDTH - 2 * margin, 1, FAINT)
            y += 20
        page.text(WIDTH - margin, y + 20, row.note, 13, color=QUIET, ha="right")
        room = WIDTH - 2 * margin - page.width(row.note, 13) - 30
        for line in page.wrap(f"“{row.sentence}”", room, 17, "bold"):
            page.text(margin, y + 20, line, 17, weight="bold")
            y += 26
        y += 10
        for name, strip in (("found", row.found), ("true", row.true)):
            page.text(margin, y + 13, name, 15, weight="bold")
            page.text(margin, y + 34, strip.video_id, 13, color=QUIET)
            page.text(margin, y + 53, _span(strip.start, strip.end), 13, color=QUIET)
            if name == "found":
                for line, (words, colour) in enumerate(_verdicts(row)):
                    page.text(margin, y + 78 + 18 * line, words, 11, weight="bold", color=colour)
            for k, pixels in enumerate(strip.frames[:COLUMNS]):
                page.picture(left + k * (PICTURE + 2), y, pixels)
            y += PICTURE + 8
        y += 16
    return page.finish(y)


def _verdicts(row: MomentRow) -> list[tuple[str, str]]:
    """What is said of the video found and, where it is right and that can be said, of the moment; with its colour."""
    if not row.right:
        return [("✗ wrong video", WRONG)]
    said = [("✓ right video" if row.found.video_id == row.true.video_id else "✓ also right video", RIGHT)]
    if row.shared is not None:
        right = row.shared >= 0.5
        said.append(("✓ right moment" if right else "✗ wrong moment", RIGHT if right else WRONG))
    return said


def _span(start: float | None, end: float | None) -> str:
    return "times unknown" if start is None or end is None else f"{start:.1f}–{end:.1f} s"
