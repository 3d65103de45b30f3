"""A second retriever as a stage, for example one that compares every word with every frame."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from prvr.config import load_config
from prvr.config.strict import MANY, STRICT
from prvr.data.packed import PackedSplit
from prvr.data.packing import repack
from prvr.models import AnyRetriever, load_pretrained
from prvr.models.pretrained import model_files
from prvr.stages.matrix import ScoreMatrix
from prvr.stages.stage import STAGES, Encode, Rescore, Stage, add_scores
from prvr.types import Direction


@dataclass(frozen=True, config=STRICT)
class RetrieverSettings:
    """The use of the scores of a second retriever."""

    top_k: Annotated[int, Field(ge=1, le=MANY)] | Literal["all"] = 50
    """The number of candidates of each row that are re-scored, or all."""
    weight: float = Field(default=1.0, ge=0, le=1e6)
    """The weight of the new scores."""
    combine: Literal["add", "replace"] = "add"
    """add: the score so far plus `weight` times the new one; replace: the new one alone."""
    keep_last_frame: bool = True
    """The sampling of frames: `data.keep_last_frame` of the run that trained the retriever."""


class RetrieverStage(Stage):
    """Adds the scores of a second retriever.

    Args:
        encoder: the trained retriever, which encodes texts and videos itself.
        settings: the use of its scores.
    """

    kind = "retriever"
    trained = True

    def __init__(self, encoder: AnyRetriever, settings: RetrieverSettings | None = None) -> None:
        self.retriever = self.encoder = encoder
        self.settings = settings or RetrieverSettings()
        self.top_k = None if self.settings.top_k == "all" else self.settings.top_k

    def open_split(self, split: PackedSplit) -> PackedSplit:
        """The same videos and queries, sampled for this retriever."""
        return repack(split, self.retriever.config, self.settings.keep_last_frame)

    def bind(self, direction: Direction, matrix: ScoreMatrix, prepared: None) -> Rescore:
        """The function that adds or inserts the scores of this retriever."""
        return add_scores(matrix, direction, self.settings.weight, replace=self.settings.combine == "replace")

    def save(self, folder: Path) -> None:
        """Writes the retriever with its `save_pretrained`."""
        self.retriever.save_pretrained(folder)

    @classmethod
    def load(cls, settings: RetrieverSettings, folder: Path | None, encode: Encode | None) -> "RetrieverStage":
        """A stage with the retriever of a run, or of a folder of `save_pretrained`.

        Raises:
            DataError: the folder is neither, or its files are damaged.
        """
        assert folder is not None
        weights, file = model_files(folder)
        if file is not None:
            settings = replace(settings, keep_last_frame=load_config(str(file)).data.keep_last_frame)
        return cls(load_pretrained(weights).eval(), settings)


STAGES.register("retriever", RetrieverStage, "Adds the score of a second retriever.", RetrieverSettings)
