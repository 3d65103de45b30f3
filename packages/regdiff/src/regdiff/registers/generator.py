"""The generator of registers: a condition, a prior and a short diffusion from it, of parts or of options."""

import copy
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regdiff.diffusion import Callback, ConditionalDiffusion
from regdiff.forward import Weighting
from regdiff.hub import Saveable
from regdiff.masks import expect_mask, masked, readable
from regdiff.noise import standard_normal
from regdiff.registers.condition import ConditionGenerator, NoCondition, SegmentAverages
from regdiff.registers.denoiser import RegisterDenoiser
from regdiff.registers.gaussian import Gaussian, PriorSampler
from regdiff.registers.noise import FreshNoise, NoiseSource, extended, fixed_table
from regdiff.registers.records import register_record
from regdiff.schedule import Scheduler
from regdiff.schedulers import make_scheduler
from regdiff.transformer import TransformerDenoiser

Start = Literal["prior_mean", "prior_sample", "gaussian"]
LossTimesteps = Literal["all", "random"]


@dataclass(frozen=True)
class Registers:
    """The registers of a batch.

    Attributes:
        tokens: The registers themselves.
        condition: What the diffusion was conditioned on; the tokens themselves for the kinds "condition" and "pooled",
            zeros for "prior".
        prior: The Gaussian the diffusion starts from, where there is one.
        start: Where the diffusion started, where there is one; the tokens themselves for the kind "prior".
        chain: All intermediate registers, the last being `tokens`, if they were asked for.
    """

    tokens: Float[Tensor, "b n d"]
    condition: Float[Tensor, "b n d"]
    prior: Gaussian | None = None
    start: Float[Tensor, "b n d"] | None = None
    chain: Float[Tensor, "k b n d"] | None = None


register_record(Registers)


@dataclass(frozen=True)
class Sampling:
    """Options of the sampler of a `RegisterGenerator`.

    Attributes:
        num_steps: Steps of the sampler, spaced evenly from T - 1 down; None takes all T.
        guidance_scale: Classifier-free guidance, in training and eval; None is without.
        checkpoint: Recompute the denoiser's activations in the backward pass of the sampler instead of keeping them.
    """

    num_steps: int | None = None
    guidance_scale: float | None = None
    checkpoint: bool = False


@dataclass(frozen=True)
class RegisterOptions:
    """Options of `make_register_generator`.

    The defaults are DreamPRVR's Algorithm 1 but for three: x_0 is clipped, each step has the variance of the posterior
    and not beta, and one random timestep per row stands for the sum over all. Those are `scheduler="ddpm"`,
    `scheduler_options={"variance_type": "fixed_large", "clip_sample": False}` and `loss_timesteps="all"`.

    Attributes:
        dim: Width d.
        num_registers: Number of registers n.
        num_heads: Attention heads of the condition, and of a transformer denoiser.
        steps: T, the number of trained timesteps.
        layers: Blocks of the denoiser.
        kind: "diffusion"; "condition" stops at c; "pooled" averages the sequence into n segments, without parameters;
            "prior" stops at the start r_T, without condition and denoiser.
        start: Where the diffusion starts: the prior's mean, a reparameterised sample of the prior, or N(0, I)
            without any prior.
        loss_timesteps: One random timestep per row, or the mean over all.
        length: Longest sequence the prior's pooling accepts.
        dropout: Rate in condition and denoiser.
        scheduler: A name of `make_scheduler`.
        scheduler_options: Further options of `make_scheduler`, such as clip_sample=False.
        prediction_type: What the denoiser predicts; "flow" with the scheduler "flow".
        denoiser: "mlp", the paper's, in which registers do not see each other (`RegisterDenoiser`), or "transformer",
            in which they do and each reads the conditions of all (`TransformerDenoiser`).
        weighting: Weights of the loss over timesteps, see `ConditionalDiffusion`.
        condition_dropout: Probability that `loss` replaces a row's condition by a learned null condition.
        num_sampling_steps, guidance_scale, checkpoint: See `Sampling`.
    """

    dim: int
    num_registers: int
    num_heads: int
    steps: int = 10
    layers: int = 2
    kind: Literal["diffusion", "condition", "pooled", "prior"] = "diffusion"
    start: Start = "prior_sample"
    loss_timesteps: LossTimesteps = "random"
    length: int = 32
    dropout: float = 0.0
    scheduler: str = "ddim"
    scheduler_options: dict[str, Any] = field(default_factory=dict)
    prediction_type: str = "epsilon"
    denoiser: Literal["mlp", "transformer"] = "mlp"
    weighting: Weighting = "uniform"
    condition_dropout: float = 0.0
    num_sampling_steps: int | None = None
    guidance_scale: float | None = None
    checkpoint: bool = False

    def __post_init__(self) -> None:
        for name in ("kind", "start", "loss_timesteps", "denoiser"):
            value = getattr(self, name)
            choices = get_args(type(self).__annotations__[name])
            if value not in choices:
                raise ValueError(f"{name}: got {value!r}, expected one of {', '.join(map(repr, choices))}")
        if self.kind == "prior" and self.start == "gaussian":
            raise ValueError("start: got 'gaussian' with kind 'prior', expected 'prior_sample' or 'prior_mean'")
        if self.guidance_scale not in (None, 1) and self.condition_dropout == 0:
            raise ValueError(
                f"guidance_scale: got {self.guidance_scale} with condition_dropout 0, expected a condition_dropout "
                "above 0, by which the null condition is learned"
            )
        if self.num_registers < 1:
            raise ValueError(f"num_registers: got {self.num_registers}, expected at least 1")


def make_register_generator(dim: int, num_registers: int, num_heads: int, **options: Any) -> "RegisterGenerator":
    """A `RegisterGenerator` from numbers and names.

    Args:
        dim: Width d.
        num_registers: Number of registers n.
        num_heads: Attention heads of the condition; divides `dim`.
        **options: The other fields of `RegisterOptions`, such as steps=10 or scheduler="euler".

    Raises:
        ValueError: An unknown value, options that exclude each other, or more sampling steps than trained ones.
        TypeError: An unknown option.

    Examples:
        >>> import torch
        >>> generator = make_register_generator(dim=8, num_registers=4, num_heads=2, steps=5, layers=1)
        >>> generator(torch.randn(3, 32, 8)).tokens.shape
        torch.Size([3, 4, 8])
    """
    chosen = RegisterOptions(dim, num_registers, num_heads, **options)
    prior = diffusion = None
    if chosen.kind == "pooled":
        condition = SegmentAverages(dim, num_registers)
    elif chosen.kind == "prior":
        condition = NoCondition(dim, num_registers)
    else:
        condition = ConditionGenerator(dim, num_registers, num_heads, chosen.dropout)
    if chosen.kind in ("prior", "diffusion") and chosen.start != "gaussian":
        prior = PriorSampler(dim, chosen.length)
    if chosen.kind == "diffusion":
        if chosen.denoiser == "mlp":
            denoiser = RegisterDenoiser(dim, chosen.steps, chosen.layers, chosen.dropout)
        else:
            denoiser = TransformerDenoiser(
                dim, chosen.steps, chosen.layers, num_heads, num_registers=num_registers, dropout=chosen.dropout
            )
        diffusion = ConditionalDiffusion(
            denoiser,
            make_scheduler(
                chosen.scheduler, chosen.steps, prediction_type=chosen.prediction_type, **chosen.scheduler_options
            ),
            weighting=chosen.weighting,
            condition_dropout=chosen.condition_dropout,
            null_condition=nn.Parameter(torch.randn(1, num_registers, dim)) if chosen.condition_dropout > 0 else None,
        )
    return RegisterGenerator(
        condition,
        diffusion,
        prior,
        sample_prior=chosen.start == "prior_sample",
        loss_timesteps=chosen.loss_timesteps,
        sampling=Sampling(chosen.num_sampling_steps, chosen.guidance_scale, chosen.checkpoint),
        options=chosen,
    )


@runtime_checkable
class Condition(Protocol):
    """A module that reads a sequence into one condition per register, such as `ConditionGenerator`.

    Attributes:
        dim: Width d.
        num: Number of registers n.
    """

    dim: int
    num: int

    def __call__(
        self, x: Float[Tensor, "b l d"], mask: Bool[Tensor, "b l"] | None = None
    ) -> Float[Tensor, "b n d"]: ...


@runtime_checkable
class Prior(Protocol):
    """A module that reads a sequence into the Gaussian that the diffusion starts from, such as `PriorSampler`."""

    def __call__(self, x: Float[Tensor, "b l d"], mask: Bool[Tensor, "b l"] | None = None) -> Gaussian: ...


class RegisterGenerator(nn.Module, Saveable):
    r"""A few latent tokens that summarise a sequence, generated by a short conditional diffusion (DreamPRVR).

    The prior p(r_T | V) = N(mean, var) gives the start, learned queries give the condition c, and T steps of the
    reverse process turn the start into registers, in [-1, 1] with ddim and ddpm. In training, `loss` teaches the
    denoiser that r_0 looks like perturbed text (`TextualPerturbation`), and draws the prior to N(0, I).

    In eval mode without a generator nothing is random: every draw is replaced by fixed numbers (seeded, one (n, d)
    table for the start and one for each step, the same for every row), so that registers depend neither on the batch a
    row is in nor on the order of a gallery. That holds for all schedulers, those that draw their own noise included.
    Pass a generator to draw in eval mode too.

    `make_register_generator` makes the parts from numbers and names.

    Args:
        condition: Reads c (b, n, d) from the sequence.
        diffusion: Turns a start into registers, given c, and owns the denoiser and the null condition, which are also
            `generator.denoiser` and `generator.null_condition`. None: the start itself is the registers, or c where
            there is no prior either.
        prior: Reads the Gaussian of the start from the sequence; None starts at N(0, I).
        sample_prior: Start at a reparameterised sample of the prior; False: at its mean.
        noise: Where the noise of the steps and of the loss comes from.
        loss_timesteps: The loss takes one random timestep per row, or the mean over all.
        sampling: Number of steps, guidance and checkpointing.
        options: What the parts were made of, for `save_pretrained`.

    Raises:
        ValueError: More sampling steps than trained ones.

    Examples:
        >>> import torch
        >>> from regdiff import ConditionalDiffusion, make_scheduler
        >>> from regdiff.registers import ConditionGenerator, PriorSampler, RegisterDenoiser
        >>> diffusion = ConditionalDiffusion(RegisterDenoiser(dim=8, steps=5), make_scheduler("ddim", 5))
        >>> generator = RegisterGenerator(ConditionGenerator(8, 4, num_heads=2), diffusion, PriorSampler(8))
        >>> registers = generator(torch.randn(3, 32, 8))
        >>> registers.tokens.shape
        torch.Size([3, 4, 8])
        >>> sorted(generator.loss(torch.randn(3, 4, 8), registers))
        ['diffusion', 'prior_kl']
    """

    eval_noise: Tensor | None

    def __init__(
        self,
        condition: Condition,
        diffusion: ConditionalDiffusion | None = None,
        prior: Prior | None = None,
        *,
        sample_prior: bool = True,
        noise: NoiseSource | None = None,
        loss_timesteps: LossTimesteps = "random",
        sampling: Sampling | None = None,
        options: RegisterOptions | None = None,
    ) -> None:
        super().__init__()
        self.dim, self.num_registers = condition.dim, condition.num
        self.condition = condition
        self.prior = prior
        self.diffusion = diffusion
        self.sample_prior = sample_prior
        self.noise: NoiseSource = FreshNoise() if noise is None else noise
        self.loss_timesteps: LossTimesteps = loss_timesteps
        self.sampling = Sampling() if sampling is None else sampling
        steps, eval_noise = 0, None
        if diffusion is not None:
            steps = self.sampling_steps()  # computed now: they cannot be when a graph is traced
        if diffusion is not None or prior is not None:
            eval_noise = fixed_table(steps + 1, self.num_registers, self.dim).to(torch.get_default_device())
        self.register_buffer("eval_noise", eval_noise, persistent=False)
        self._hub_mixin_config = None if options is None else asdict(options)
        self._made_of = self._parts()
        self.register_state_dict_post_hook(_leave_out_diffusion)
        self.register_load_state_dict_pre_hook(_put_in_diffusion)

    @property
    def denoiser(self) -> Any:
        """The denoiser of the diffusion, which owns it; None where there is none. It may be set."""
        return None if self.diffusion is None else self.diffusion.denoiser

    @property
    def null_condition(self) -> Any:
        """The null condition of the diffusion, which owns it; None where there is none. It may be set."""
        return None if self.diffusion is None else self.diffusion.null_condition

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ("denoiser", "null_condition"):  # nn.Module would register a module or parameter before a setter
            super().__setattr__(name, value)
            return
        setattr(self._diffusion(), name, value)

    @classmethod
    def from_config(cls, config: dict[str, Any], **options: Any) -> "RegisterGenerator":
        """A new generator of the `RegisterOptions` in `config`, with some of them replaced by `options`."""
        return make_register_generator(**(config | options))

    def _parts(self) -> Any:
        """What the options made, and what saving them again must find."""
        diffusion = None if self.diffusion is None else self.diffusion._describe()
        return repr(self.condition), repr(self.prior), type(self.noise), diffusion

    def _describe(self) -> dict[str, Any] | None:
        """The options, with what was set since; None where a part is another than they make."""
        config: Any = self._hub_mixin_config
        if config is None or self._parts() != self._made_of:
            return None
        start = {} if self.prior is None else {"start": "prior_sample" if self.sample_prior else "prior_mean"}
        sampling = {"num_sampling_steps": self.sampling.num_steps, "guidance_scale": self.sampling.guidance_scale}
        rest = {"checkpoint": self.sampling.checkpoint, "loss_timesteps": self.loss_timesteps}
        return config | start | sampling | rest

    def with_scheduler(self, scheduler: Scheduler | str) -> "RegisterGenerator":
        """This generator, its parameters included, with another sampler.

        Args:
            scheduler: See `ConditionalDiffusion.with_scheduler`.

        Raises:
            ValueError: There is no diffusion, or it was not trained for this scheduler.
        """
        other = copy.copy(self)
        other._modules = dict(self._modules)  # the copy has its own diffusion, and shares all parameters
        other.diffusion = self._diffusion().with_scheduler(scheduler)
        return other

    def sampling_steps(self, num_steps: int | None = None) -> int:
        """The number of steps that the sampler takes.

        Args:
            num_steps: As of `forward`.

        Raises:
            ValueError: More steps than trained, or none.
        """
        steps = self.sampling.num_steps if num_steps is None else num_steps
        return self._diffusion().stages(steps)[-1].step + 1

    def forward(
        self,
        features: Float[Tensor, "b l d"],
        mask: Bool[Tensor, "b l"] | None = None,
        generator: torch.Generator | None = None,
        return_chain: bool = False,
        *,
        register_mask: Bool[Tensor, "b n"] | None = None,
        num_steps: int | None = None,
        guidance_scale: float | None = None,
        callback: Callback | None = None,
    ) -> Registers:
        """Generate the registers of each row; differentiable through the whole chain.

        In eval mode on a CPU the prior and the condition are checked to be finite. On an accelerator looking would mean
        waiting, so there a NaN in the features comes out as NaN registers; in training it comes out as a NaN loss, for
        the training loop to report or to skip.

        Args:
            features: The sequence V.
            mask: True marks a valid position; None means all are. Every row needs one, and padding changes nothing.
            generator: Source of the draws; None means torch's global one in training and fixed numbers in eval mode.
            return_chain: Keep all intermediate registers.
            register_mask: True marks a register that the row has; None means all n. The others are zeros, and with the
                transformer they are seen by none.
            num_steps: Steps of the sampler; None means those of `sampling`.
            guidance_scale: Another one than that of `sampling`.
            callback: Called after each step, see `ConditionalDiffusion.sample`.

        Raises:
            ValueError: Features or masks of a wrong shape or type, a sequence beyond `length`, features that are not
                finite, or more steps than trained.
        """
        if features.ndim != 3 or features.shape[-1] != self.dim or features.shape[1] < 1:
            raise ValueError(f"features: got shape {tuple(features.shape)}, expected (b, l >= 1, {self.dim})")
        if mask is not None:
            expect_mask("mask", mask, features.shape[:2])
        if register_mask is not None:
            expect_mask("register_mask", register_mask, (len(features), self.num_registers))
        condition = self.condition(features, mask)
        if not self.training:
            _expect_finite("condition", condition)
        if self.diffusion is None and self.prior is None:
            tokens = masked(condition, register_mask)
            return Registers(tokens, tokens)
        steps = 0 if self.diffusion is None else self.sampling_steps(num_steps)
        prior = None if self.prior is None else self.prior(features, mask)
        if prior is not None and not self.training:
            _expect_finite("prior", torch.cat((prior.mean, prior.logvar), dim=-1))
        fixed = None
        if not self.training and generator is None and self.eval_noise is not None:
            fixed = extended(self.eval_noise, steps + 1)
        start = self._start(prior, condition, None if fixed is None else fixed[0], generator)
        if self.diffusion is None:
            start = masked(start, register_mask)
            return Registers(start, condition, prior, start)
        diffusion = self.diffusion
        noise, source = self.noise.of_steps(diffusion.capabilities, start, fixed, generator)
        result = diffusion.sample(
            start,
            condition,
            steps,
            noise=noise,
            generator=source,
            return_chain=return_chain,
            mask=register_mask,
            guidance_scale=self.sampling.guidance_scale if guidance_scale is None else guidance_scale,
            checkpoint=self.sampling.checkpoint,
            callback=callback,
            check_finite=not self.training,
        )
        return Registers(
            result[-1] if return_chain else result, condition, prior, start, result if return_chain else None
        )

    def loss(
        self,
        targets: Float[Tensor, "b n d"],
        registers: Registers,
        generator: torch.Generator | None = None,
        *,
        register_mask: Bool[Tensor, "b n"] | None = None,
    ) -> dict[str, Float[Tensor, ""]]:
        """The unweighted terms of the evidence bound that this kind has.

        "prior_kl" = KL(prior || N(0, I)), summed over channels and averaged over rows; "diffusion" = mean squared error
        of the prediction, of the noise or what `prediction_type` says. Without a prior the first is missing, without a
        diffusion the second.

        Args:
            targets: What r_0 should look like, for example `TextualPerturbation` of the row's texts.
            registers: What `forward` gave for the same rows.
            generator: Source of timesteps and noise.
            register_mask: As in `forward`: only valid registers count.

        Raises:
            ValueError: Targets of a shape other than the registers'.
        """
        if targets.shape != registers.tokens.shape:
            raise ValueError(
                f"targets: got shape {tuple(targets.shape)}, expected {tuple(registers.tokens.shape)}, one per register"
            )
        terms = {}
        if registers.prior is not None:
            terms["prior_kl"] = registers.prior.kl()
        if self.diffusion is not None:
            noise = self.noise.of_loss(registers.start)
            timesteps = "all" if self.loss_timesteps == "all" else None
            terms["diffusion"] = self._diffusion().loss(
                targets,
                registers.condition,
                noise,
                timesteps,
                generator,
                mask=register_mask,
                check_range=False,  # that registers lie in what they are clipped to is wanted
            )
        return terms

    def _diffusion(self) -> ConditionalDiffusion:
        if self.diffusion is None:
            raise ValueError("this generator has no diffusion")
        return self.diffusion

    def _start(
        self, prior: Gaussian | None, like: Tensor, fixed: Tensor | None, generator: torch.Generator | None
    ) -> Tensor:
        """r_T, (b, n, d); `fixed` are the (n, d) numbers of eval mode."""
        if prior is None:
            return standard_normal(like.shape, like, generator) if fixed is None else fixed.expand_as(like)
        if self.sample_prior:
            return prior.sample(self.num_registers, generator, None if fixed is None else fixed.unsqueeze(0))
        return prior.mean.unsqueeze(1).expand_as(like)


_OF_DIFFUSION = ("denoiser.", "null_condition", "data_low", "data_high")


def _leave_out_diffusion(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    """In a state dict the tensors of the diffusion stand as `denoiser.…`, as every version has written them."""
    inside = f"{prefix}diffusion."
    items = [(prefix + name[len(inside) :] if name.startswith(inside) else name, state[name]) for name in state]
    state.clear()
    state.update(items)


def _put_in_diffusion(module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    """What `_leave_out_diffusion` left out; names with it are taken too."""
    for name in list(state):
        if name.startswith(tuple(prefix + part for part in _OF_DIFFUSION)):
            state[f"{prefix}diffusion.{name[len(prefix) :]}"] = state.pop(name)


def _expect_finite(name: str, values: Tensor) -> None:
    """Refuse rows that are not finite, on the CPU alone: elsewhere asking would wait for the device."""
    if not readable(values):
        return
    finite = values.isfinite().flatten(1).all(1)
    if not bool(finite.all()):
        raise ValueError(
            f"features: the {name} of row {int(finite.int().argmin())} is not finite, so the features hold NaN, "
            "infinite or huge values (or the weights do); expected finite numbers at all valid positions"
        )
