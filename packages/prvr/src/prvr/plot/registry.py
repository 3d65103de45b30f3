"""Every kind of picture by name: its settings, its line of documentation, and the function that draws it.

The fields of the settings are the options of `prvr plot NAME` and the keys of a plot in a table of `prvr papers`.
Reading them imports no torch.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from prvr.config.registry import Registry
from prvr.config.strict import LARGE, MANY, SEED, STRICT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from prvr.plot.drawing import PlotInput

PLOTS: "Registry[Callable[[PlotInput, Any], Figure]]" = Registry("plot")
"""Every plot by name; a part takes a `prvr.plot.PlotInput` and its settings, and gives a figure."""


def _option(default: Any, text: str, shown: str = "N", **bounds: Any) -> Any:
    """A field whose text is the help of an option; `shown` stands for its value there."""
    return Field(default=default, description=text, title=shown, **bounds)


def _row(what: str) -> Any:
    text = f"the id of a {what} of the split, or its number, from 0"
    return _option("0", text, what.upper(), coerce_numbers_to_str=True)


@dataclass(frozen=True, config=STRICT)
class TrajectorySettings:
    """Which query is shown, and how its candidates are generated."""

    query: str = _row("query")
    candidates: int | None = _option(None, "the number of candidates; by default, that of the re-ranker", ge=1, le=MANY)
    steps: int | None = _option(None, "the steps of the sampler; by default, those of the re-ranker", ge=1, le=LARGE)
    panels: int = _option(6, "the noise levels to draw as bars", ge=2, le=100)
    seed: int | None = _option(None, "the seed of the noise; by default, that of the stage", ge=0, le=SEED)


@dataclass(frozen=True, config=STRICT)
class ScoresSettings:
    """The corpora, and the histograms of their scores."""

    transfer: tuple[str, ...] = _option(
        (), "use these corpora too, on which the run was not trained", "ROOT/COLLECTION"
    )
    bins: int = _option(50, "the bins of each histogram", ge=1, le=10_000)


@dataclass(frozen=True, config=STRICT)
class AttentionSettings:
    """Which video is shown."""

    video: str = _row("video")


@dataclass(frozen=True, config=STRICT)
class RatiosSettings:
    """The reports, and what is shown of them."""

    reports: tuple[str, ...] = _option(
        (), "further runs whose reports stand beside, or files of `prvr evaluate` such as evaluation.json", "RUN"
    )
    metric: Literal["sumr", "r1", "r5", "r10", "r100"] = _option("sumr", "the recall", "{sumr,r1,r5,r10,r100}")


@dataclass(frozen=True, config=STRICT)
class FramesSettings:
    """Which video is shown."""

    video: str = _row("video")
    seed: int = _option(0, "the seed of t-SNE and of the untrained weights", ge=0, le=SEED)


@dataclass(frozen=True, config=STRICT)
class HyperbolicSettings:
    """Which points are shown."""

    points: int = _option(3000, "how many points in all", ge=8, le=MANY)
    seed: int = _option(0, "the seed of the sample", ge=0, le=SEED)


@dataclass(frozen=True, config=STRICT)
class RegistersSettings:
    """Which videos and steps are shown."""

    videos: int = _option(24, "how many videos, the first of the split", ge=2, le=1000)
    panels: int = _option(5, "the steps to show, the first and the last among them", ge=2, le=20)
    seed: int = _option(0, "the seed of t-SNE", ge=0, le=SEED)


@dataclass(frozen=True, config=STRICT)
class ExamplesSettings:
    """Which query is shown, and where frames come from."""

    query: str = _row("query")
    top: int = _option(5, "how many videos", ge=1, le=50)
    films: str | None = _option(
        None, "a folder of video files named by their ids; a toy corpus is drawn without it", "FOLDER"
    )


for _name, _module, _settings, _description in (
    ("trajectory", "reranker", TrajectorySettings, "Plot how a re-ranker orders the candidates of a query from noise"),
    ("scores", "scores", ScoresSettings, "Plot the scores of right and wrong pairs, in and out of domain"),
    ("attention", "reranker", AttentionSettings, "Plot how the texts of a video attend to its frames"),
    (
        "ratios",
        "scores",
        RatiosSettings,
        "Plot recall by the share of the video that the moment takes",
    ),
    ("frames", "embeddings", FramesSettings, "Plot the frames of a video by moment, before and after training"),
    ("hyperbolic", "hyperbolic", HyperbolicSettings, "Plot texts, videos, clips and frames in hyperbolic space"),
    ("registers", "embeddings", RegistersSettings, "Plot the registers of some videos along the reverse process"),
    ("examples", "examples", ExamplesSettings, "Plot the best videos for a query, with their moments and frames"),
):
    PLOTS.register(_name, f"prvr.plot.{_module}:draw_{_name}", _description, _settings)
