"""The pictures that a person checks the embedded world with."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from prvr.data.synthetic.page import PICTURE
from prvr.data.synthetic.render import render, render_frames
from prvr.data.synthetic.scenes import Sentence, draw_split
from prvr.data.synthetic.sheet import (
    MARGIN,
    MomentRow,
    Strip,
    _draw_moments,
    _draw_sheet,
    choose_frames,
    contact_sheet,
    moment_frames,
    moments_figure,
)
from prvr.data.synthetic.world import Shot, Thing, Video

SCENES = draw_split("train", 12, 3)
LONG = "the one where a middling tangerine crescent is shoved all along by a large brown rhombus against a checkerboard"


def of(video: Video) -> list[Sentence]:
    return [sentence for sentence in SCENES.sentences if sentence.video_id == video.id]


def texts(figure: Figure) -> list[Text]:
    return [text for text in figure.axes[0].texts if text.get_text()]


def overlaps(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of texts that share a part of the page, and what sticks out of the page."""
    shown = texts(figure)
    boxes = np.array([text.get_window_extent().extents for text in shown])
    outside = (boxes[:, :2] < 0).any(1) | (boxes[:, 2:] > figure.bbox.size).any(1)
    found = [(text.get_text(), "the edge") for text, out in zip(shown, outside, strict=True) if out]
    for i, a in enumerate(boxes):
        for j, b in enumerate(boxes[:i]):
            if (np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]) > 1).all():
                found.append((shown[i].get_text(), shown[j].get_text()))
    return found


@pytest.mark.parametrize("number", range(len(SCENES.videos)))
def test_frames_cover_every_captioned_moment_and_the_whole_video(number: int) -> None:
    video = SCENES.videos[number]
    chosen = choose_frames(video)
    assert chosen == sorted(set(chosen))
    assert len(chosen) == 40
    assert chosen[0] == 0
    assert chosen[-1] == video.frame_count - 1
    times = video.frame_times()
    for shot in video.moments():
        inside = np.flatnonzero((times >= shot.start) & (times < shot.end))
        shown = sorted(set(chosen) & set(inside.tolist()))
        assert len(shown) >= min(4, len(inside))
        assert (shown[0], shown[-1]) == (inside[0], inside[-1])
        assert max(np.diff(shown)) <= np.ceil(len(inside) / 3)
    assert max(np.diff(chosen)) <= video.frame_count / 10


@pytest.mark.parametrize("duration", [3.0, 4.0, 9.0, 15.0])
def test_turns_can_be_followed(duration: float) -> None:
    shot = Shot(20.0, 20.0 + duration, Thing("ring", "red", "large"), "clockwise", captioned=True)
    video = Video("v", 60.0, "plain", False, 0, (Shot(0.0, 20.0), shot, Shot(shot.end, 60.0)))
    shown = [n for n in choose_frames(video) if shot.start <= (n + 0.5) / 2 < shot.end]
    assert 450 * max(np.diff(shown)) / (2 * duration) <= 100 or max(np.diff(shown)) == 1  # degrees


def test_frames_of_a_moment_are_even_and_inside() -> None:
    video = Video("v", 20.0, "plain", False, 0, (Shot(0.0, 20.0),))
    assert moment_frames(video, 5.0, 9.0, 8) == list(range(10, 18))
    assert moment_frames(video, 0.0, 20.0, 3) == [0, 20, 39]
    assert moment_frames(video, 5.0, 6.0) == [10, 11]
    assert moment_frames(video, 5.3, 5.4) == [10]  # none is inside
    assert moment_frames(video, 19.9, 30.0) == [39]


def test_a_sheet_shows_each_sentence_each_time_and_the_pixels(tmp_path: Path) -> None:
    video = min(SCENES.videos, key=lambda video: video.duration)
    contact_sheet(video, of(video), tmp_path / "sheet.png")
    assert [path.name for path in tmp_path.iterdir()] == ["sheet.png"]
    with Image.open(tmp_path / "sheet.png") as image:
        assert image.format == "PNG"
        assert image.width == 1200
        assert 1000 < image.height < 1500
        pixels = np.asarray(image.convert("RGB"))
    first = render(video)[0].repeat(2, 0).repeat(2, 1)  # enlarged, neither smoothed nor moved
    assert (pixels[72 : 72 + PICTURE, MARGIN : MARGIN + PICTURE] == first).all()

    words = [text.get_text() for text in texts(_draw_sheet(video, of(video)))]
    assert video.id in words
    assert {sentence.text for sentence in of(video)} <= set(words)
    assert {f"{(number + 0.5) / 2:.2f} s" for number in choose_frames(video)} <= set(words)
    spans = {f"{shot.start:.1f}–{shot.end:.1f} s" for shot in video.moments()}
    assert spans <= set(words)


def test_the_bars_of_the_time_line_are_the_shots() -> None:
    video = SCENES.videos[0]
    figure = _draw_sheet(video, of(video))
    bars = [patch for patch in figure.axes[0].patches if getattr(patch, "get_height", lambda: 0)() == 24]
    bars = [bar for bar in bars if type(bar).__name__ == "Rectangle"]
    scale = (1200 - 2 * MARGIN) / video.duration
    assert [bar.get_x() for bar in bars] == pytest.approx([MARGIN + scale * shot.start for shot in video.shots])
    kinds = {"moment" if shot.captioned else bool(shot.action) for shot in video.shots}
    colours = {bar.get_facecolor() for bar in bars}
    assert len(colours) == len(video.moments()) + len(kinds - {"moment"})


def test_nothing_overlaps_however_long_the_sentences() -> None:
    video = max(SCENES.videos, key=lambda video: (len(video.moments()), video.duration))
    video = replace(video, occluder=True)
    assert len(video.moments()) == 5
    figure = _draw_sheet(video, [replace(sentence, text=LONG) for sentence in of(video)])
    assert overlaps(figure) == []
    assert " ".join(text.get_text() for text in texts(figure)).count("against a checkerboard") == 5


@pytest.mark.parametrize(
    "shots", [(Shot(0.0, 1.0),), (Shot(0.0, 0.4, Thing("star", "red", "small"), "up", captioned=True),)]
)
def test_the_shortest_videos_have_a_sheet(tmp_path: Path, shots: tuple[Shot, ...]) -> None:
    contact_sheet(Video("v", shots[-1].end, "plain", False, 0, shots), [], tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as image:
        assert image.width == 1200


def test_a_sentence_of_elsewhere_is_refused(tmp_path: Path) -> None:
    video, other = SCENES.videos[:2]
    for sentence in (of(other)[0], replace(of(video)[0], start=0.123)):
        with pytest.raises(ValueError, match="Give each video its own sentences"):
            contact_sheet(video, [sentence], tmp_path / "sheet.png")
    assert not list(tmp_path.iterdir())


def row(sentence: str, found: int, true: int, right: bool, note: str = "", shared: float | None = None) -> MomentRow:
    def strip(number: int) -> Strip:
        video = SCENES.videos[number]
        shot = video.moments()[0]
        frames = render_frames(video, moment_frames(video, shot.start, shot.end))
        return Strip(video.id, shot.start, shot.end, frames)

    return MomentRow(sentence, strip(found), strip(true), right, shared, note)


def test_moments_are_shown_with_what_is_true_of_them(tmp_path: Path) -> None:
    rows = [
        row("a red ring rises", 0, 0, True, "rank 1", shared=0.5),
        row(LONG, 0, 1, True, "a right video has rank 17 of 160"),
        row("it costs $5 and $6", 2, 1, False),
    ]
    unknown = replace(rows[2], found=replace(rows[2].found, start=None, end=None))
    moments_figure([*rows, unknown], tmp_path / "moments.png")
    assert [path.name for path in tmp_path.iterdir()] == ["moments.png"]
    with Image.open(tmp_path / "moments.png") as image:
        assert (image.format, image.width) == ("PNG", 1200)
        pixels = np.asarray(image.convert("RGB")).astype(int)
    figure = _draw_moments([*rows, unknown])
    words = [text.get_text() for text in texts(figure)]
    assert [word for word in words if word[0] in "✓✗"] == [
        *("✓ right video", "✓ right moment"),
        *("✓ also right video", "✗ wrong video", "✗ wrong video"),
    ]
    assert {"“a red ring rises”", "“it costs $5 and $6”", "rank 1", "times unknown", "found", "true"} <= set(words)
    assert {SCENES.videos[number].id for number in range(3)} <= set(words)
    missed = texts(_draw_moments([replace(rows[0], shared=0.1)]))
    assert {"✓ right video", "✗ wrong moment"} <= {text.get_text() for text in missed}
    assert overlaps(figure) == []
    assert not any(text.get_parse_math() for text in texts(figure))  # dollars are no formula
    pictures = figure.axes[0].images
    assert len(pictures) == sum(min(8, len(s.frames)) for r in [*rows, unknown] for s in (r.found, r.true))
    left, right, bottom, top = (int(edge) for edge in pictures[0].get_extent())
    assert (pixels[top:bottom, left:right] == rows[0].found.frames[0].repeat(2, 0).repeat(2, 1)).all()
    with pytest.raises(ValueError, match="no rows"):
        moments_figure([], tmp_path / "none.png")
