"""Conditional diffusion: any denoiser, a diffusers scheduler, a loss and a differentiable sampler."""

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from regdiff.conditioning import check_condition, dropped, null_of, repeated
from regdiff.forward import ForwardProcess, Weighting
from regdiff.graphs import Graphs, graphable
from regdiff.hub import Saveable
from regdiff.losses import KLToTarget, mean_loss, mse
from regdiff.masks import expect_mask, masked, readable
from regdiff.noise import Generators, noise_of, uniform
from regdiff.predictor import Denoiser, Predictor
from regdiff.reverse import Callback, ReverseProcess
from regdiff.schedule import Schedule, Scheduler, descending_timesteps, schedule_of
from regdiff.schedulers import (
    Capabilities,
    capabilities,
    check_own_noise,
    clip_of,
    described,
    make_scheduler,
    prediction_type_of,
    scheduler_like,
    scheduler_of,
)
from regdiff.solver import Stage, stages_of
from regdiff.timestep import TimedDenoiser

#: Integers, as a list or as a tensor like `scheduler.timesteps` of diffusers.
Timesteps = Sequence[int] | Tensor

#: Lists of timesteps whose weights a `ConditionalDiffusion` keeps.
_KEPT = 64

#: A target may be so much larger than what samples are clipped to before `loss` warns.
_ROUNDING = 1.001

#: Where the denoisers are that config.json may name.
_DENOISERS = {"TransformerDenoiser": "regdiff.transformer", "RegisterDenoiser": "regdiff.registers"}

#: What options in [0, 1] are, also when they are set.
_RANGES = {
    "eta": "number in [0, 1] (0 = deterministic, 1 = DDPM variance)",
    "condition_dropout": "probability in [0, 1]",
}

#: Options that config.json holds as they are.
_NUMBERS = ("eta", "use_clipped_model_output", "weighting", "snr_gamma", "condition_dropout")


class ConditionalDiffusion(nn.Module, Saveable):
    r"""Denoising diffusion (Ho et al. 2020; Song et al. 2021) of a tensor, given a condition.

    Training: x_t = signal_t x_0 + sigma_t eps, and loss_fn(denoiser(x_t, t, condition), target) where the target is
    eps, x_0, the velocity signal_t eps - sigma_t x_0 or the flow eps - x_0, as the scheduler's `prediction_type` says.
    A variance-preserving scheduler has signal_t = sqrt(abar_t) and sigma_t = sqrt(1 - abar_t); a flow has 1 - s_t and
    s_t. Sampling: the weights of the scheduler's own `step`, from `initial` down to the clean sample, differentiable
    throughout; x is in this form everywhere, whatever the scheduler works with inside. Each prediction is first turned
    into an estimate of x_0, which is clipped where the scheduler's configuration says so (`clip_sample`, True from
    `make_scheduler`): on a schedule that ends in pure noise the estimate from eps is divided by next to nothing, and
    one that is not clipped can be off by hundreds.

    It is a module that owns its denoiser and its null condition: their parameters are its own, and `save_pretrained`
    writes them with the scheduler. `diffusion.denoiser = other`, and every other option that is set, takes effect at
    once and is saved; a scheduler is set as by `with_scheduler`. Calling it is calling `loss`, as
    DistributedDataParallel wants it. The scheduler handed in is never changed, and no step waits for a GPU.

    On a CUDA device, in eval mode and without gradients, `sample` runs all steps as one CUDA graph from the second call
    with the same shapes, dtypes and options on; weights that are changed in place are seen, others make a new graph.
    The attribute `cuda_graph` switches that; it begins as True for the denoisers of this package alone, as the Python
    code of one runs only while a graph is made. With gradients there is none: a graph holds the activations of one
    call, which a second call before the backward pass would overwrite. A training loop may capture its whole step.

    `process` adds noise and gives targets in `loss`, `sampling_schedule` has the numbers of the steps in `sample`: both
    follow from `schedule`, and may be replaced by rounded ones to reproduce code that stores its schedule in float32.

    Args:
        denoiser: Any `Denoiser`; a plain function has no parameters and is not saved. One with an attribute
            `prediction_type` declares what it predicts, and must agree with the scheduler; of any other nothing can be
            known, so one that was trained to say x_0 would be read as noise by a scheduler for epsilon.
        scheduler: One of `regdiff.SCHEDULERS`; `make_scheduler` makes one by name. A name alone suffices for a denoiser
            that has `steps`, its T.
        loss_fn: (prediction, target) -> a scalar, or one value per row, per register or per element. One with a
            keyword `mask` is given the mask.
        eta: Noise scale of DDIM (0 is deterministic, 1 has the variance of DDPM) and of TCD, whose paper calls it gamma
            (0 is deterministic, 1 replaces all noise, 0.3 is diffusers' default). Other schedulers ignore it.
        use_clipped_model_output: Whether DDIM takes the direction of a step from the clipped estimate of x_0 too (True,
            as GLIDE and DreamPRVR do, and as every other scheduler does) or from the prediction as it is (False,
            diffusers' default). Without clipping the two are the same.
        weighting: Of timesteps in the loss: "uniform", or "min_snr" (Hang et al. 2023; see `min_snr_weights`).
        snr_gamma: The cap of "min_snr".
        condition_dropout: Probability with which `loss` replaces the condition of a row by the null condition, so that
            `sample` can be guided (Ho and Salimans 2022). As with nn.Dropout, nothing is dropped in eval mode.
        null_condition: A pytree like the condition, broadcastable to it; see `regdiff.conditioning.null_of`. An
            nn.Parameter becomes one of this module, any other tensor a buffer. The tensors of a larger pytree are
            called `null_condition_0` and so on.
        data_range: (low, high) of the targets, numbers or tensors that broadcast to a sample, such as
            (data.amin(0), data.amax(0)): targets are mapped from it to [-1, 1], what samples are clipped to, and
            samples back. A coordinate that is constant, low = high, is mapped to 0 and comes back as it is. Its tensors
            are buffers. None is for targets in [-1, 1], or within the scheduler's
            `clip_sample_range`.

    Raises:
        ValueError: Unsupported scheduler, prediction type or option, a number out of its range, a denoiser or loss_fn
            that cannot be called, or a denoiser whose `steps` are not the T of the scheduler, or whose
            `prediction_type` is not the scheduler's.

    Examples:
        >>> import torch
        >>> from regdiff import make_scheduler
        >>> diffusion = ConditionalDiffusion(lambda x, timestep, condition: x - condition, make_scheduler("ddim", 10))
        >>> target, condition = torch.zeros(4, 2, 8), torch.zeros(4, 1, 8)
        >>> diffusion.loss(target, condition).shape
        torch.Size([])
        >>> diffusion.sample(torch.randn(4, 2, 8), condition, num_steps=5).shape
        torch.Size([4, 2, 8])
    """

    def __init__(
        self,
        denoiser: Denoiser,
        scheduler: Scheduler | str,
        *,
        loss_fn: Callable[..., Tensor] = mse,
        eta: float = 1.0,
        use_clipped_model_output: bool = True,
        weighting: Weighting = "uniform",
        snr_gamma: float = 5.0,
        condition_dropout: float = 0.0,
        null_condition: Any = None,
        data_range: tuple[float | Tensor, float | Tensor] | None = None,
    ) -> None:
        if isinstance(scheduler, str):
            steps = getattr(denoiser, "steps", None)
            if steps is None:
                raise ValueError(
                    f"scheduler: got the name {scheduler!r} for a denoiser without `steps`; "
                    f"make_scheduler({scheduler!r}, T) makes it for T timesteps"
                )
            scheduler = make_scheduler(scheduler, steps)
        prediction_type = prediction_type_of(scheduler)
        if isinstance(loss_fn, KLToTarget) and prediction_type != "sample":
            raise ValueError(
                f"loss_fn: KLToTarget compares clean samples, got a scheduler with prediction_type "
                f"{prediction_type!r}, expected 'sample'"
            )
        if isinstance(loss_fn, KLToTarget) and data_range is not None:
            raise ValueError("data_range: KLToTarget compares distributions as they are; expected None")
        super().__init__()
        self._hub_mixin_config = None  # `_describe` says what is saved
        self._schedule = schedule_of(scheduler)
        self.process = ForwardProcess(self.schedule, prediction_type, weighting=weighting, snr_gamma=snr_gamma)
        self.denoiser = denoiser
        self._scheduler, self._capabilities = copy.deepcopy(scheduler), capabilities(scheduler)
        self.loss_fn = loss_fn
        self.eta = eta
        self.use_clipped_model_output = use_clipped_model_output
        self._warned = False
        self._stages: dict[tuple[Any, ...], tuple[Stage, ...]] = {}
        self._graphs = Graphs()
        self.cuda_graph = isinstance(denoiser, TimedDenoiser)
        self.condition_dropout = condition_dropout
        self._own_null_condition(null_condition)
        self._own_range(data_range)
        self.sampling_schedule = self.schedule

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "denoiser":
            _expect_denoiser(value, len(self.schedule), self.prediction_type)
            if not isinstance(value, nn.Module):
                self._modules.pop(name, None)  # torch refuses a function where a module was
        elif name in _RANGES and not 0 <= value <= 1:
            raise ValueError(f"{name}: got {value}, expected a {_RANGES[name]}")
        elif name == "loss_fn" and not callable(value):
            raise ValueError(f"loss_fn: got {value!r}, expected a function (prediction, target) -> loss")
        super().__setattr__(name, value)  # pyright: ignore[reportArgumentType]  which torch takes of any type

    @property
    def schedule(self) -> Schedule:
        """Signal and noise of each timestep, in float64: what the denoiser learned."""
        return self._schedule

    @property
    def prediction_type(self) -> str:
        """What the denoiser predicts."""
        return self.process.prediction_type

    @property
    def weighting(self) -> Weighting:
        """The weighting of timesteps in the loss. It may be set."""
        return self.process.weighting

    @weighting.setter
    def weighting(self, value: Weighting) -> None:
        self.process = replace(self.process, weighting=value)

    @property
    def snr_gamma(self) -> float:
        """The cap of "min_snr". It may be set."""
        return self.process.snr_gamma

    @snr_gamma.setter
    def snr_gamma(self, value: float) -> None:
        self.process = replace(self.process, snr_gamma=value)

    @property
    def scheduler(self) -> Scheduler:
        """The sampler. It may be set, to what `with_scheduler` takes."""
        return self._scheduler

    @scheduler.setter
    def scheduler(self, scheduler: Scheduler | str) -> None:
        if isinstance(scheduler, str):
            scheduler = scheduler_like(self.scheduler, scheduler)
        kind, schedule = prediction_type_of(scheduler), schedule_of(scheduler)
        for what, own, value in (
            ("num_train_timesteps", len(self.schedule), len(schedule)),
            ("prediction_type", self.prediction_type, kind),
        ):
            if own != value:
                raise ValueError(f"scheduler: has {what} {value!r}, expected {own!r}, as the denoiser was trained")
        # Signal-to-noise in two forms of the same schedule differs by rounding alone; different schedules by far more.
        if not torch.allclose(self.schedule.signal, schedule.signal, rtol=1e-3, atol=1e-6):
            raise ValueError(
                f"scheduler: the noise schedule of {type(scheduler).__name__} differs from the one the denoiser was "
                f"trained on ({self.capabilities.scheduler}); expected the same betas (or shift), as made by "
                f"{type(scheduler).__name__}.from_config(diffusion.scheduler.config)"
            )
        self._scheduler, self._capabilities = copy.deepcopy(scheduler), capabilities(scheduler)

    @property
    def num_train_timesteps(self) -> int:
        """T, the number of timesteps of the schedule."""
        return len(self.schedule)

    def __getattr__(self, name: str) -> Any:
        """abar_t in float64 is `alphas_cumprod`, of a variance-preserving schedule."""
        if name != "alphas_cumprod":
            return super().__getattr__(name)
        if self.schedule.alphas_cumprod is None:
            raise AttributeError("alphas_cumprod: a flow has none; schedule.signal and schedule.sigma are its numbers")
        return self.schedule.alphas_cumprod

    @property
    def capabilities(self) -> Capabilities:
        """What the scheduler can do here."""
        return self._capabilities

    def with_scheduler(self, scheduler: Scheduler | str) -> "ConditionalDiffusion":
        """The same denoiser and options with another sampler.

        Args:
            scheduler: Must have the same T, noise schedule and prediction type: those are what the denoiser learned. A
                name makes one that has them, and the clipping of this one.

        Raises:
            ValueError: It differs in one of these, or is not supported.

        Examples:
            >>> from regdiff import make_scheduler
            >>> diffusion = ConditionalDiffusion(lambda x, timestep, condition: x, make_scheduler("ddim", 10))
            >>> diffusion.with_scheduler("euler").capabilities.name
            'euler'
        """
        other = copy.copy(self)
        for name in ("_modules", "_parameters", "_buffers"):  # the copy has its own, of the same tensors
            setattr(other, name, dict(getattr(self, name)))
        other.scheduler = scheduler
        return other

    def add_noise(
        self, target: Float[Tensor, "b *s"], noise: Float[Tensor, "b *s"], timesteps: Int[Tensor, "b"]
    ) -> Float[Tensor, "b *s"]:
        """The forward process: signal_t target + sigma_t noise, row by row, of the target mapped from `data_range`.

        Args:
            target: Clean samples x_0.
            noise: eps.
            timesteps: One timestep in [0, T) per row, checked as in `loss`.

        Raises:
            ValueError: Timesteps that are not integers in [0, T), one per row.
        """
        timesteps = _timesteps_of_rows(timesteps, target, self.num_train_timesteps)
        return self.process.add_noise(self._mapped(target), noise, timesteps)

    def loss(
        self,
        target: Float[Tensor, "b *s"],
        condition: Any,
        noise: Float[Tensor, "..."] | None = None,
        timesteps: Int[Tensor, "b"] | Sequence[int] | Literal["all"] | None = None,
        generator: torch.Generator | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
        check_range: bool = True,
    ) -> Float[Tensor, ""]:
        """The denoising loss of Ho et al. (2020), eq. 14, for one random timestep per row or for all of them.

        Args:
            target: Clean samples x_0 in floating point; gradients flow into it.
            condition: Any pytree of tensors whose first axis is the batch (scalars and other leaves pass untouched).
            noise: None draws fresh Gaussian noise; sample shape is used for every timestep; (T, *sample) is one per
                timestep (row i takes noise[t_i, i]). Gradients flow into it.
            timesteps: None draws one per row uniformly; "all" takes the mean over all T; a tensor or list fixes one per
                row. Its values are checked on the CPU alone: elsewhere, looking would mean waiting.
            generator: Source of the draws.
            mask: (b, n), True at valid registers: the loss is their mean, whatever the others hold.
            check_range: Warn, once, of a target on the CPU that is larger than what samples are clipped to.

        Raises:
            ValueError: A target that is not a tensor of floating point, noise, timesteps, condition or mask of a wrong
                shape, timesteps that are not integers in [0, T), a loss_fn that returns too little for a mask or for
                weights, or a denoiser that returns anything but a tensor like the sample.
            TypeError: A mask for a denoiser without that keyword.
        """
        _expect_floating("target", target)
        _expect_generators((generator,))
        rows, steps = target.shape[0], self.num_train_timesteps
        check_condition(condition, rows)
        if mask is not None:
            expect_mask("mask", mask, target.shape[:2])
        target = self._mapped(target)
        if check_range:
            self._warn_of_range(masked(target, mask))
        if isinstance(timesteps, str):
            if timesteps != "all":
                raise ValueError(f"timesteps: got {timesteps!r}, expected None, 'all' or one integer per row")
            noise = noise_of(noise, target, steps, generator).reshape(steps * rows, *target.shape[1:])
            target = target.expand(steps, *target.shape).reshape(steps * rows, *target.shape[1:])
            condition, mask = repeated(condition, steps), repeated(mask, steps)
            timesteps = torch.arange(steps, device=target.device).repeat_interleave(rows)
        else:
            if timesteps is not None:
                timesteps = _timesteps_of_rows(timesteps, target, steps)
            else:
                device = target.device if generator is None else generator.device
                timesteps = torch.randint(steps, (rows,), generator=generator, device=device).to(target.device)
            if noise is None or noise.shape == target.shape:
                noise = noise_of(noise, target, 1, generator)[0]
            else:
                each = torch.arange(rows, device=timesteps.device)
                noise = noise_of(noise, target, steps, generator)[timesteps, each]
        if self.condition_dropout > 0 and self.training:
            dropout_mask = uniform(len(target), target.device, generator) < self.condition_dropout
            condition = dropped(condition, null_of(condition, self._null_condition()), dropout_mask)
        target, noise = masked(target, mask), masked(noise, mask)
        x = self.process.add_noise(target, noise, timesteps)
        prediction = Predictor(self.denoiser, condition, mask)(x, timesteps)
        expected = self.process.training_target(target, noise, timesteps)
        return mean_loss(self.loss_fn, prediction, expected, mask, self.process.weights(prediction, timesteps))

    def sample(
        self,
        initial: Float[Tensor, "b *s"],
        condition: Any,
        num_steps: int | None = None,
        timesteps: Timesteps | None = None,
        noise: Float[Tensor, "..."] | None = None,
        generator: Generators | None = None,
        return_chain: bool = False,
        *,
        mask: Bool[Tensor, "..."] | None = None,
        guidance_scale: float | None = None,
        checkpoint: bool = False,
        callback: Callback | None = None,
        check_finite: bool = True,
    ) -> Float[Tensor, "b *s"] | Float[Tensor, "k b *s"]:
        """Run the reverse process from `initial`; gradients flow through every step.

        Args:
            initial: x at the first timestep: a Gaussian draw, or a truncated start as `add_noise` gives it.
            condition: As in `loss`.
            num_steps: Number of steps, spaced as the scheduler's `timestep_spacing` says; a flow evenly from T - 1.
                None takes all T.
            timesteps: A strictly descending list or tensor instead; even or uneven, it may start below T - 1.
            noise: The noise added after each step. None draws fresh Gaussian noise; sample shape is reused in every
                step; (steps, *sample) gives one per step.
            generator: Source of the draws, or one for each row, whose noise is then the same in any batch.
            return_chain: Return every x after a step, (steps, b, ...), the result last, instead of the result.
            mask: (b, n), True at valid registers; the others are zero throughout and change nothing.
            guidance_scale: w of classifier-free guidance, null + w (conditional - null), from one denoiser call with
                2b rows; None or 1 is the plain prediction. Others need a null condition that the denoiser has learned:
                `condition_dropout` above 0, or `null_condition`.
            checkpoint: Recompute each denoiser call in the backward pass instead of keeping its activations.
            callback: Called after each step, see `Callback`.
            check_finite: Look at the start, where it is on the CPU; a training loop may rather find NaN in its loss.

        Raises:
            ValueError: More steps than trained, timesteps out of order or range, noise or mask of a wrong shape, noise
                where the sampler takes none, guidance without a null condition, or a start that is not a tensor of
                floating point or, on the CPU, not finite (on an accelerator, looking would mean waiting).
            TypeError: A mask for a denoiser without that keyword.

        Examples:
            >>> import torch
            >>> from regdiff import make_scheduler
            >>> clean = torch.tensor([[0.5, -0.5]])
            >>> scheduler = make_scheduler("dpmsolver++", 4, prediction_type="sample")
            >>> oracle = ConditionalDiffusion(lambda sample, timestep, condition: clean, scheduler)
            >>> oracle.sample(torch.randn(1, 2), None)
            tensor([[ 0.5000, -0.5000]])
        """
        _expect_floating("initial", initial)
        _expect_generators(generator if isinstance(generator, Sequence) else (generator,))
        check_condition(condition, initial.shape[0])
        if mask is not None:
            expect_mask("mask", mask, initial.shape[:2])
        stages, limit = self.stages(num_steps, timesteps), clip_of(self.scheduler)
        process = ReverseProcess(stages, self.prediction_type, limit, generator, callback, every=return_chain)
        if noise is not None:
            check_own_noise(self.capabilities, self.eta)
            noise = noise_of(noise, initial, stages[-1].step + 1, None)
        if check_finite and readable(initial) and not masked(initial, mask).isfinite().all():
            raise ValueError("initial: got nan or infinite values, expected finite ones; look at what made the start")

        def run(inputs: dict[str, Any]) -> Tensor:
            predictor = self._predictor(inputs.get("condition"), inputs.get("mask"), guidance_scale, checkpoint)
            states = process(predictor, inputs["initial"], inputs.get("noise"))
            restored = [self._restored(x, predictor.mask) for x in states]
            return torch.stack(restored) if return_chain else restored[-1]

        inputs = {"initial": initial, "condition": condition, "mask": mask, "noise": noise}
        inputs = {name: value for name, value in inputs.items() if value is not None}
        if callback is not None or checkpoint or not (self.cuda_graph and graphable(self, inputs)):
            return run(inputs)
        if noise is None and stages[0].noise:  # outside of the graph, from any generator
            inputs["noise"] = process.noise_like(initial)
        weights = [*self.parameters(), *self.buffers()]
        return self._graphs(run, inputs, (stages, limit, guidance_scale, return_chain, self.denoiser), weights)

    def _predictor(
        self, condition: Any, mask: Tensor | None, guidance_scale: float | None = None, checkpoint: bool = False
    ) -> Predictor:
        """The denoiser with all but the sample and its timestep given, as a sampler asks it."""
        options: dict[str, Any] = {"guidance_scale": guidance_scale, "checkpoint": checkpoint}
        null = self._null_condition()
        predictor = Predictor(self.denoiser, condition, mask, null_condition=null, **options)
        if predictor.scale is not None and self.condition_dropout == 0 and null is None:
            raise ValueError(
                f"guidance_scale: got {guidance_scale}, but without condition_dropout the denoiser learns no null "
                "condition; train with condition_dropout above 0, or give null_condition"
            )
        return predictor

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_graphs": Graphs()}  # they cannot be copied

    def forward(self, *args: Any, **kwargs: Any) -> Float[Tensor, ""]:
        """`loss`."""
        return self.loss(*args, **kwargs)

    @property
    def data_range(self) -> tuple[Tensor, Tensor] | None:
        """(low, high) of the targets; None where they are taken as they are."""
        return None if self.data_low is None else (self.data_low, self.data_high)

    def _own_range(self, data_range: tuple[float | Tensor, float | Tensor] | None) -> None:
        """Registers the ends of the range of the targets."""
        low = high = None
        if data_range is not None:
            try:
                low, high = (torch.as_tensor(end, dtype=torch.get_default_dtype()) for end in data_range)
                width = high - low
                if readable(width) and not (((width >= 0) & width.isfinite()).all() and (width > 0).any()):
                    raise ValueError("the width is negative, not finite, or zero everywhere")
            except (TypeError, ValueError, RuntimeError) as error:
                raise ValueError(
                    f"data_range: got {data_range}, expected (low, high) with low below high, or equal where a "
                    "coordinate is constant, both finite"
                ) from error
        self.register_buffer("data_low", low)
        self.register_buffer("data_high", high)

    def _mapped(self, target: Tensor) -> Tensor:
        """A target in the form that the denoiser knows, [-1, 1] for the values of `data_range`."""
        if self.data_low is None:
            return target
        low = self.data_low.to(target.dtype)
        high = self.data_high.to(target.dtype)
        width = high - low
        return (2 * target - low - high) / torch.where(width > 0, width, 1)

    def _restored(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """The inverse of `_mapped`; invalid registers are zero in the units of the data, too."""
        if self.data_low is None:
            return x
        low, high = self.data_low.to(x.dtype), self.data_high.to(x.dtype)
        return masked((x * (high - low) + low + high) / 2, mask)

    def _warn_of_range(self, target: Tensor) -> None:
        """Warns once of a target, mapped, that samples cannot reach; on the CPU alone."""
        limit = clip_of(self.scheduler)
        if limit is None or self._warned or not readable(target):
            return
        reach = target.detach().abs().amax().item() if target.numel() else 0.0
        if reach > _ROUNDING * limit:
            self._warned = True
            mapped = "" if self.data_low is None else " after data_range is mapped to [-1, 1]"
            warnings.warn(
                f"target: got values up to {reach:.3g}{mapped}, but samples are clipped to [-{limit:g}, {limit:g}]; "
                "give ConditionalDiffusion data_range=(low, high) of the data, or the scheduler a clip_sample_range",
                stacklevel=3,
            )

    def _own_null_condition(self, null: Any) -> None:
        """Registers the tensors of a null condition under names of their own."""
        self._null_structure: TreeSpec | None = None
        self._null_names: list[str] = []
        leaves: list[Any] = [null]
        if null is None or isinstance(null, Tensor):
            names = ["null_condition"]
        else:
            leaves, self._null_structure = tree_flatten(null)
            names = self._null_names = [f"null_condition_{i}" for i in range(len(leaves))]
        for name, leaf in zip(names, leaves, strict=True):
            if isinstance(leaf, Tensor) and not isinstance(leaf, nn.Parameter):
                self.register_buffer(name, leaf)
            else:
                setattr(self, name, leaf)

    def _null_condition(self) -> Any:
        """The null condition as it was given, of the tensors that this module has now."""
        if self._null_structure is None:
            return self.null_condition
        return tree_unflatten([getattr(self, name) for name in self._null_names], self._null_structure)

    def stages(self, num_steps: int | None = None, timesteps: Timesteps | None = None) -> tuple[Stage, ...]:
        """The calls of the denoiser that `sample` makes with these arguments, and the weights of each step.

        They are computed once, on the CPU, and kept. torch.export wants them computed before.

        Args:
            num_steps: As of `sample`.
            timesteps: As of `sample`.

        Raises:
            ValueError: As `sample`.
            RuntimeError: They would have to be computed while a graph is exported.
        """
        values = None if timesteps is None else tuple(map(float, timesteps))  # tensors hash by identity
        key = self._key(num_steps, values)
        if key in self._stages:
            return self._stages[key]
        if torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling():  # up to torch 2.10 it is both
            raise RuntimeError(
                "stages: the weights of these timesteps are not computed yet, and diffusers' steps cannot be "
                "traced; call diffusion.stages(num_steps, timesteps) once before exporting"
            )
        return self._compute_stages(num_steps, values)

    def _compute_stages(self, num_steps: int | None, values: tuple[float, ...] | None) -> tuple[Stage, ...]:
        """`stages`, computed and kept."""
        key = self._key(num_steps, values)
        order = descending_timesteps(self.scheduler, self.num_train_timesteps, num_steps, values)
        if len(self._stages) >= _KEPT:
            self._stages.clear()
        self._stages[key] = stages_of(self.scheduler, self.sampling_schedule, order, *key[-2:])
        return self._stages[key]

    # Dynamo takes what comes out, and does not trace diffusers. This is all that torch.compiler.assume_constant_result
    # does after it has imported Dynamo, which takes as long as the rest of torch.
    setattr(_compute_stages, "_dynamo_marked_constant", True)  # noqa: B010

    def _key(self, num_steps: int | None, values: tuple[float, ...] | None) -> tuple[Any, ...]:
        """Of `_stages`: all that these depend on."""
        steps = self.num_train_timesteps if values is None and num_steps is None else num_steps
        return self.scheduler, self.sampling_schedule, steps, values, self.eta, self.use_clipped_model_output

    def _describe(self) -> dict[str, Any]:
        """What `from_config` needs: all but functions and modules of other packages, which must be given to it."""
        loss = {"mse": None} if self.loss_fn is mse else None
        if isinstance(self.loss_fn, KLToTarget):
            loss = {"KLToTarget": self.loss_fn.temperature}
        denoiser: Any = self.denoiser
        name = type(denoiser).__name__
        own = name in _DENOISERS and type(denoiser) is _denoiser_class(name)
        null = self._null_condition()
        return {name: getattr(self, name) for name in _NUMBERS} | {
            "denoiser": {name: denoiser._hub_mixin_config} if own else None,
            "scheduler": described(self.scheduler),
            "loss_fn": loss,
            "data_range": None if self.data_range is None else [end.tolist() for end in self.data_range],
            "null_condition": {"shape": list(null.shape), "trained": isinstance(null, nn.Parameter)}
            if isinstance(null, Tensor)
            else {"given": null is not None},
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], **options: Any) -> "ConditionalDiffusion":
        """A new diffusion as config.json describes it.

        Args:
            config: What config.json holds.
            options: Arguments of the constructor that take the place of those in `config`. A denoiser that is not one
                of this package's, a scheduler that is not one of diffusers', a custom loss function and a null
                condition of several tensors must be given.

        Raises:
            ValueError: One of these is missing.
        """
        values = {**config, **{name: value for name, value in options.items() if value is not config.get(name)}}
        for name in ("denoiser", "scheduler", "loss_fn"):
            if values.get(name) is None:
                owner = "diffusers" if name == "scheduler" else "regdiff"
                raise ValueError(
                    f"config.json: the {name} is not part of {owner} and was not saved; pass {name}= to from_pretrained"
                )
        if isinstance(values["denoiser"], dict):
            ((name, arguments),) = values["denoiser"].items()
            values["denoiser"] = _denoiser_class(name).from_config(arguments, **arguments)
        if isinstance(values["scheduler"], dict):
            values["scheduler"] = scheduler_of(values["scheduler"])
        if isinstance(values["data_range"], list):
            values["data_range"] = tuple(map(torch.tensor, values["data_range"]))
        if isinstance(values["loss_fn"], dict):
            ((name, temperature),) = values["loss_fn"].items()
            values["loss_fn"] = mse if name == "mse" else KLToTarget(temperature)
        null = values.get("null_condition")
        if isinstance(null, dict) and null.keys() <= {"shape", "trained", "given"}:
            if null.get("given"):
                raise ValueError("config.json: its null condition has several tensors; pass null_condition=")
            zeros = torch.zeros(null["shape"]) if "shape" in null else None
            values["null_condition"] = nn.Parameter(zeros) if zeros is not None and null["trained"] else zeros
        return cls(**values)


def _denoiser_class(name: str) -> Any:
    """A denoiser of this package by the name of its class; imported now, for the core does without registers."""
    return getattr(import_module(_DENOISERS[name]), name)


def _expect_denoiser(denoiser: Any, steps: int, prediction_type: str) -> None:
    """Refuse what cannot be called, and a denoiser that says that it is for another T or predicts something else."""
    if not callable(denoiser):
        raise ValueError(f"denoiser: got {type(denoiser).__name__}, expected a network (sample, timestep, condition)")
    for name, own in (("steps", steps), ("prediction_type", prediction_type)):
        declared = getattr(denoiser, name, own)
        if isinstance(declared, type(own)) and declared != own:
            raise ValueError(
                f"denoiser: is for {declared!r} (`{name}`), but the scheduler has {own!r}; make both alike"
            )


def _expect_floating(name: str, values: Any) -> None:
    """Refuse what is no tensor of floating point: a shape, an array, class indices."""
    if not isinstance(values, Tensor):
        shape = isinstance(values, (tuple, list)) and all(isinstance(size, int) for size in values)
        hint = f"torch.randn({tuple(values)}) is a start from pure noise" if shape else "see torch.as_tensor"
        raise ValueError(f"{name}: got {type(values).__name__}, expected a tensor of floating point; {hint}")
    if not values.is_floating_point():
        raise ValueError(f"{name}: got {values.dtype}, expected floating point; convert it (`.float()`)")


def _expect_generators(generators: Sequence[Any]) -> None:
    """Refuse a seed, which is what many libraries take."""
    for generator in generators:
        if generator is not None and not isinstance(generator, torch.Generator):
            raise ValueError(
                f"generator: got {generator!r}, expected a torch.Generator, as torch.Generator().manual_seed(7)"
            )


def _timesteps_of_rows(values: Any, target: Tensor, steps: int) -> Tensor:
    """One timestep per row, none of which indexes from the end of the schedule, or beyond it."""
    rows = len(target)
    timesteps = values if isinstance(values, Tensor) else torch.as_tensor(values, device="cpu")
    if timesteps.shape != (rows,):
        raise ValueError(f"timesteps: got shape {tuple(timesteps.shape)}, expected one per row, ({rows},)")
    if timesteps.is_floating_point() or timesteps.dtype == torch.bool:
        raise ValueError(f"timesteps: got {timesteps.dtype}, expected integers in [0, {steps})")
    lowest, highest = (timesteps.min().item(), timesteps.max().item()) if rows and readable(timesteps) else (0, 0)
    if lowest < 0 or highest >= steps:
        raise ValueError(
            f"timesteps: got {lowest if lowest < 0 else highest}, expected integers in [0, {steps}), the trained ones"
        )
    return timesteps if isinstance(values, Tensor) else timesteps.to(target.device)
