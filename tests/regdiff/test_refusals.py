"""Bad input, one case for each check: what was got, what was expected, how to mend it."""

import math
from collections.abc import Callable
from functools import partial

import diffusers.schedulers
import pytest
import torch
from torch import Tensor

from regdiff import ConditionalDiffusion, KLToTarget, karras_timesteps, make_scheduler
from regdiff.registers import (
    GeneralizedPooling,
    RegisterDenoiser,
    RegisterGenerator,
    TextualPerturbation,
    make_register_generator,
)
from regdiff.transformer import TransformerDenoiser

pytestmark = pytest.mark.usefixtures("unchecked")

X, C = torch.zeros(3, 2, 4), torch.zeros(3, 2, 4)
FEATURES, TIMES = torch.zeros(5, 10, 8), torch.tensor([0, 1, 2])


def build(denoiser: object = lambda x, t, c: 0.5 * x, name: str = "ddim", **options: object) -> ConditionalDiffusion:
    kind = {key: options.pop(key) for key in ("prediction_type",) if key in options}
    return ConditionalDiffusion(denoiser, make_scheduler(name, 5, **kind), **options)  # type: ignore[arg-type]


def theirs(kind: str, **options: object) -> ConditionalDiffusion:
    """With a scheduler made by diffusers."""
    return ConditionalDiffusion(torch.tanh, getattr(diffusers.schedulers, f"{kind}Scheduler")(**options))


multistep = partial(theirs, "DPMSolverMultistep")


def registers(**options: object) -> RegisterGenerator:
    return make_register_generator(8, 3, 2, steps=5, **options)  # type: ignore[arg-type]


def ladder(num_steps: int, **ends: float) -> list[int]:
    return karras_timesteps(build().schedule, num_steps, **ends)


def returns(output: Callable[[Tensor], object]) -> Callable[[], Tensor]:
    return lambda: build(lambda x, t, c: output(x)).loss(X, None)


@pytest.mark.filterwarnings("ignore:.*deprecated")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: build(eta=2.0), "eta: got 2"),
        (lambda: build(condition_dropout=1.5), "condition_dropout: got 1.5, expected a probability"),
        (lambda: build(weighting="snr"), "weighting: got 'snr', expected 'uniform' or 'min_snr'"),
        (lambda: build(3), "denoiser: got int, expected a network"),
        (lambda: build(RegisterDenoiser(4, steps=12)), r"denoiser: is for 12 \(`steps`\), .* has 5"),
        (lambda: ConditionalDiffusion(torch.tanh, "ddim"), r"got the name 'ddim' for a denoiser without `steps`"),
        (lambda: build(loss_fn=KLToTarget()), "KLToTarget .*prediction_type 'epsilon', expected 'sample'"),
        (lambda: make_scheduler("pndm", 10), r"name: got 'pndm', expected one of ddpm, ddim, dpmsolver\+\+"),
        (lambda: make_scheduler("ddim", 9, etta=1), r"options: got etta, expected some of .*beta_schedule"),
        (lambda: make_scheduler("euler", 9, use_karras_sigmas=True), "use_karras_sigmas: got True.*karras_timesteps"),
        (lambda: ladder(6), "num_steps: got 6, expected 2 to 5"),
        (lambda: TransformerDenoiser(8, 5, num_heads=3), "num_heads: got 3 with dim 8, expected a divisor of dim"),
        (lambda: registers(kind="pool"), "kind: got 'pool', expected one of 'diffusion', 'condition', 'pooled'"),
        (lambda: registers(kind="prior", start="gaussian"), "start: got 'gaussian' with kind 'prior'"),
        (lambda: registers(scheduler="flow"), "it predicts the flow"),
        (lambda: registers(guidance_scale=2.0), "guidance_scale: got 2.0 with condition_dropout 0"),
        (lambda: theirs("DPMSolverSinglestep"), "DPMSolverSinglestepScheduler, expected one of .* DDIMScheduler, DDPM"),
        (lambda: theirs("DDPM", variance_type="learned"), r"variance_type: got 'learned', expected .*'fixed_small'"),
        (lambda: theirs("DDIM", thresholding=True), "thresholding: got True, expected False.*clip_sample does not"),
        (lambda: theirs("DDIM", rescale_betas_zero_snr=True), "rescale_betas_zero_snr: got True with prediction_type"),
        (lambda: multistep(lambda_min_clipped=-5.1), "lambda_min_clipped: .*list the timesteps"),
        (lambda: multistep(final_sigmas_type="sigma_min"), "final_sigmas_type: got 'sigma_min'"),
        (lambda: theirs("UniPCMultistep", predict_x0=False), "predict_x0: got False, expected True: its last step"),
        (lambda: theirs("FlowMatchEulerDiscrete", stochastic_sampling=True), "stochastic_sampling: .*the generator"),
        *(
            (lambda ends=ends: build(data_range=ends), r"data_range: got .*expected \(low, high\) with low below high")
            for ends in ((-math.inf, 1.0), 3.0, (torch.zeros(2), torch.tensor([1, -1])))
        ),
        (
            lambda: build(prediction_type="sample", loss_fn=KLToTarget(), data_range=(0.0, 1.0)),
            "data_range: KLToTarget compares distributions",
        ),
        (lambda: TextualPerturbation()(FEATURES[0, :, :1], 3), r"d >= 2"),
        (lambda: GeneralizedPooling(8)(FEATURES), "features: got length 10, the rank table holds 8; raise `length`"),
        (lambda: GeneralizedPooling(10)(FEATURES, FEATURES[..., 0] > 0), "mask: row 0 has no valid position"),
    ],
)
def test_construction(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: build().sample(X, None, num_steps=6), r"num_steps: got 6, expected 1 to 5"),
        (lambda: build().sample(X, None, timesteps=[1, 3]), r"strictly descending integers in \[0, 5\)"),
        (lambda: build().sample(X, None, num_steps=2, timesteps=[1, 0]), r"not both"),
        (lambda: build().sample(X, None, noise=X[:1]), r"noise: got shape \(1, 2, 4\), expected \(3, 2, 4\)"),
        (lambda: build(eta=0.0).sample(X, None, noise=X), "eta=0 is deterministic"),
        (lambda: build().sample(X, {"a": C[:2]}), r"condition: got a tensor of shape \(2, 2, 4\)"),
        (lambda: build().sample((2, 3), None), r"initial: got tuple, .*torch.randn\(\(2, 3\)\) is a start"),
        (lambda: build().sample(X, None, callback=lambda i, t, y: y[:1]), r"callback: returned shape \(1, 2, 4\)"),
        (lambda: build().sample(X, C, guidance_scale=3.0), r"guidance_scale: got 3.0, but without"),
        (lambda: build().loss(X.numpy(), None), r"target: got ndarray, expected a tensor of floating point"),
        (lambda: build().loss(X, None, timesteps=TIMES + 3), r"timesteps: got 5, expected .* \[0, 5\)"),
        (lambda: build().loss(X, None, mask=torch.ones(3, 2)), r"mask: got torch\..*expected bool of shape \(3, 2\)"),
        (returns(lambda x: x[..., :1]), r"denoiser: returned shape \(3, 2, 1\), expected \(3, 2, 4\)"),
        (lambda: registers()(FEATURES[..., 1:]), r"features: got shape \(5, 10, 7\), expected \(b, l >= 1, 8\)"),
        (lambda: registers()(FEATURES, register_mask=FEATURES[:, :2, 0] == 0), "register_mask: got .*expected bool"),
        (lambda: TransformerDenoiser(4, 5, 1, 2, num_registers=1)(X, TIMES, C), "sample: got 2 registers, .*at most 1"),
        (lambda: TransformerDenoiser(4, 5, num_heads=2)(X, TIMES, (C, C[:, :1, 0] == 0)), "condition mask: got"),
        (lambda: RegisterDenoiser(4, 5)(X, TIMES, C[:, :, 1:]), r"condition: got shape .*, expected \(3, 2, 4\)"),
    ],
)
def test_calls(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_a_denoiser_without_the_keyword_is_told() -> None:
    for call in (build().sample, build().loss):
        with pytest.raises(TypeError, match=r"function has no keyword `mask`.*forward\(sample, timestep, condition, m"):
            call(X, C, mask=torch.ones(3, 2, dtype=torch.bool))


@pytest.mark.parametrize("double", ["sample", "condition"])
def test_two_precisions_are_explained(double: str) -> None:
    given = {"sample": X, "condition": C}
    given[double] = given[double].double()
    diffusion = build(RegisterDenoiser(4, steps=5))
    message = rf"denoiser: got a {double} of torch.float64 with parameters of torch.float32, .*`\.float\(\)`"
    for call in (diffusion.loss, diffusion.sample):
        with pytest.raises(ValueError, match=message):
            call(given["sample"], given["condition"])
