"""What a whole retriever of one's own derives from, see `prvr.config.RETRIEVERS`."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from jaxtyping import Bool, Float
from torch import Tensor

from prvr.config import RETRIEVERS, validated
from prvr.models.pretrained import PretrainedModel
from prvr.types import Batch, RetrieverOutput, Scores, Texts, VideoEmbedding

_Model = TypeVar("_Model", bound="OwnRetriever")


@dataclass(frozen=True)
class Indexed:
    """What an index of `prvr search` needs of a retriever.

    Its score is `clip_weight` max cos(q, clips) + `frame_weight` max cos(q, frames) of the one vector of a query
    (`prvr.types.query_vectors`); or, with `whole`, this sum finds 200 videos, which `score` orders.

    Args:
        clips: how many clips each video has; 0: none, and means of its frames find candidates.
        frames: whether it has frames, one for each that was sampled, in order of time.
        clip_weight, frame_weight: the weights; of a retriever without clips, `clip_weight` is that of the means.
        whole: whether `score` and `moments` are asked for the best videos. They see clips, frames and `clip_spans`.
        spans: whether clips say which part of the video they are (`clip_spans`).
    """

    clips: int = 0
    frames: bool = True
    clip_weight: float = 0.0
    frame_weight: float = 1.0
    whole: bool = False
    spans: bool = False


class OwnRetriever(PretrainedModel, ABC):
    """A retriever that is trained, resumed, evaluated and saved as those of prvr.

    It encodes texts, encodes videos, and scores each of the one with each of the other; all else has a default. A
    `prvr.types.TextEmbedding` keeps the words of queries, for a score that reads them.

    Args:
        config: its settings, which are `model` of a configuration.

    Attributes:
        backbone: a pretrained part, which is trained at `optim.backbone_lr`; None without one.
        indexed: how `prvr search` finds videos with it; None: it does not.
    """

    indexed: Indexed | None = None

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config, self.registers = config, None
        self.backbone: Any = None

    @abstractmethod
    def encode_text(self, words: Float[Tensor, "q w e"], word_mask: Bool[Tensor, "q w"]) -> Texts:
        """Words and their mask, True = valid, to `(q, d)` or a `TextEmbedding`."""

    @abstractmethod
    def encode_video(
        self, clips: Float[Tensor, "v c f"], frames: Float[Tensor, "v l f"], frame_mask: Bool[Tensor, "v l"]
    ) -> VideoEmbedding:
        """Clips, `config.num_clips` of them, frames and their mask to embeddings; either may be left out."""

    @abstractmethod
    def score(self, text: Any, video: VideoEmbedding) -> Scores:
        """`Scores.total` of every query with every video, `(q, v)`, and what the losses of `config.provides` read."""

    def load_backbone(self) -> None:
        """Loads pretrained weights into a new retriever; a saved one has its own."""

    @classmethod
    def from_config_file(cls: type[_Model], values: Mapping[str, Any]) -> _Model:
        """A new retriever as `config.json` describes it."""
        return cls(validated(RETRIEVERS[str(values.get("kind"))].settings, values, "model configuration"))

    def for_scoring(self, video: VideoEmbedding) -> VideoEmbedding:
        """The same videos; a retriever whose score scales rows may do so here, once."""
        return video

    def forward(self, batch: Batch) -> RetrieverOutput:
        """Encode a batch and score every query with every video in it."""
        return self.output(*self.encode(batch))

    def encode(self, batch: Batch) -> tuple[Texts, VideoEmbedding, None]:
        """Queries and videos of a batch; there are no registers."""
        text = self.encode_text(batch.words, batch.word_mask)
        return text, self.encode_video(batch.clips, batch.frames, batch.frame_mask), None

    def output(self, text: Texts, video: VideoEmbedding, registers: None = None) -> RetrieverOutput:
        """The input of the losses, from encoded queries and videos."""
        return RetrieverOutput(text, video, self.score(text, video))
