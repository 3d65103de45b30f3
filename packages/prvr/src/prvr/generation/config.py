"""What can be chosen of a re-ranker's training, as frozen dataclasses."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from prvr.config import OptimConfig, validated
from prvr.config.strict import LARGE, MANY, SEED, STRICT
from prvr.errors import InputError
from prvr.stages import Direction, RerankerConfig

__all__ = ["CandidatesConfig", "CourseConfig", "GenerationConfig", "generation_config"]


@dataclass(frozen=True, config=STRICT)
class CandidatesConfig:
    """Which candidates a row of a training step has: the right one and hard wrong ones."""

    num: int = Field(default=32, ge=2, le=MANY)
    """Candidates of a row, the right one among them."""
    pool: int = Field(default=64, ge=1, le=MANY)
    """The wrong ones are drawn anew in each step from this many that the retriever scores highest; capped by what the
    split has."""
    learn_from: Literal["train", "selection"] = "train"
    """train: the retriever's own training split, whose queries it ranks better than new ones; selection: one half of
    the videos that select, which it has not learned from, while the other half goes on selecting."""
    dropout_views: int = Field(default=0, ge=0, le=1024)
    """Encode what is learned from this many times with the retriever's dropout on, and use one of them in each step:
    candidates are then ranked more as those of new queries are. 0 = once, without dropout."""


@dataclass(frozen=True, config=STRICT)
class CourseConfig:
    """How long, how much at a time, and from where."""

    epochs: int = Field(default=20, ge=1, le=LARGE)
    batch_size: int = Field(default=128, ge=1, le=MANY)
    """Queries per step, each with its candidates, in each direction."""
    patience: int = Field(default=5, ge=1, le=LARGE)
    """Stop after more than this many epochs in a row in which no direction got better on the split that selects."""
    seed: int = Field(default=0, ge=0, le=SEED)
    start: Literal["identity", "random"] = "identity"
    """identity: W_q, W_k and W_v start as the identity, so that the attention starts as the retriever's own product of
    query and candidate; random: as torch initialises linear maps."""
    weights: tuple[Annotated[float, Field(ge=0, le=1e6)], ...] = Field(
        default=(0.01, 0.03, 0.1, 0.3, 1.0), max_length=1000
    )
    """The split that selects chooses the weight of the probability from these; empty = `reranker.weight` stays."""
    cache_mib: int = Field(default=1024, ge=0, le=LARGE)
    """Pooled queries and candidates are kept in memory up to this size, else pooled anew in each step."""
    eval_queries: int = Field(default=256, ge=1, le=MANY)
    """Rows that are re-ranked at a time."""


@dataclass(frozen=True, config=STRICT)
class GenerationConfig:
    """A run of stage 2: `prvr train --stage generation`."""

    reranker: RerankerConfig
    retriever: str | None = None
    """Folder of the frozen retriever's run."""
    name: str = "reranker"
    strategy: Literal["hybrid", "generative", "discriminative"] = "hybrid"
    """Table 3d. hybrid: the retriever's discriminative score plus the generated probability, as in the paper;
    generative: the generator alone orders the candidates; discriminative: no diffusion, the same network learns
    p(candidate | query) by cross-entropy in one step and its probability is added: the control."""
    directions: tuple[Direction, ...] = Field(default=("t2v", "v2t"), min_length=1)
    candidates: CandidatesConfig = CandidatesConfig()
    course: CourseConfig = CourseConfig()
    optim: OptimConfig = OptimConfig(lr=1e-3, weight_decay=0.0, warmup=0.05)

    @model_validator(mode="after")
    def _consistent(self) -> "GenerationConfig":
        if len(set(self.directions)) != len(self.directions):
            raise InputError(f"directions={self.directions}: each once")
        if self.optim.decay == "released":
            raise InputError("optim.decay='released' goes by names of released retrievers: use 'matrices'")
        return self

    @property
    def network(self) -> RerankerConfig:
        """The re-ranker's configuration under this strategy."""
        if self.strategy == "discriminative":
            return replace(self.reranker, process="one_step", sampling_steps=None)
        return replace(self.reranker, combine="alone") if self.strategy == "generative" else self.reranker


def generation_config(
    values: Mapping[str, Any] | None = None, *, width: int | None = None, source: str = "configuration of stage 2"
) -> GenerationConfig:
    """A validated configuration from nested dictionaries.

    Args:
        values: keys that differ from the defaults.
        width: of the retriever's embeddings, where `reranker.width` is not given; None = it must be.
        source: for messages.

    Raises:
        prvr.ConfigError: an unknown key, a wrong type or a value out of range; the message names each.

    Example:
        >>> generation_config({"reranker": {"steps": 10}}, width=64).network.steps
        10
    """
    given = dict(values or {})
    reranker = given.get("reranker", {})
    known = {} if width is None else {"width": width}
    given["reranker"] = known | dict(reranker) if isinstance(reranker, Mapping) else reranker
    return validated(GenerationConfig, given, source)
