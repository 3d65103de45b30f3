"""Every scheduler against the loop that diffusers' pipelines run: `set_timesteps`, `scale_model_input`, `step`."""

import pytest
import torch
from diffusion_textbook import levels, predicted

from regdiff import SCHEDULERS, ConditionalDiffusion, make_scheduler

STEPS, COUNT = 40, 8
LINEAR = {"beta_schedule": "linear", "beta_start": 0.01, "beta_end": 0.2}  # diffusers' float32 loses little of it
#: Schedulers whose own last step stays at the noise of timestep 0; ours leads to the clean sample.
STAYS = ("deis", "tcd")
VARIANTS = [
    *((name, {}) for name in SCHEDULERS if "flow" not in SCHEDULERS[name].prediction_types),
    *((name, {"solver_order": order}) for name in ("dpmsolver++", "deis", "unipc") for order in (1, 3)),
    ("unipc", {"solver_type": "bh1"}),
    ("unipc", {"disable_corrector": [2, 3]}),
    ("ddim", {"use_clipped_model_output": False}),
    ("heun", {"prediction_type": "v_prediction"}),
    ("euler", {"prediction_type": "v_prediction"}),
    ("unipc", {"prediction_type": "sample"}),
]


def net(x):
    return torch.sin(3 * x) + x.flip(-1)


def own_loop(scheduler, signals, eta, x, use_clipped):
    """x after every call of the denoiser, in the form signal x_0 + sigma eps, and the timesteps of the calls."""
    generator, xs = torch.Generator().manual_seed(5), []
    scheduler.set_timesteps(COUNT)
    name = type(scheduler).__name__
    relative = "Euler" in name or "Heun" in name
    given = {"eta": eta} if name in ("DDIMScheduler", "TCDScheduler") else {}
    given |= {"use_clipped_model_output": use_clipped} if name == "DDIMScheduler" else {}
    given |= {"generator": generator} if "generator" in scheduler.step.__code__.co_varnames else {}
    times = [round(float(t)) for t in scheduler.timesteps]
    if relative:
        x = x / signals[times[0]]
    for i, t in enumerate(scheduler.timesteps):
        at = signals[times[i]] * x if relative else x  # what scale_model_input gives, with our exact signal
        scheduler.scale_model_input(x, t)
        x = scheduler.step(net(at), t, x, return_dict=False, **given)[0]
        lower = 1.0 if i + 1 == len(times) else signals[times[min(i + 1, len(times) - 1)]]
        xs.append(lower * x if relative else x)
    return xs, times


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=str)
@pytest.mark.parametrize("eta", [0.0, 0.6])
def test_the_chain_is_that_of_diffusers(name, options, eta):
    if eta and SCHEDULERS[name].stochastic != "eta > 0":
        pytest.skip("it ignores eta")
    use_clipped = options.get("use_clipped_model_output", True)
    # Only these clip in diffusers; elsewhere the comparison is without.
    chosen = LINEAR | {"clip_sample": name in ("ddpm", "ddim", "lcm", "heun")}
    chosen |= {key: value for key, value in options.items() if key != "use_clipped_model_output"}
    ours = ConditionalDiffusion(
        lambda x, t, c: net(x),
        make_scheduler(name, STEPS, **chosen),
        eta=eta,
        use_clipped_model_output=use_clipped,
    )
    # diffusers draws the noise of SDE-DPM-Solver++ in float32, whatever the sample is.
    x = torch.randn(3, 2, 4, dtype=torch.float32 if name == "sde-dpmsolver++" else torch.float64)
    theirs, times = own_loop(make_scheduler(name, STEPS, **chosen), ours.schedule.signal.tolist(), eta, x, use_clipped)
    listed = list(dict.fromkeys(times))
    chain = ours.sample(x, None, timesteps=listed, generator=torch.Generator().manual_seed(5), return_chain=True)
    ends = [i for i, stage in enumerate(ours.stages(timesteps=listed)) if stage.ends_step]
    expected = torch.stack([theirs[i] for i in ends])
    assert [stage.timestep for stage in ours.stages(timesteps=listed)] == times
    assert len(chain) == COUNT
    # With bh1 diffusers' own last step of UniPC is NaN.
    kept = slice(None, -1 if name in STAYS or "bh1" in options.values() else None)
    torch.testing.assert_close(chain[kept], expected[kept], rtol=2e-4, atol=2e-5)
    assert (chain[1] - chain[0]).abs().max() > 0.05


@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_scheduler_clips_the_estimate_of_the_clean_sample(name):
    """Against the textbook's prediction of a denoiser that believes in the clipped sample; and not if it is told so."""
    kind = SCHEDULERS[name].prediction_types[0]
    signal, sigma = (torch.tensor(values, dtype=torch.float64) for values in levels(name, 10))
    x = torch.randn(3, 4, dtype=torch.float64)

    def denoiser(limit):
        def call(x, timestep, condition):
            a, s = (values[timestep].view(-1, 1) for values in (signal, sigma))
            clean = (2 * torch.sin(5 * x)).clamp(-limit, limit)
            return predicted(kind, x, clean, a, s)

        return call

    def run(limit, **options):
        diffusion = ConditionalDiffusion(denoiser(limit), make_scheduler(name, 10, **options))
        return diffusion.sample(x, None, 5, generator=torch.Generator().manual_seed(0))

    for limit in (1.0, 0.4):
        clipped = run(torch.inf, clip_sample_range=limit)
        torch.testing.assert_close(clipped, run(limit, clip_sample=False), rtol=1e-7, atol=1e-7)
        assert (clipped - run(torch.inf, clip_sample=False)).abs().max() > 0.05


@pytest.mark.parametrize("name", ["dpmsolver++", "unipc", "deis", "euler"])
def test_what_diffusers_says_of_clipping_is_obeyed(name):
    """A scheduler made without us does not clip; one made of a configuration that clips does."""
    ours = make_scheduler(name, 10)
    bare = type(ours)(num_train_timesteps=10, beta_schedule="squaredcos_cap_v2", timestep_spacing="trailing")
    of_ddim = type(ours).from_config(make_scheduler("ddim", 10).config)
    of_none = type(ours).from_config(make_scheduler("ddim", 10, clip_sample=False).config)
    x = torch.randn(3, 4)

    def end(scheduler):
        return ConditionalDiffusion(lambda x, t, c: net(x), scheduler).sample(x, None, 5)

    assert torch.equal(end(of_ddim), end(ours))
    assert torch.equal(end(bare), end(of_none))
    assert end(bare).abs().max() > 2 * end(ours).abs().max()
