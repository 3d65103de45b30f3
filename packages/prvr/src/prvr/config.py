"""Everything that can be chosen, as frozen dataclasses: one YAML preset is one `Config`.

`load_config("hlformer-tvr", {"optim.lr": 1e-4})` reads a preset (or a YAML file) and applies dotted overrides.
"""

import dataclasses
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass

__all__ = [
    "BlockConfig",
    "Compat",
    "Config",
    "ConfigError",
    "DataConfig",
    "LossConfig",
    "ModelConfig",
    "OptimConfig",
    "RegisterConfig",
    "TrainConfig",
    "config_from_dict",
    "config_to_dict",
    "dump_config",
    "load_config",
    "model_config_from_dict",
    "preset_names",
    "validated",
]

_T = TypeVar("_T")
_STRICT = ConfigDict(extra="forbid")


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the key, the value and what is allowed."""


@dataclass(frozen=True, config=_STRICT)
class BlockConfig:
    """One attention block: its geometry and the width of its Gaussian window (None = unlimited)."""

    space: Literal["euclidean", "lorentz"] = "euclidean"
    width: float | None = Field(default=None, gt=0)


@dataclass(frozen=True, config=_STRICT)
class Compat:
    """Where the released code differs from the papers or from what is correct, which of the two is built.

    Defaults are correct. `docs/compat.md` has a row per field.
    """

    window: Literal["centred", "released"] = "centred"
    """released: the window's centres are i/L but its keys lie on linspace(0, 1, L); each row divided by its maximum."""
    padding: Literal["masked", "to_length", "to_batch"] = "masked"
    """to_length: frames are zero-padded to `max_frames`, padded rows enter the fusion's mean and the score's maximum
    (HLFormer, DreamPRVR). to_batch: the window's scale follows the longest video of the batch (GMMFormer)."""
    lorentz: Literal["correct", "released"] = "correct"
    """released: bias-free linear maps, heads with a sigmoid time, fixed curvature, head 0's time at logmap0."""
    entailment: Literal["correct", "released"] = "correct"
    """released: poolings without a mask, bounds kept by projecting the parameters, numeric clamps of 1e-8."""


@dataclass(frozen=True, config=_STRICT)
class RegisterConfig:
    """Global register tokens that every block sees as extra keys and values (DreamPRVR)."""

    kind: Literal["none", "pooled", "condition", "diffusion"] = "none"
    num: int = Field(default=8, ge=1)
    steps: int = Field(default=10, ge=1)
    """Diffusion steps trained."""
    sampling_steps: int | None = Field(default=None, ge=1)
    """Steps taken when sampling; None = all of `steps`."""
    layers: int = Field(default=2, ge=1)
    start: Literal["prior_mean", "prior_sample", "gaussian"] = "prior_sample"
    noise: Literal["start", "gaussian"] = "gaussian"
    """start: the starting tensor is also the noise of the training targets and of every reverse step (released)."""
    loss_timesteps: Literal["all", "random"] = "all"
    time_table: Literal["sincos", "random"] = "sincos"
    float32_constants: bool = False
    """Round schedule constants and the prior's standard deviation to float32 (released)."""


@dataclass(frozen=True, config=_STRICT)
class ModelConfig:
    """A retriever: input widths, the list of blocks, the fusion, the registers, the score's weights."""

    video_dim: int = Field(gt=0)
    query_dim: int = Field(gt=0)
    hidden: int = Field(default=384, gt=0)
    heads: int = Field(default=4, gt=0)
    num_clips: int = Field(default=32, gt=0)
    max_frames: int = Field(default=128, gt=0)
    max_words: int = Field(default=30, gt=0)
    branches: Literal["both", "clips", "frames"] = "both"
    layer: Literal["transformer", "attention"] = "transformer"
    """transformer: attention and feed-forward, post-norm; attention: output projection, no feed-forward (GMMFormer)."""
    depth: int = Field(default=1, ge=1)
    blocks: tuple[BlockConfig, ...] = (BlockConfig(),)
    fusion: Literal["mean", "concat_linear", "mean_guided"] = "mean_guided"
    fusion_temperature: float = Field(default=0.6, gt=0)
    window: Literal["multiply", "add"] = "add"
    """multiply: logits times the window (the papers); add: logits plus its logarithm."""
    lorentz_dim: int = Field(default=127, gt=0)
    padded_rows: Literal["compute", "drop"] = "compute"
    """drop: frames and words past an end are not computed. Faster, and the same result up to rounding, except with
    compat.padding='to_length': there the mean that guides the fusion then covers a video's own frames only."""
    frame_pooling: Literal["none", "attention"] = "none"
    """attention: frames are pooled to one vector per video (GMMFormer)."""
    input_dropout: float = Field(default=0.2, ge=0, lt=1)
    dropout: float = Field(default=0.2, ge=0, lt=1)
    registers: RegisterConfig = RegisterConfig()
    clip_weight: float = Field(default=0.5, ge=0)
    frame_weight: float = Field(default=0.5, ge=0)
    compat: Compat = Compat()

    @model_validator(mode="after")
    def _consistent(self) -> "ModelConfig":
        if self.hidden % self.heads:
            raise ValueError(f"hidden={self.hidden} must be a multiple of heads={self.heads}")
        if not self.blocks:
            raise ValueError("blocks is empty: list at least one, for example [{space: euclidean}]")
        spaces = {block.space for block in self.blocks}
        if "lorentz" in spaces:
            if (self.lorentz_dim + 1) % self.heads:
                raise ValueError(
                    f"lorentz_dim={self.lorentz_dim}: lorentz_dim + 1 must be a multiple of heads={self.heads}"
                )
            if self.layer != "transformer":
                raise ValueError("Lorentz blocks need layer='transformer'")
            if self.compat.lorentz == "released" and self.window != "multiply":
                raise ValueError("compat.lorentz='released' needs window='multiply'")
        if self.registers.kind != "none" and self.layer != "transformer":
            raise ValueError("registers need layer='transformer'")
        if self.registers.kind != "none" and self.branches == "frames":
            raise ValueError("registers are generated from the clips: branches must be 'both' or 'clips'")
        if self.depth > 1 and self.registers.kind != "none":
            raise ValueError("registers need depth=1")
        if self.depth > 1 and self.fusion != "mean":
            raise ValueError(f"depth={self.depth} is only defined for fusion='mean', got {self.fusion!r}")
        if self.padded_rows == "drop" and self.compat.padding == "to_batch":
            raise ValueError(
                "padded_rows='drop' does not go with compat.padding='to_batch', whose windows follow the padding: "
                "keep padded_rows='compute', or set compat.padding='masked'"
            )
        if self.frame_pooling == "attention" and self.branches == "clips":
            raise ValueError("frame_pooling='attention' needs the frame branch: branches='both' or 'frames'")
        return self


@dataclass(frozen=True, config=_STRICT)
class LossConfig:
    """Weights of the loss terms (0 = off, the term is not computed) and what they depend on."""

    triplet: float = Field(default=1.0, ge=0)
    margin: float = Field(default=0.2, ge=0)
    hard_pool: int = Field(default=20, ge=1)
    """Hard negatives of a query are drawn from this many highest-scored wrong videos."""
    info_nce_clips: float = Field(default=0.02, ge=0)
    info_nce_frames: float = Field(default=0.04, ge=0)
    diversity: float = Field(default=3e-3, ge=0)
    diversity_margin: float = 0.2
    """delta of the papers."""
    diversity_scale: float = 32.0
    """omega of the papers."""
    diversity_form: Literal["focal", "log_sum"] = "focal"
    """focal: (1 + cos) log(1 + exp(.)) over pairs; log_sum: log(1 + sum exp(.)) over queries (GMMFormer)."""
    diversity_power: float = 1.0
    """Exponent of the focal factor."""
    query_structure: float = Field(default=0.0, ge=0)
    query_structure_temperature: float = Field(default=0.08, gt=0)
    entailment: float = Field(default=0.0, ge=0)
    entailment_curvature: float = Field(default=1.0, gt=0)
    """Starting value of c; learned within a factor of 10 either way."""
    entailment_min_radius: float = Field(default=0.1, gt=0)
    prior_kl: float = Field(default=0.0, ge=0)
    diffusion: float = Field(default=0.0, ge=0)
    perturbation: float = Field(default=0.1, ge=0)
    """gamma of the textual perturbation sampler (TPS), the target of the diffusion term."""


@dataclass(frozen=True, config=_STRICT)
class OptimConfig:
    """The optimiser. bert_adam is the released one: per-tensor clip, no bias correction, linear warm-up and decay."""

    name: Literal["bert_adam", "adamw"] = "adamw"
    lr: float = Field(default=3e-4, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    decay: Literal["matrices", "released"] = "matrices"
    """matrices: everything but biases, norms and scalars; released: by the authors' names (their norms do decay)."""
    warmup: float = Field(default=0.01, ge=0, lt=1)
    """Share of all steps that warm the learning rate up; afterwards it falls linearly to 0."""
    max_grad_norm: float = Field(default=1.0, gt=0)


@dataclass(frozen=True, config=_STRICT)
class DataConfig:
    """Which corpus. `root` is a folder that holds `collection`; `embedded-tiny`, `-demo` and `-bench` need none."""

    collection: str = "embedded-demo"
    root: str | None = None
    feature: str | None = None
    """Folder under FeatureData; None = the only one, or the one the public configurations use."""
    cache_dir: str | None = None
    """Where packed features are kept; None = the user's cache folder."""
    keep_last_frame: bool = True
    """False: the released rounding, which leaves the last frame out of the last segment."""
    eval_split: str = "test"
    """The split that is reported."""
    captions_per_video: int | None = Field(default=None, ge=1)
    """At most this many captions of a video in one step, drawn anew each epoch; None = all."""


@dataclass(frozen=True, config=_STRICT)
class TrainConfig:
    """How long, how much at a time, and how the epoch is selected."""

    epochs: int = Field(default=100, ge=1)
    batch_size: int = Field(default=128, ge=2)
    """Videos per step, of all processes together; each brings all its captions."""
    chunk_videos: int | None = Field(default=None, ge=1)
    """Videos encoded at a time in a step, twice each; losses still see the whole batch. None = all at once, once."""
    patience: int = Field(default=10, ge=1)
    """Stop after this many epochs without a better selection score."""
    hard_negatives_from: int = Field(default=20, ge=0)
    """First epoch (from 0) whose triplets use hard negatives."""
    protocol: Literal["paper", "holdout", "val"] = "paper"
    """paper: the best epoch on the reported split (as published numbers were made); holdout: a share of the training
    videos selects, the reported split is scored once; val: so does the corpus's own split "val", where it has one."""
    holdout_fraction: float = Field(default=0.1, gt=0, lt=1)
    seed: int = Field(default=0, ge=0)
    precision: Literal["no", "bf16"] = "no"
    checkpoint_every: int | None = Field(default=None, ge=1)
    """Steps, counted over the whole run, between checkpoints inside epochs; None = only where an epoch ends."""
    on_nonfinite: Literal["stop", "skip"] = "stop"
    """A loss or gradient that is not finite: stop ends the run, skip goes on as if the step had not been."""
    max_skipped: int = Field(default=10, ge=1)
    """More skipped steps than this in a row end the run."""
    workers: int = Field(default=0, ge=0)
    eval_videos: int = Field(default=64, ge=1)
    """Videos encoded at a time in evaluation."""
    eval_queries: int = Field(default=256, ge=1)
    """Queries scored at a time in evaluation."""


@dataclass(frozen=True, config=_STRICT)
class Config:
    """A whole run."""

    name: str
    model: ModelConfig
    loss: LossConfig = LossConfig()
    optim: OptimConfig = OptimConfig()
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()

    @model_validator(mode="after")
    def _losses_have_their_parts(self) -> "Config":
        registers = self.model.registers.kind
        if self.loss.diffusion > 0 and registers != "diffusion":
            raise ValueError(
                f"loss.diffusion={self.loss.diffusion} needs model.registers.kind='diffusion', not {registers!r}"
            )
        if self.loss.prior_kl > 0 and registers != "diffusion":
            raise ValueError(
                f"loss.prior_kl={self.loss.prior_kl} needs model.registers.kind='diffusion', not {registers!r}"
            )
        loss, branches = self.loss, self.model.branches
        weights = [loss.triplet, loss.diversity, loss.query_structure, loss.entailment, loss.prior_kl, loss.diffusion]
        weights += [loss.info_nce_clips] * (branches != "frames") + [loss.info_nce_frames] * (branches != "clips")
        if not any(weights):
            raise ValueError("every loss weight is 0: turn at least one term on, for example loss.triplet=1")
        if self.optim.decay == "released" and self.optim.name != "bert_adam":
            raise ValueError("optim.decay='released' needs optim.name='bert_adam'")
        return self


def preset_names() -> list[str]:
    """Names of the presets that ship with prvr, sorted.

    Example:
        >>> "hlformer-tvr" in preset_names()
        True
    """
    folder = resources.files("prvr") / "presets"
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def _read(name_or_path: str | Path) -> tuple[str, dict[str, Any]]:
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise ConfigError(f"configuration file {path} does not exist")
        source, text = str(path), path.read_text(encoding="utf-8")
    else:
        name = str(name_or_path)
        names = preset_names()
        if name not in names:
            close = get_close_matches(name, names, n=3) or names
            raise ConfigError(f"unknown preset {name!r}; did you mean {', '.join(close)}? All: {', '.join(names)}")
        source, text = name, (resources.files("prvr") / "presets" / f"{name}.yaml").read_text(encoding="utf-8")
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source} is not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{source}: expected a mapping of keys, got {type(values).__name__}")
    return source, values


def _override(values: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    node = values
    for parent in parents:
        child = node.setdefault(parent, {})
        if not isinstance(child, dict):
            raise ConfigError(f"override {key!r}: {parent!r} is a value, not a group of keys")
        node = child
    node[last] = yaml.safe_load(value) if isinstance(value, str) else value


def _known_keys(kind: Any, prefix: str = "") -> list[str]:
    keys = []
    for field in dataclasses.fields(kind):
        keys.append(prefix + field.name)
        if dataclasses.is_dataclass(field.type):
            keys += _known_keys(field.type, f"{prefix}{field.name}.")
    return keys


def config_from_dict(values: Mapping[str, Any], source: str = "configuration") -> Config:
    """A validated `Config` from nested dictionaries.

    Raises:
        ConfigError: an unknown key, a wrong type or a value out of range; the message names each.
    """
    return validated(Config, values, source)


def validated(kind: type[_T], values: Mapping[str, Any], source: str) -> _T:
    """A configuration record from nested dictionaries.

    Raises:
        ConfigError: an unknown key, a wrong type or a value out of range; the message names each.
    """
    try:
        return TypeAdapter(kind).validate_python(dict(values))
    except ValidationError as error:
        lines = []
        for problem in error.errors():
            key = ".".join(str(part) for part in problem["loc"])
            if problem["type"] == "unexpected_keyword_argument":
                close = get_close_matches(key, _known_keys(kind), n=2)
                lines.append(f"unknown key {key!r}" + (f"; did you mean {' or '.join(close)}?" if close else ""))
            elif problem["type"] in ("missing", "missing_argument"):
                lines.append(f"{key} is required")
            else:
                shown = f", got {problem['input']!r}" if not isinstance(problem["input"], dict | Config) else ""
                lines.append(f"{key or source}: {problem['msg'].removeprefix('Value error, ')}{shown}")
        raise ConfigError(f"{source}: " + "; ".join(lines)) from error


def model_config_from_dict(values: Mapping[str, Any]) -> ModelConfig:
    """A validated `ModelConfig`, as `Retriever.from_pretrained` reads it from config.json."""
    return validated(ModelConfig, values, "model configuration")


def load_config(name_or_path: str | Path, overrides: Mapping[str, Any] | None = None) -> Config:
    """A preset by name, or a YAML file by path, with dotted overrides.

    Args:
        name_or_path: one of `preset_names()`, or a path that ends in `.yaml`.
        overrides: for example `{"train.epochs": 5, "model.registers.num": 4}`; strings are read as YAML.

    Raises:
        ConfigError: unknown preset, missing file, unknown key or a value out of range.

    Example:
        >>> load_config("hlformer-tvr", {"train.epochs": 5}).train.epochs
        5
    """
    source, values = _read(name_or_path)
    for key, value in (overrides or {}).items():
        _override(values, key, value)
    return config_from_dict(values, source)


def config_to_dict(config: Any) -> dict[str, Any]:
    """Nested plain dictionaries and lists: what YAML and JSON can hold."""

    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return [plain(v) for v in value] if isinstance(value, list | tuple) else value

    return plain(config)


def dump_config(config: Config) -> str:
    """The resolved configuration as YAML; `load_config` reads it back to an equal `Config`."""
    return yaml.safe_dump(config_to_dict(config), sort_keys=False, allow_unicode=True)
