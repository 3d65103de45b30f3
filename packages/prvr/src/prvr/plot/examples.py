"""The best videos for a query, with their moments and, where there are pictures, frames (DiffusionRet, figure C)."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from prvr.corpora.corpus_encoders import DRAWN_COLLECTIONS
from prvr.data import Corpus
from prvr.evaluation.moments import ExampleQuery, Hit, find_moments
from prvr.extensions import extension
from prvr.plot.drawing import PlotInput, number_of
from prvr.plot.figures import RIGHT, brief, new_figure
from prvr.plot.plots import ExamplesSettings

Pictures = Callable[[str, float, float], UInt8[np.ndarray, "k h w 3"]]
"""`(video id, start, end)` to some frames of that moment, in order."""
_FRAMES, _PIXELS = 6, 160
_FOUND = "#0072B2"


def pictures_of(corpus: Corpus, split: str, films: Path | None = None) -> Pictures | None:
    """Where frames come from: files named by the ids of the videos, or the drawing of a corpus.

    Args:
        corpus: the corpus.
        split: its split.
        films: a folder of video files, looked through with all folders in it.

    Returns:
        None where there are no pictures: no folder is given, and the corpus is not drawn.

    Raises:
        InputError: there is no such folder.
        prvr.MissingExtraError: there is one, and prvr-search is not installed.
    """
    if films is not None:
        return extension("frames", "Reading frames of video files")(films, _FRAMES, _PIXELS)
    drawn = (entry.part for entry in DRAWN_COLLECTIONS if entry.part.generator == corpus.about.get("generator"))
    return next((collection.frames(corpus, split, _FRAMES) for collection in drawn), None)


def examples_figure(
    examples: Sequence[ExampleQuery], durations: Mapping[str, float], pictures: Pictures | None = None
) -> Figure:
    """For each query a row for each hit, best first: rank, name, score, where its moment lies, and frames of it.

    Right videos are green; on the line of the query's own video the true moment is framed in green too.

    Args:
        examples: what `find_moments` gave for some queries, at least one.
        durations: the length of each video in seconds by its id; NaN where it is not known.
        pictures: where frames come from; None draws none.
    """
    columns, height = (_FRAMES, 1.15) if pictures else (0, 0.6)
    heights = [0.9 + height * len(example.hits) for example in examples]
    figure = new_figure(4.8 + 1.1 * columns, sum(heights))
    parts = figure.subfigures(len(examples), 1, squeeze=False, height_ratios=heights)[:, 0]
    for part, example in zip(parts, examples, strict=True):
        cells = part.subplots(len(example.hits), 2 + columns, squeeze=False, width_ratios=(2.0, 2.8, *[1.1] * columns))
        for place, (hit, (about, line, *frames)) in enumerate(zip(example.hits, cells, strict=True), 1):
            mark, colour = ("✓ ", RIGHT) if hit.video_id in example.relevant else ("", "black")
            label = f"{place}. {mark}{brief(hit.video_id, 26)}\n    {hit.score:.3f}"
            about.text(0, 0.5, label, va="center", color=colour)
            _draw_line(line, example, hit, durations.get(hit.video_id, float("nan")))
            for axes in (about, *frames):
                axes.axis("off")
            if pictures is not None and hit.start is not None and hit.end is not None:
                for axes, frame in zip(frames, pictures(hit.video_id, hit.start, hit.end), strict=False):
                    axes.imshow(frame)
        cells[-1, 1].set_xlabel("seconds", fontsize="small")
        rank = next((place for place, hit in enumerate(example.hits, 1) if hit.video_id in example.relevant), None)
        result = f"a right video has rank {rank}" if rank else f"no right video is among the best {len(example.hits)}"
        part.suptitle(
            f"“{brief(example.caption, 110)}”\n{result}; blue: moment found, framed: true moment", fontsize="medium"
        )
    return figure


def _draw_line(axes: Axes, example: ExampleQuery, hit: Hit, duration: float) -> None:
    """The time line of a video with the moment found and, in the query's own video, the true one."""
    axes.set(yticks=[], ylim=(0, 1))
    axes.tick_params(labelsize="small")
    axes.spines[["top", "right", "left"]].set_visible(False)
    if hit.start is None or hit.end is None or not duration > 0:
        axes.text(0.5, 0.5, "times unknown", ha="center", va="center", transform=axes.transAxes, fontsize="small")
        axes.set_xticks([])
        return
    axes.broken_barh([(0, duration)], (0.3, 0.4), color="0.9")
    axes.broken_barh([(hit.start, hit.end - hit.start)], (0.3, 0.4), color=_FOUND)
    if hit.video_id == example.video_id and example.start is not None and example.end is not None:
        span = (example.start, example.end - example.start)
        axes.broken_barh([span], (0.15, 0.7), facecolor="none", edgecolor=RIGHT, linewidth=2)
    axes.set_xlim(0, duration)


def draw_examples(inputs: PlotInput, settings: ExamplesSettings) -> Figure:
    """The best videos of a split for one query, after all stages of a system."""
    with inputs.encoded() as (packed, encoded):
        query = number_of(settings.query, "query", packed.query_names, packed.query_ids)
        seed = inputs.config.train.seed
        (example,) = find_moments(
            inputs.system.pipeline, packed, [query], settings.top, encoded=encoded, device=inputs.device, seed=seed
        )
        durations = dict(zip(packed.video_ids, packed.durations.tolist(), strict=True))
        files = None if settings.files is None else Path(settings.files).expanduser()
        return examples_figure([example], durations, pictures_of(packed.source.corpus, packed.source.split, files))
