"""Configuration of DiffusionRet's first stage, a retriever that compares words with frames."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from prvr.config import RETRIEVERS, STRICT, Registry, RetrieverConfig, own_modules
from prvr.config.registry import named_parts, registered
from prvr.config.strict import Factor, Rate, Size, record
from prvr.errors import InputError

TOKEN_COMPAT: dict[str, Registry[Any]] = {name: Registry(f"compat.{name}") for name in ("alignment", "norms")}
"""Parts of which the released retriever has other ones, by the field of `TokenCompat` that names them.

alignment: a function as `token_alignment`. norms: what the norms of the temporal transformer add to the
variance, a number."""
TOKEN_COMPAT["alignment"].register(
    "masked", "prvr.published.diffusionret.token_retriever:token_alignment", "Eq. 10 over valid words and frames."
)
TOKEN_COMPAT["alignment"].register(
    "released",
    "prvr.published.diffusionret.released:released_token_alignment",
    "Padded words and frames take part in the maxima of eq. 10, with a cosine of 0.",
)
TOKEN_COMPAT["norms"].register("clip", 1e-5, "As the layers of CLIP that it starts from.")
TOKEN_COMPAT["norms"].register("released", 1e-12, "As in the released code.")


@record
class TokenCompat:
    """Where DiffusionRet's released retriever differs from its paper, which of the two is built."""

    alignment: Annotated[str, registered(TOKEN_COMPAT["alignment"])] = "masked"
    norms: Annotated[str, registered(TOKEN_COMPAT["norms"])] = "clip"


@dataclass(frozen=True, config=STRICT, kw_only=True)
class TokenModelConfig(RetrieverConfig):
    """A retriever that keeps words and frames and compares each with each.

    It is a `prvr.TokenRetriever`, or with `clip` a `ClipRetriever`.
    """

    kind: Literal["tokens"]
    """Distinguishes it from a `ModelConfig`."""
    hidden: Size = 512
    """Width d of words and frames where they are compared."""
    max_frames: Size = 12
    max_words: Size = 32
    heads: Size = 8
    depth: int = Field(default=4, ge=0, le=256)
    """Layers of the temporal transformer."""
    word_depth: int = Field(default=0, ge=0, le=256)
    """Layers of the same kind over the words, after their projection. CLIP's words know of each other; vectors of
    single words do not, and a sentence of them is a bag of words without this."""
    frame_projection: Literal["none", "linear"] = "none"
    """linear: frame features pass a linear map to `hidden`; none: they are that wide."""
    word_projection: Literal["none", "linear"] = "linear"
    """As `frame_projection`, for words. CLIP's hidden states of words need it: it is CLIP's own text projection."""
    feature_length: Factor = 1.0
    """Length that rows of frame features are given before the transformer. Stored ones have 1; CLIP's own, for which
    its layers were trained, about 10."""
    dropout: Rate = 0.0
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
        with_clip = {
            "query_dim": 1,
            "word_depth": 0,
            "feature_length": 1.0,
            "init_from": None,
            "frame_projection": "none",
            "word_projection": "none",
        }
        for key, value in with_clip.items():
            if self.clip is not None and getattr(self, key) != value:
                raise InputError(
                    f"{key}={getattr(self, key)!r}: with clip, frames are pictures and words token numbers, which the "
                    f"CLIP projects: set {key}={'null' if value is None else value}"
                )
        for key, name in (("frame", "video_dim"), ("word", "query_dim")):
            width = getattr(self, name)
            if self.clip is None and getattr(self, f"{key}_projection") == "none" and width != self.hidden:
                raise InputError(
                    f"{key}_projection='none' needs {name}={self.hidden}, as wide as hidden, got {width}: set "
                    f"{key}_projection='linear'"
                )
        return self


RETRIEVERS.register(
    "tokens", "prvr.published.diffusionret.clip_retriever:TOKENS", "Words with frames.", TokenModelConfig
)
