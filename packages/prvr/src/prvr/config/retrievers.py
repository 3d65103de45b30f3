"""Configuration of a retriever of any kind: a member of the family, or one of another kind."""

from typing import ClassVar

from pydantic.dataclasses import dataclass

from prvr.config.model import ModelConfig
from prvr.config.registry import Makers, own_modules
from prvr.config.strict import STRICT, Size, Width

RETRIEVERS = Makers("retriever")
"""Whole retrievers, by `model.kind`: a class that makes one of its settings, which are the configuration of the model.
One of your own is a `prvr.models.OwnRetriever` whose settings derive from `RetrieverConfig`."""


@dataclass(frozen=True, config=STRICT, kw_only=True)
class RetrieverConfig:
    """What every part of prvr reads of the configuration of a retriever; those of one of your own derive from it."""

    stream: ClassVar[None] = None
    kind: str
    """Its name in `RETRIEVERS`."""
    video_dim: Width
    """Width of frame features; 0 = that of the data."""
    query_dim: Width
    """Width of word features; 0 = that of the data."""
    hidden: Size = 384
    """Width of the space in which queries are compared with videos."""
    max_frames: Size = 128
    max_words: Size = 30

    @property
    def unit_rows(self) -> bool:
        """Whether rows of frames and words are scaled to unit length before it reads them."""
        return True

    @property
    def stored_words(self) -> bool:
        """Whether it reads words as they are stored: token numbers."""
        return not self.unit_rows

    @property
    def frame_lengths(self) -> bool:
        """Whether it reads frames as long as they are stored, and scales them itself."""
        return False

    @property
    def width(self) -> int:
        """Width of the space in which queries are compared with videos."""
        return self.hidden

    @property
    def num_clips(self) -> int:
        """Clips that are packed beside the frames, at least one; a field of this name sets it."""
        return 1

    @property
    def provides(self) -> frozenset[str]:
        """What losses may ask of this model, see `prvr.config.LOSSES`: by default nothing but total scores."""
        return frozenset()

    @property
    def own_modules(self) -> list[str]:
        """The modules of others that registered its parts."""
        return own_modules([RETRIEVERS[self.kind]])


RETRIEVERS.register("pooled", "prvr.models.retriever:Retriever", "One vector for a query.", ModelConfig)
AnyModelConfig = ModelConfig | RetrieverConfig
"""Configuration of a retriever of any kind."""
