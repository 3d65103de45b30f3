"""The configuration of a re-ranker and of a run that trains some, and their model card."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from prvr.config import OptimConfig, TrainerConfig, config_to_dict, preset_names, read_values, read_yaml_file, validated
from prvr.config.registry import Registry, named_parts, registered
from prvr.config.strict import MANY, Count, Factor, Size, Steps, Times, Weight, record
from prvr.errors import InputError
from prvr.models.pretrained import CARD_HEAD
from prvr.stages import Direction

COMPAT: dict[str, Registry[Any]] = {name: Registry(f"compat.{name}") for name in ("pooling", "decoder", "output")}
"""Parts of which the released re-ranker has other ones, by the field of `RerankerCompat` that names them.

pooling: `(temperature)` makes a module as `TextFrameAttention` of `network`. decoder: `(width, steps)` makes a
`CandidateDenoiser`. output: `(config)` makes an `Output` of `network`."""


def _distribution(config: "RerankerConfig") -> Iterator[str]:
    if config.negative:
        yield f"negative={config.negative} needs compat.output='released', or set negative=0"


COMPAT["pooling"].register(
    "masked", "prvr.published.diffusionret.network:TextFrameAttention", "Padded frames have no weight (eq. 4)."
)
COMPAT["decoder"].register("paper", "prvr.published.diffusionret.network:CandidateDenoiser", "Eq. 6.")
COMPAT["output"].register(
    "distribution",
    "prvr.published.diffusionret.network:distribution",
    "The prediction of x_0 is the softmax of the decoder's output, a distribution over the candidates as x_0 is.",
    check=_distribution,
)
COMPAT["pooling"].register(
    "released",
    "prvr.published.diffusionret.released:ReleasedTextFrameAttention",
    "Padded frames take part in the softmax of eq. 4 and are then set to zero: weights add up to less than one.",
)
COMPAT["decoder"].register(
    "released",
    "prvr.published.diffusionret.released:released_denoiser",
    "One more linear map after the attention, and the attention weights added to the output: neither is in eq. 6.",
)
COMPAT["output"].register(
    "released",
    "prvr.published.diffusionret.released:released_scores",
    "The prediction of x_0 has no bounds; the softmax is in the loss, and again in the combined score.",
)


@record
class RerankerCompat:
    """Choices between DiffusionRet's released code and its paper, where they differ.

    Defaults are correct. Each value is the name of a part in `COMPAT`.
    """

    pooling: Annotated[str, registered(COMPAT["pooling"])] = "masked"
    decoder: Annotated[str, registered(COMPAT["decoder"])] = "paper"
    output: Annotated[str, registered(COMPAT["output"])] = "distribution"


@record
class RerankerConfig:
    """A `CandidateReranker`: its network, its diffusion, and the combination with the retriever's score."""

    width: Size
    """Width d of the text and frame embeddings."""
    steps: Steps = 50
    """K, the number of trained diffusion steps."""
    sampling_steps: Steps | None = None
    """The number of steps in sampling, at most `steps`; None for all."""
    spacing: Literal["trailing", "linspace", "leading"] = "trailing"
    """The steps that are taken, if fewer than trained. trailing: evenly spaced, starting at the noisiest; linspace
    (released): evenly spaced from the noisiest to the cleanest, a single step at the cleanest; leading: every
    (K / steps)-th, starting at the cleanest and without the noisiest."""
    schedule: Literal["cosine", "linear"] = "cosine"
    """Schedule of the noise."""
    beta_scale: Factor = 1.0
    """A factor of every beta; the product is capped at 0.999 (table 3f of the paper)."""
    sampler: Literal["ddim", "ddpm"] = "ddim"
    """ddim: only the start is random; ddpm: each step adds noise."""
    process: Literal["diffusion", "one_step"] = "diffusion"
    """one_step: the control, the same network called once, at x = 0 and step 0, in training too."""
    loss: Literal["kl", "mse"] = "kl"
    """Loss between the predicted distribution over candidates and the right one."""
    attention_temperature: Factor = 1.0
    """tau' of eq. 4. Embeddings of unit length need a smaller one, about 0.1: their products lie in [-1, 1]."""
    loss_temperature: Factor = 1.0
    """A factor of the decoder's output before its softmax (released: 100)."""
    negative: Literal[0, -1] = 0
    """x_0 of a wrong candidate. -1 needs `compat.output='released'`: a distribution has no negative values."""
    candidates: Count = 32
    """The number of candidates; a smaller gallery is re-ranked as a whole."""
    weight: Weight = 1.0
    """The weight of the generated probability."""
    combine: Literal["add", "alone"] = "add"
    """add: the score plus `weight` times the probability; alone: candidates are ordered by the probability alone, ahead
    of all others."""
    score_temperature: Factor = 1.0
    """With `compat.output='released'`: a factor of x_0 before the softmax of the combined score."""
    trained_on: str | None = None
    """The `fingerprint` of the retriever whose embeddings it was trained on."""
    compat: RerankerCompat = RerankerCompat()

    @model_validator(mode="after")
    def _consistent(self) -> "RerankerConfig":
        if self.sampling_steps is not None and self.sampling_steps > self.steps:
            raise InputError(
                f"sampling_steps={self.sampling_steps} is larger than steps={self.steps}: only trained steps can be "
                "sampled; use fewer steps, or train with more"
            )
        for entry in named_parts(COMPAT, self.compat).values():
            for problem in entry.problems(self):
                raise InputError(problem)
        if self.process == "one_step" and self.sampling_steps not in (None, 1):
            raise InputError(f"sampling_steps={self.sampling_steps} needs process='diffusion', not 'one_step'")
        return self


@record
class CandidatesConfig:
    """The candidates of a row of a training step: the right one and hard wrong ones."""

    num: int = Field(default=32, ge=2, le=MANY)
    """Candidates of a row, the right one among them."""
    pool: Count | Literal["batch"] = 64
    """The wrong ones are drawn in each step from this many that the retriever scores highest; capped by what the
    split has. batch: they are the right ones of the other rows of the step, whatever their scores, as in DiffusionRet's
    released code."""


@record
class RerankerTrainConfig(TrainerConfig):
    """The training of re-rankers: how long, how much at a time, and where it starts.

    With `precision="bf16"` candidates are pooled under autocast; a `CandidateReranker` computes in float32 in any case.
    """

    epochs: Times = 20
    patience: Times = 5
    """Stop after more than this many epochs in a row in which no direction got better on the split that selects."""
    batch_size: Count = 128
    """Queries per step, of all processes together, each with its candidates, in each direction."""
    start: Literal["identity", "random", "normal"] = "identity"
    """identity: W_q, W_k and W_v start as the identity, so that the attention starts as the retriever's own product of
    query and candidate; random: as torch initialises linear maps; normal: all maps N(0, 0.02) with biases of 0, as in
    DiffusionRet's released code."""
    weights: tuple[Weight, ...] = Field(default=(0.01, 0.03, 0.1, 0.3, 1.0), max_length=1000)
    """The split that selects chooses the weight of the probability from these; empty = `reranker.weight` stays."""


@record
class RerankerRunConfig:
    """A run that trains re-rankers over a frozen retriever: `prvr train --retriever RUN`."""

    reranker: RerankerConfig
    retriever: str | None = None
    """Folder of the frozen retriever's run."""
    name: str = "reranker"
    strategy: Literal["hybrid", "generative", "discriminative"] = "hybrid"
    """hybrid: the retriever's discriminative score plus the generated probability, as in the paper; generative: the
    generator alone orders the candidates, which the retriever chooses (docs/pipelines.md: what of table 3d this is);
    discriminative: no diffusion, the same network learns p(candidate | query) by cross-entropy in one step and its
    probability is added: the control."""
    directions: tuple[Direction, ...] = Field(default=("t2v", "v2t"), min_length=1)
    candidates: CandidatesConfig = CandidatesConfig()
    train: RerankerTrainConfig = RerankerTrainConfig()
    optim: OptimConfig = OptimConfig(lr=1e-3, weight_decay=0.0, warmup=0.05)

    @model_validator(mode="after")
    def _consistent(self) -> "RerankerRunConfig":
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


def reranker_run_config(
    values: Mapping[str, Any] | None = None, *, width: int | None = None, source: str = "configuration of a re-ranker"
) -> RerankerRunConfig:
    """A validated configuration from nested dictionaries.

    Args:
        values: keys that differ from the defaults.
        width: the width of the retriever's embeddings, where `reranker.width` is not given; None = it must be.
        source: for messages.

    Raises:
        prvr.ConfigError: an unknown key, a wrong type or a value out of range; the message names each.

    Examples:
        >>> reranker_run_config({"reranker": {"steps": 10}}, width=64).network.steps
        10
    """
    values = {"reranker": {}, **(values or {})}
    if isinstance(values["reranker"], Mapping) and width is not None:
        values["reranker"] = {"width": width, **values["reranker"]}
    return validated(RerankerRunConfig, values, source)


def read_reranker_config(name_or_path: Path | str, width: int | None = None) -> RerankerRunConfig:
    """The configuration of a run, a preset, or one of your own.

    Args:
        name_or_path: the path of a file, which may name a `base`, or one of `prvr.preset_names("rerankers")`.
        width: the width of the retriever's embeddings, for a file without `reranker.width`.

    Raises:
        prvr.ConfigError: no such file or preset, not YAML, a bad key or value, or no width.

    Examples:
        >>> read_reranker_config("diffusionret-stage2-released", width=512).reranker.loss_temperature
        100.0
    """
    source, values = read_values(name_or_path)
    return reranker_run_config(values, width=width, source=source)


def resolved_preset(name: str) -> dict[str, Any] | None:
    """Every key of a preset of re-rankers but the width, which its retriever has; None for another preset."""
    if name not in preset_names("rerankers"):
        return None
    values = config_to_dict(read_reranker_config(name, width=1))
    del values["reranker"]["width"]
    return values


def retriever_of_run(folder: Path) -> tuple[str, dict[str, Any]] | None:
    """The run of the retriever under the re-rankers of a run, and the stage that they are; None for another folder."""
    file = folder / "config.yaml"
    if not file.is_file() or "reranker" not in read_yaml_file(file):
        return None
    base = read_reranker_config(file).retriever
    if base is None:
        raise InputError(f"{file}: the key retriever is missing: name the retriever of this run")
    return base, {"kind": "diffusion", "run": folder.resolve()}


def reranker_card(config: RerankerRunConfig, best: Mapping[str, Mapping[str, Any]], split: str) -> str:
    """The model card of the re-rankers of a run: what they re-rank, how they were selected, what they scored.

    Args:
        config: the configuration of the run.
        best: epoch, Rsum and weight of each direction.
        split: name of the split that selects.
    """
    chosen = "The epoch (from 0) and the weight of the probability were"
    if config.train.average:
        last = max(score["epoch"] for score in best.values())
        chosen = f"No epoch was chosen: this is {config.train.kept_text(last)} (from 0). The weight was"
    rows = [
        f"| {name} | {score['epoch']} | {score['weight']:g} | {score['rsum']:.1f} |" for name, score in best.items()
    ]
    return f"""{CARD_HEAD}# {config.name}

Re-rankers of the candidates that the retriever {config.reranker.trained_on or "(unknown)"} finds, trained on the
embeddings of that retriever alone; strategy `{config.strategy}`, {config.network.width} wide, seed {config.train.seed}.

{chosen} chosen on `{split}`. Rsum is R@1 + R@5 + R@10, in percent:

| direction | epoch | weight | Rsum |
| --- | --- | --- | --- |
{chr(10).join(rows)}

```python
from prvr.published.diffusionret import load_rerankers

rerankers = load_rerankers("path/to/this/folder")
```
"""
