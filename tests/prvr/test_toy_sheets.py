"""Contact sheets of drawn videos: which frames they show and what they say, not their pixels."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from nightly import NIGHTLY

from prvr.toy import Sentence, render
from prvr.toy.scenes import draw_split
from prvr.toy.sheets import video_figure
from prvr.toy.world import Video

SCENES = draw_split("train", 12, 3)
LONG = "the one where a medium-sized amber crescent is nudged along by a brown rhombus against a checkerboard pattern"


def sentences_of(video: Video) -> list[Sentence]:
    return [sentence for sentence in SCENES.sentences if sentence.video_id == video.id]


def words_of(figure: Figure) -> str:
    """All texts of a figure, those of its parts included; drawn once, so that every artist is placed."""
    figure.canvas.draw()
    return "\n".join(text.get_text() for text in figure.findobj(Text) if text.get_visible())


def shown_in(figure: Figure) -> list[np.ndarray]:
    return [np.asarray(image.get_array()) for axes in figure.axes for image in axes.images]


def times_in(figure: Figure) -> list[float]:
    """Times of the frames of a video, as their titles say."""
    return [float(axes.get_title().split()[-2]) for axes in figure.axes if axes.images]


@pytest.mark.parametrize("number", range(0, len(SCENES.videos), 1 if NIGHTLY else 4))
def test_frames_cover_every_captioned_moment_and_the_whole_video(number: int) -> None:
    video = SCENES.videos[number]
    figure = video_figure(video, sentences_of(video))
    chosen = [round(2 * time - 0.5) for time in times_in(figure)]
    assert chosen == sorted(set(chosen))
    assert (chosen[0], chosen[-1]) == (0, video.frame_count - 1)
    times = video.frame_times()
    for shot in video.moments():
        inside = np.flatnonzero((times >= shot.start) & (times < shot.end))
        shown = sorted(set(chosen) & set(inside.tolist()))
        assert len(shown) >= min(8, len(inside))
        assert (shown[0], shown[-1]) == (inside[0], inside[-1])
    assert max(np.diff(chosen)) <= video.frame_count / 10
    np.testing.assert_array_equal(shown_in(figure), render(video)[chosen])


def test_a_video_is_shown_with_its_moments_and_sentences() -> None:
    video = max(SCENES.videos, key=lambda video: len(video.moments()))
    own = sentences_of(video)
    figure = video_figure(video, [replace(own[0], text=LONG), *own[1:]])
    words = words_of(figure)
    assert video.id in words
    assert LONG in " ".join(words.split())
    assert all(sentence.text in words for sentence in own[1:])
    assert all(f"{shot.start:.1f}–{shot.end:.1f} s" in words for shot in video.moments())
