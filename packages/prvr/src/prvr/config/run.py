"""The configuration of a run: model, losses, optimiser, data, training."""

from collections.abc import Callable
from typing import Annotated, Literal, Protocol, runtime_checkable

from pydantic import Field, model_validator

from prvr.config.losses import LOSSES, TAUGHT, LossConfig, expect_losses_fit
from prvr.config.model import ModelConfig
from prvr.config.registry import Chosen, Registry, own_modules, registered
from prvr.config.retrievers import RETRIEVERS, AnyModelConfig
from prvr.config.strict import (
    MANY,
    SEED,
    Count,
    LearningRate,
    Number,
    Rate,
    Scale,
    Share,
    Size,
    Times,
    TwoOrMore,
    record,
)
from prvr.errors import InputError

DECAYS = Registry[Callable[..., dict[int, bool]]]("optim.decay")
"""Rules of weight decay: `(modules)` says for ids of parameters whether they decay; `matrices` decides on others."""
DECAYS.register("matrices", "prvr.training.optimizer:by_axes", "Everything but biases, norms and scalars.")


@record
class OptimConfig:
    """The optimiser. bert_adam is the released one: per-tensor clip, no bias correction."""

    name: Literal["bert_adam", "adamw"] = "adamw"
    """bert_adam: the released one; adamw: that of torch."""
    lr: LearningRate = 3e-4
    """The learning rate after the warm-up."""
    backbone_lr: LearningRate = 1e-7
    """Of a pretrained part that is trained along: the CLIP of `model.clip`, the `backbone` of a part of your own."""
    weight_decay: Scale = 0.01
    """Weight decay of the parameters that `decay` names."""
    decay: Annotated[str, registered(DECAYS)] = "matrices"
    """matrices: everything but biases, norms and scalars; others are in `DECAYS`."""
    warmup: Rate = 0.01
    """Share of all steps that warm the learning rate up; afterwards it falls to 0 as `schedule` says."""
    schedule: Literal["linear", "cosine"] = "linear"
    """After the warm-up, at the share x of all steps. linear: from 1 at its end; cosine: (1 + cos(pi x)) / 2, which is
    a little less than 1 there already (DiffusionRet's released code)."""
    betas: tuple[Rate, Rate] = (0.9, 0.999)
    """Decay rates of the two moments."""
    eps: Share | None = None
    """Added to the root of the second moment; None = 1e-8 for adamw and 1e-6 for bert_adam."""
    max_grad_norm: float = Field(default=1.0, gt=0, le=1e12)
    """Longer gradients are cut to this norm."""
    clip: Literal["auto", "whole"] = "auto"
    """auto: adamw clips the norm of the whole gradient, bert_adam that of each tensor; whole: bert_adam clips the whole
    gradient before each tensor (DiffusionRet's released code)."""


@record
class DataConfig:
    """Which corpus. `root` is a folder that holds `collection`; `toy-tiny`, `-demo` and `-bench` need none."""

    collection: str = "toy-demo"
    """The corpus, a folder of `root`."""
    root: str | None = None
    """The folder of the corpora; null = the cache, where `toy-*` are drawn."""
    feature: str | None = None
    """Folder or HDF5 file under FeatureData; None = the only one, that of the public configurations, or `frames`."""
    cache_dir: str | None = None
    """Where packed features are kept; None = the user's cache folder."""
    keep_last_frame: bool = True
    """False: the released rounding, which leaves the last frame out of the last segment."""
    eval_split: str = "test"
    """The split that is reported."""
    missing: Literal["error", "skip"] = "error"
    """Videos of captions that have no features: skip leaves both out, and reports say how many."""
    captions_per_video: Count | None = None
    """At most this many captions of a video in one step, drawn again each epoch; None = all."""


@record
class TrainerConfig:
    """The settings that every run has; `TrainConfig` and `RerankerTrainConfig` add the rest."""

    epochs: Number = 100
    """Passes over the training split; 0 = none, the retriever is kept and evaluated as it starts."""
    patience: Times = 10
    """Stop after more than this many epochs in a row without a better selection score, as the authors' code does."""
    average: Number = 0
    """Keep the mean of the weights at the ends of this many last epochs, and choose none: all epochs are trained,
    whatever `patience` is, and the split that selects only watches. 0 = keep the epoch with the best score."""
    seed: int = Field(default=0, ge=0, le=SEED)
    """Seed of weights, batches, dropout and noise."""
    precision: Literal["no", "tf32", "bf16"] = "no"
    """no: float32; tf32: matrix products of float32 in TF32, on NVIDIA GPUs alone; bf16: encoders under autocast."""
    checkpoint_every: Times | None = None
    """Steps, counted over the whole run, between checkpoints inside epochs; None = only where an epoch ends."""
    on_nonfinite: Literal["stop", "skip"] = "stop"
    """A loss or gradient that is not finite: stop ends the run, skip continues as if the step had not been taken."""
    max_skipped: Times = 10
    """More skipped steps than this in a row end the run."""
    eval_queries: Count = 256
    """Queries scored at a time in evaluation."""

    @model_validator(mode="after")
    def _enough_epochs(self) -> "TrainerConfig":
        if self.average > self.epochs:
            raise InputError(
                f"train.average={self.average} with train.epochs={self.epochs}: expected at most as many epochs to "
                "average as are trained; train more of them, or average fewer"
            )
        return self

    def kept_epochs(self, epoch: int) -> range:
        """The epochs, from 0, whose mean weights are kept if `epoch` is: itself alone, or those averaged up to it.

        Examples:
            >>> TrainerConfig(epochs=25, average=5).kept_epochs(24), TrainerConfig(epochs=25).kept_epochs(17)
            (range(20, 25), range(17, 18))
        """
        return range(min(epoch, self.epochs - self.average), epoch + 1) if self.average else range(epoch, epoch + 1)

    def kept_text(self, epoch: int) -> str:
        """Says which epochs are kept, counted from 0.

        Examples:
            >>> TrainerConfig(epochs=25, average=5).kept_text(24), TrainerConfig(epochs=25).kept_text(17)
            ('the mean of the weights of epochs 20 to 24', 'best epoch 17')
        """
        if epoch < 0:
            return "the initial model"
        epochs = self.kept_epochs(epoch)
        if not self.average:
            return f"best epoch {epoch}"
        return f"the mean of the weights of epochs {epochs[0]} to {epochs[-1]}" if len(epochs) > 1 else f"epoch {epoch}"


@record
class TrainConfig(TrainerConfig):
    """The training of a retriever: how long, how much at a time, and how the epoch is selected."""

    batch_size: int = Field(default=128, ge=2, le=MANY)
    """Videos per step, of all processes together; each brings all its captions."""
    chunk_videos: Count | None = None
    """Videos encoded at a time in a step, twice each; losses still see the whole batch. None = all at once, once."""
    hard_negatives_from: Number = 20
    """First epoch (from 0) whose triplets use hard negatives."""
    warm_up_epochs: Number = 0
    """First epochs, in which `loss.evidence` uses the labels unchanged and `loss.transport` is off. The learning
    rate has a warm-up of its own, `optim.warmup`."""
    start_from: str | None = None
    """A run, or a model by its folder or name, whose weights the training starts from: a model of the same tensors. The
    parameters of its losses come along where they are the same. A resumed run does not need it."""
    teacher: str | None = None
    """The system that `loss.distillation` learns from, on the features of the same corpus: a run, a model, or a folder
    of `prvr pipeline`, which may have stages. It scores the training split once, before the training. For
    `loss.frame_distillation`: the folder of a corpus of the same videos and captions, whose frames and sentences are
    vectors of one space; None = the corpus itself."""
    protocol: Literal["paper", "holdout", "val"] = "paper"
    """paper: the best epoch on the reported split (as published numbers were made); holdout: a share of the training
    videos selects, the reported split is scored once; val: so does the corpus's own split "val", where it has one."""
    holdout_fraction: float = Field(default=0.1, gt=0, lt=1)
    """Share of the training videos that select, with protocol='holdout'."""
    data_on_device: Literal["auto", "always", "never"] = "auto"
    """Keep the features of the training split on the device; auto: on a GPU, where they take at most half of what is
    free there. Batches are the same either way."""
    cuda_graph: Literal["auto", "on", "off"] = "auto"
    """Start each step as one CUDA graph; auto: where that is possible, which needs `model.padded_rows: fixed`. The
    numbers are the same either way."""
    eval_videos: Count = 64
    """Videos encoded at a time in evaluation."""


_SOME = Field(min_length=1, max_length=64)
_Choices = Annotated[tuple[Annotated[float, Field(ge=1e-9, le=1e9)], ...], _SOME]


@record
class FitConfig:
    """The fit of `model.start: kernel`: choices among which held-out videos decide, one after the other.

    These are parts of the training videos and the split that selects or, with `train.protocol: paper`, which selects on
    the reported one, the split `val` if there is one. Of each list the middle one is tried first, then its neighbours,
    and on in the direction in which the score rises. See `prvr.training.closed_form`.
    """

    kernel: Literal["either", "gaussian", "linear"] = "either"
    """linear: a linear map of the windows, ridge regression, the limit of wide Gaussians. either: the linear kernel is
    compared with the widths of the Gaussian."""
    windows: Annotated[tuple[tuple[Size, ...], ...], _SOME] = ((4, 6, 8), (8, 12, 16), (16, 24, 32), (32, 48, 64))
    """Lengths of windows of frames, see `model.path.windows`."""
    widths: _Choices = (0.25, 0.5, 1.0, 2.0, 4.0)
    """Widths of the Gaussian, in median distances of rows."""
    penalties: _Choices = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
    """Penalties of ridge regression, in 1,500ths of the total variance of rows in the space of the kernel."""
    temperatures: _Choices = (0.0125, 0.025, 0.05, 0.1, 0.2)
    """Temperatures of the softmax over the rows of a video that shares a caption out among them."""
    iterations: int = Field(default=3, ge=0, le=1000)
    """How often captions are shared out again and the map is fitted to it, after a first fit to equal shares."""
    landmarks: TwoOrMore = 1500
    """Rows that the map is a combination of, where there are more than twice as many; else all of them, and the
    regression is exact."""
    toward: Literal["zero", "identity"] = "zero"
    """What the penalty draws the map to. identity: for frames and sentences of one space, which then are compared as
    they are where captions are few; rows are neither centred nor standardised."""
    folds: int = Field(default=5, ge=2, le=100)
    """Parts of the training videos. Each is held out once where they are few, of more than 500 videos one alone."""
    gates: Annotated[tuple[Share, ...], _SOME] = (0.1, 0.3, 1.0)
    """Shares of the blocks in the score, one of which is chosen on the split that selects if there it leads the path
    alone by more than the standard error, see `model.start`."""
    baseline: Literal["auto", "always", "never"] = "auto"
    """Compare a model that is trained or evaluated with the kernel regression of its training split; auto: where
    fitting it takes minutes, see `prvr.training.kernel_baseline`."""


@runtime_checkable
class RunConfig(Protocol):
    """The configuration of a run, whatever it trains."""

    @property
    def name(self) -> str:
        """What the run is called."""
        ...

    @property
    def optim(self) -> OptimConfig:
        """The optimiser."""
        ...

    @property
    def train(self) -> TrainerConfig:
        """How long is trained, and how much at a time."""
        ...


@record
class Config:
    """The configuration of a run that trains a retriever."""

    name: str
    model: Annotated[AnyModelConfig, Chosen(RETRIEVERS, "pooled")]
    loss: LossConfig = Field(default_factory=LossConfig)
    optim: OptimConfig = OptimConfig()
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()
    fit: FitConfig = FitConfig()
    imports: tuple[str, ...] = ()
    """Modules that must be imported before this is read, see `--import`. Those that registered the losses and the parts
    of the model in use are added."""

    @model_validator(mode="after")
    def _consistent(self) -> "Config":
        expect_losses_fit(self.loss, self.model)
        entries = [LOSSES[name] for name in self.loss.terms if self.loss.weight(name) > 0]
        own = [*own_modules([*entries, DECAYS[self.optim.decay]]), *self.model.own_modules]
        object.__setattr__(self, "imports", tuple(dict.fromkeys([*self.imports, *own])))
        if isinstance(self.model, ModelConfig) and self.model.branches == "none" and self.train.epochs:
            raise InputError(
                f"train.epochs={self.train.epochs}: model.branches='none' has no blocks to train, set it to 0"
            )
        taught, teacher = self.loss.taught, self.train.teacher
        if taught == "distillation" and teacher is None:
            weight = self.loss.weight(taught)
            raise InputError(f"loss.distillation={weight} needs a teacher: name a system in train.teacher")
        if teacher is not None and taught is None:
            raise InputError(f"train.teacher={teacher!r} is not read: set loss.distillation above 0, or leave it out")
        if all(self.loss.weight(name) > 0 for name in TAUGHT):
            raise InputError(f"{' and '.join(f'loss.{name}' for name in TAUGHT)} have different teachers: set one to 0")
        for problem in DECAYS[self.optim.decay].problems(self):
            raise InputError(problem)
        return self
