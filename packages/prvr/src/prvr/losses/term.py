"""What a loss term receives, and its base class; see `prvr.config.LOSSES` for the registered ones."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from prvr.config import AnyModelConfig
from prvr.errors import InputError
from prvr.types import Labels, MomentSpans, RetrieverOutput, VideoEmbedding, query_vectors
from regdiff.registers import RegisterGenerator

S = TypeVar("S")
Negatives = Literal["random", "hard", "hardest"]
Scalar = Float[Tensor, ""]


@dataclass(frozen=True)
class LossInputs:
    """The arguments of one call of the objective, as each term receives them; see `prvr.objective.Objective`.

    Args:
        output: embeddings of the q queries and v videos of the batch, and their scores.
        labels: which videos answer which queries; ids, texts and moments of queries.
        negatives: how triplet terms choose wrong videos: "random", "hard" or "hardest".
        register_targets: targets of the registers; None: the perturbed mean of the queries of each video.
        warm_up: the run is in its first epochs, `train.warm_up_epochs`.
        generator: source of all draws; None: torch's own.
        register_generator: that of the retriever.
        noise: standard normal numbers in place of draws.
        epoch: of the run, from 0.
    """

    output: RetrieverOutput
    labels: Labels
    negatives: Negatives = "random"
    register_targets: Float[Tensor, "v n d"] | None = None
    warm_up: bool = False
    generator: torch.Generator | None = None
    register_generator: RegisterGenerator | None = None
    noise: Float[Tensor, "2 v n d"] | None = None
    epoch: int = 0

    @cached_property
    def text(self) -> Float[Tensor, "q d"]:
        """`(q, d)`: one vector per query."""
        return query_vectors(self.output.text)

    @property
    def words(self) -> tuple[Float[Tensor, "q w e"], Bool[Tensor, "q w"]]:
        """The features of the words of each query, and their mask.

        Raises:
            InputError: the labels are without them, as where several processes train.
        """
        if self.labels.words is None or self.labels.word_mask is None:
            raise InputError(
                "this loss needs the words of every query of a batch, which labels gathered from several processes "
                "lack: train with one process, or set its weight to 0"
            )
        return self.labels.words, self.labels.word_mask

    @property
    def last_words(self) -> Float[Tensor, "q e"]:
        """`(q, e)`: the features of the last word of each query, which stands for the sentence in features of CLIP."""
        words, mask = self.words
        return words[torch.arange(len(words), device=words.device), mask.sum(1) - 1]


class Term(nn.Module, ABC, Generic[S]):
    """A loss term before it is weighted.

    Args:
        settings: its own settings.
        model: configuration of the retriever that is trained.

    Attributes:
        is_moment_head: whether it is trained, saved and loaded with the retriever, whose moments are then those that
            it gives; else training alone needs its parameters.
    """

    is_moment_head: ClassVar[bool] = False

    def __init__(self, settings: S, model: AnyModelConfig) -> None:
        super().__init__()
        self.settings = settings

    def moments(self, text: Any, video: VideoEmbedding) -> MomentSpans:
        """Moments of one video for every query, of a moment head: see `prvr.types.GivesMoments`."""
        return None

    @abstractmethod
    def forward(self, inputs: LossInputs) -> Scalar | dict[str, Tensor]:
        """The unweighted loss of one step; of several parts, each by its name."""
