"""Every kind of picture by name: its settings, its line of documentation, and the function that draws it.

The fields of the settings are the options of `prvr plot NAME` and the keys of a plot in a table of `prvr papers`.
Reading them imports no torch.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from prvr.config.registry import Registry
from prvr.config.strict import MANY, SEED, Count, Times, record

if TYPE_CHECKING:
    from matplotlib.figure import Figure


PLOTS: "Registry[Callable[..., Figure]]" = Registry("plot")
"""Every plot by name; a part takes a `prvr.plot.PlotInput` and its settings, and gives a figure."""


Seed = Annotated[int, Field(ge=0, le=SEED)]
Id = Annotated[str, Field(coerce_numbers_to_str=True)]
"""An id, or a number from 0."""


@record
class TrajectorySettings:
    """Which query is shown, and how its candidates are generated.

    Args:
        query: the id of a query of the split, or its number, from 0
        candidates: the number of candidates (default: that of the re-ranker)
        steps: the steps of the sampler (default: those of the re-ranker)
        panels: the number of noise levels that are drawn as bars
        seed: the seed of the noise (default: that of the stage)
    """

    query: Id = "0"
    candidates: Count | None = None
    steps: Times | None = None
    panels: Annotated[int, Field(ge=2, le=100)] = 6
    seed: Seed | None = None


@record
class ScoresSettings:
    """The corpora, and the histograms of their scores.

    Args:
        transfer: also use these corpora (ROOT/COLLECTION), on which the model was not trained
        bins: the bins of each histogram
    """

    transfer: tuple[str, ...] = ()
    bins: Annotated[int, Field(ge=1, le=10_000)] = 50


@record
class AttentionSettings:
    """Which video is shown.

    Args:
        video: the id of a video of the split, or its number, from 0
    """

    video: Id = "0"


@record
class FramesSettings:
    """Which video is shown.

    Args:
        video: the id of a video of the split, or its number, from 0
        seed: the seed of t-SNE and of the untrained weights
    """

    video: Id = "0"
    seed: Seed = 0


@record
class HyperbolicSettings:
    """Which points are shown.

    Args:
        points: the number of points
        seed: the seed of the sample
    """

    points: Annotated[int, Field(ge=8, le=MANY)] = 3000
    seed: Seed = 0


@record
class RegistersSettings:
    """Which videos and steps are shown.

    Args:
        videos: the number of videos, the first of the split
        panels: the number of steps, the first and the last among them
        seed: the seed of t-SNE
    """

    videos: Annotated[int, Field(ge=2, le=1000)] = 24
    panels: Annotated[int, Field(ge=2, le=20)] = 5
    seed: Seed = 0


@record
class ExamplesSettings:
    """Which query is shown, and where frames come from.

    Args:
        query: the id of a query of the split, or its number, from 0
        top: the number of videos
        files: a folder of video files named by their ids; not needed for a toy corpus
    """

    query: Id = "0"
    top: Annotated[int, Field(ge=1, le=50)] = 5
    files: str | None = None


for _name, _module, _settings, _description in (
    ("trajectory", "reranker", TrajectorySettings, "Plot how a re-ranker orders the candidates of a query from noise"),
    ("scores", "scores", ScoresSettings, "Plot the scores of right and wrong pairs, in and out of domain"),
    ("attention", "reranker", AttentionSettings, "Plot how the texts of a video attend to its frames"),
    ("frames", "embeddings", FramesSettings, "Plot the frames of a video by moment, before and after training"),
    ("hyperbolic", "hyperbolic", HyperbolicSettings, "Plot texts, videos, clips and frames in hyperbolic space"),
    ("registers", "embeddings", RegistersSettings, "Plot the registers of some videos along the reverse process"),
    ("examples", "examples", ExamplesSettings, "Plot the best videos for a query, with their moments and frames"),
):
    PLOTS.register(_name, f"prvr.plot.{_module}:draw_{_name}", _description, _settings)
