"""The contract of a stage, which re-scores a ranking, and the registry of the kinds of stages."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from prvr.config.registry import Registry
from prvr.data.packed import PackedSplit
from prvr.stages.matrix import EncodedSplit, ScoreMatrix
from prvr.types import Direction, FirstStage, MomentSpans, TextVideoEncoder, VideoEmbedding

Rescore = Callable[[Float[Tensor, "r k"], slice, Int[Tensor, "r k"] | None], Float[Tensor, "r k"]]
"""`(scores, rows, columns) -> new scores`, higher is better: the scores so far of the rows `rows` with the columns
`columns`, best first; `columns` is None for every column, in order."""

BOTH: frozenset[Direction] = frozenset(["t2v", "v2t"])


@runtime_checkable
class SplitInputs(Protocol):
    """The videos and queries of a split as an encoder reads them; a `prvr.data.PackedSplit` is one."""

    def video_batches(self, size: int, /) -> Iterator[tuple[Tensor, ...]]:
        """All videos in order, `size` at a time: what `encode_video` takes, and their numbers."""
        ...

    def query_batches(self, size: int, /) -> Iterator[tuple[Tensor, ...]]:
        """All queries in order, `size` at a time."""
        ...


class Stage(ABC):
    """Re-scores a ranking: every column of a score matrix, or the best columns of each row.

    Rows are texts in direction "t2v" and videos in "v2t"; columns are the gallery, see `ScoreMatrix`. A new stage
    declares `kind` and implements `bind`; everything else has a default. Register it with `STAGES.register`.

    Args:
        settings: a frozen dataclass that JSON can hold; None for a stage without settings.

    Attributes:
        kind: the name of the stage in `STAGES`.
        top_k: the number of best columns that are re-scored; None for every column.
        directions: the directions that are re-scored; the other one keeps its order.
        encoder: the model that encodes texts and videos for this stage; None for the first stage.
        reads_first_scores: whether the scores so far must be those of the first stage: it must be the first of all
            stages.
        trained: whether the stage is made from a run of `prvr train`.
    """

    kind: ClassVar[str]
    reads_first_scores: ClassVar[bool] = False
    trained: ClassVar[bool] = False
    top_k: int | None = None
    directions: frozenset[Direction] = BOTH
    encoder: TextVideoEncoder | None = None

    def __init__(self, settings: Any = None) -> None:
        self.settings = settings

    @abstractmethod
    def bind(self, direction: Direction, matrix: ScoreMatrix, prepared: Any) -> Rescore:
        """The function that re-scores rows of a ranking.

        Args:
            direction: one of `directions`.
            matrix: scores and embeddings of `encoder`, or of the first stage; knows the ids of columns.
            prepared: the result of `prepare`.
        """

    def moments(self, text: Any, video: VideoEmbedding) -> MomentSpans:
        """Moments of one video as `encoder` embeds it, see `prvr.types.GivesMoments`; by default, None."""
        return None

    def check(self, first: FirstStage) -> None:  # noqa: B027
        """Raises InputError for a first stage that this stage cannot follow; by default, any first stage fits."""

    def open_split(self, split: PackedSplit) -> SplitInputs:
        """The videos and queries of a split as `encoder` reads them; by default, the split itself."""
        return split

    def prepare(self, direction: Direction, score: Callable[[Any], Float[Tensor, "b n"]]) -> Any:
        """Statistics of the whole gallery, computed once before any row is re-scored; by default, None.

        Args:
            direction: one of `directions`.
            score: scores `(b, n)` of the first stage for b other texts with all videos ("t2v"), or for b other videos
                with all texts ("v2t"), from their embeddings.
        """
        return None

    def save(self, folder: Path) -> None:  # noqa: B027
        """Writes weights and data into an empty folder; by default, nothing. The settings are saved elsewhere."""

    @classmethod
    def load(cls, settings: Any, folder: Path | None, encode: "Encode | None") -> "Stage":
        """A stage from its settings and files; by default, from its settings alone.

        Args:
            settings: the settings of the stage.
            folder: the files that `save` wrote, or the run of a `trained` stage; None for a new stage.
            encode: the embeddings of a split of the first stage's data by its name; None where `folder` holds all.

        Raises:
            DataError: the files are missing or damaged.
        """
        return cls(settings)


Encode = Callable[[str], EncodedSplit]
"""The embeddings of a split of the first stage's data, by the name of the split."""

STAGES: Registry[type[Stage]] = Registry("stage")
"""Every kind of stage: its class, its settings and its line of documentation."""


def add_scores(matrix: ScoreMatrix, direction: Direction, weight: float, *, replace: bool = False) -> Rescore:
    """Adds `weight` times the scores of a matrix to the scores so far.

    Args:
        matrix: the other scores.
        direction: the direction of the ranking.
        weight: their weight.
        replace: use the other scores alone.
    """

    def rescore(scores: Tensor, rows: slice, columns: Tensor | None) -> Tensor:
        if columns is None or columns.shape[1] == matrix.shape(direction)[1]:
            other = matrix.rows(direction, rows)
            other = other if columns is None else other.gather(1, columns)
        else:
            other = matrix.pairs(direction, rows, columns)
        return weight * other.to(scores) + (0 if replace else scores)

    return rescore
