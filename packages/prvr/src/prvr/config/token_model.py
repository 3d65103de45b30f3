"""Configuration of a whole retriever of another kind: one of your own, or one that compares words with frames."""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from prvr.config.model import ModelConfig
from prvr.config.registry import Registry, named_parts, own_modules, registered
from prvr.config.strict import MANY, STRICT
from prvr.errors import InputError

__all__ = ["RETRIEVERS", "TOKEN_COMPAT", "AnyModelConfig", "RetrieverConfig", "TokenCompat", "TokenModelConfig"]

RETRIEVERS: Registry[Callable[..., Any]] = Registry("retriever")
"""Whole retrievers, by `model.kind`: a class that makes one of its settings, which are the configuration of the model.
One of your own is a `prvr.models.OwnRetriever` whose settings derive from `RetrieverConfig`."""

TOKEN_COMPAT: dict[str, Registry[Any]] = {name: Registry(f"compat.{name}") for name in ("alignment", "norms")}
"""Parts of which the released retriever has other ones, by the field of `TokenCompat` that names them.

alignment: a function as `prvr.scoring.token_alignment`. norms: what the norms of the temporal transformer add to the
variance, a number."""
TOKEN_COMPAT["alignment"].register("masked", "prvr.scoring:token_alignment", "Eq. 10 over valid words and frames.")
TOKEN_COMPAT["norms"].register("clip", 1e-5, "As the layers of CLIP that it starts from.")


@dataclass(frozen=True, config=STRICT)
class TokenCompat:
    """Where DiffusionRet's released retriever differs from its paper, which of the two is built."""

    alignment: Annotated[str, registered(TOKEN_COMPAT["alignment"])] = "masked"
    norms: Annotated[str, registered(TOKEN_COMPAT["norms"])] = "clip"


@dataclass(frozen=True, config=STRICT, kw_only=True)
class RetrieverConfig:
    """What every part of prvr reads of the configuration of a retriever; those of one of your own derive from it."""

    stream: ClassVar[None] = None
    kind: str
    """Its name in `RETRIEVERS`."""
    video_dim: int = Field(ge=0, le=MANY)
    """Width of frame features; 0 = that of the data."""
    query_dim: int = Field(ge=0, le=MANY)
    """Width of word features; 0 = that of the data."""
    hidden: int = Field(default=384, gt=0, le=65_536)
    """Width of the space in which queries are compared with videos."""
    max_frames: int = Field(default=128, gt=0, le=65_536)
    max_words: int = Field(default=30, gt=0, le=65_536)

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


@dataclass(frozen=True, config=STRICT, kw_only=True)
class TokenModelConfig(RetrieverConfig):
    """A retriever that keeps words and frames and compares each with each.

    It is a `prvr.models.TokenRetriever`, or with `clip` a `prvr.models.ClipRetriever`.
    """

    kind: Literal["tokens"]
    """Distinguishes it from a `ModelConfig`."""
    hidden: int = Field(default=512, gt=0, le=65_536)
    """Width d of words and frames where they are compared."""
    max_frames: int = Field(default=12, gt=0, le=65_536)
    max_words: int = Field(default=32, gt=0, le=65_536)
    heads: int = Field(default=8, gt=0, le=65_536)
    depth: int = Field(default=4, ge=0, le=256)
    """Layers of the temporal transformer."""
    word_depth: int = Field(default=0, ge=0, le=256)
    """Layers of the same kind over the words, after their projection. CLIP's words know of each other; vectors of
    single words do not, and a sentence of them is a bag of words without this."""
    frame_projection: Literal["none", "linear"] = "none"
    """linear: frame features pass a linear map to `hidden`; none: they are that wide."""
    word_projection: Literal["none", "linear"] = "linear"
    """As `frame_projection`, for words. CLIP's hidden states of words need it: it is CLIP's own text projection."""
    feature_length: float = Field(default=1.0, ge=1e-6, le=1e6)
    """Length that rows of frame features are given before the transformer. Stored ones have 1; CLIP's own, for which
    its layers were trained, about 10."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    sentence: Literal["weighted", "last"] = "weighted"
    """The one vector of a query, for what needs one (re-ranking, moments). weighted: unit words by their weights; last:
    its last valid word, in CLIP the end of the text, which has read all others. `max_words` must not cut it off."""
    init_from: str | None = None
    """A CLIP of transformers, by name or folder: before training, the first layers of its text encoder become those of
    the temporal transformer, its positions the frames', its text projection that of words."""
    clip: str | dict[str, Any] | None = None
    """A CLIP of transformers, by name or folder, that is trained along: frames are then the pictures that it reads,
    words its token numbers, as the encoder `pixels:CLIP` gives them. In the `config.json` of a saved retriever, the
    configuration of that CLIP instead of its name."""
    compat: TokenCompat = TokenCompat()

    @property
    def unit_rows(self) -> bool:
        """Whether rows of frames and words are scaled to unit length before it reads them; not those of a CLIP."""
        return self.clip is None

    @property
    def own_modules(self) -> list[str]:
        """The modules of others that registered its parts."""
        return own_modules(named_parts(TOKEN_COMPAT, self.compat).values())

    @model_validator(mode="after")
    def _consistent(self) -> "TokenModelConfig":
        if self.hidden % self.heads:
            raise InputError(f"hidden={self.hidden} must be a multiple of heads={self.heads}")
        with_clip = {"query_dim": 1, "word_depth": 0, "feature_length": 1.0, "init_from": None}
        with_clip |= {"frame_projection": "none", "word_projection": "none"}
        for key, value in with_clip.items():
            if self.clip is not None and getattr(self, key) != value:
                raise InputError(
                    f"{key}={getattr(self, key)!r}: with clip, frames are pictures and words token numbers, which the "
                    f"CLIP projects: set {key}={'null' if value is None else value}"
                )
        for key, width in (("frame", self.video_dim), ("word", self.query_dim)):
            if self.clip is None and getattr(self, f"{key}_projection") == "none" and width != self.hidden:
                name = "video_dim" if key == "frame" else "query_dim"
                raise InputError(
                    f"{key}_projection='none' needs {name}={self.hidden}, as wide as hidden, got {width}: set "
                    f"{key}_projection='linear'"
                )
        return self


RETRIEVERS.register("pooled", "prvr.models.retriever:Retriever", "One vector for a query.", ModelConfig)
RETRIEVERS.register("tokens", "prvr.models.token_retriever:TokenRetriever", "Words with frames.", TokenModelConfig)
AnyModelConfig = ModelConfig | RetrieverConfig
"""Configuration of a retriever of any kind."""
