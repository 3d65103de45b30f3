"""Every scheduler against the textbook of this folder: steps, chains and orders."""

import copy
import io

import pytest
import torch
from accelerator import DEVICE, Accelerator
from diffusion_textbook import chain, levels, predicted
from hypothesis import given
from hypothesis import strategies as st

from regdiff import SCHEDULERS, ConditionalDiffusion, TransformerDenoiser, make_scheduler
from regdiff.noise import standard_normal
from regdiff.registers import RegisterDenoiser

#: Names with options: every sampler of which the textbook has the formulas, in each of its forms. UniPC and DEIS are
#: compared with diffusers' own loop, in test_diffusers_loop.py.
SAMPLERS = [
    ("ddpm", {}),
    ("ddim", {"eta": 0.0}),
    ("ddim", {"eta": 0.4}),
    ("ddim", {"eta": 1.0}),
    ("dpmsolver++", {"order": 1}),
    ("dpmsolver++", {"order": 2}),
    ("dpmsolver++", {"order": 2, "solver_type": "heun"}),
    ("dpmsolver++", {"order": 3}),
    ("sde-dpmsolver++", {"order": 1}),
    ("sde-dpmsolver++", {"order": 2}),
    ("sde-dpmsolver++", {"order": 2, "solver_type": "heun"}),
    ("euler", {}),
    ("euler-ancestral", {}),
    ("heun", {}),
    ("lcm", {}),
    ("tcd", {"eta": 0.0}),
    ("tcd", {"eta": 0.3}),
    ("tcd", {"eta": 1.0}),
    ("flow", {}),
]
EACH = pytest.mark.parametrize(("name", "options"), SAMPLERS, ids=str)


def build(name, steps, denoise, prediction_type=None, **options):
    """A diffusion whose denoiser says what follows from `denoise(x, signal, sigma)`, the clean sample."""
    kind = prediction_type or SCHEDULERS[name].prediction_types[0]
    signal, sigma = (torch.tensor(values, dtype=torch.float64) for values in levels(name, steps))

    def denoiser(x, timestep, condition):
        at = [values[timestep].to(x.dtype).view(-1, *(1,) * (x.ndim - 1)) for values in (signal, sigma)]
        return predicted(kind, x, denoise(x, *at), *at)

    known = {"order": "solver_order", "solver_type": "solver_type", "scaling": "timestep_scaling"}
    chosen = {known[key]: value for key, value in options.items() if key in known} | {"clip_sample": False}
    scheduler = make_scheduler(name, steps, prediction_type=kind, **chosen)
    return ConditionalDiffusion(denoiser, scheduler, eta=options.get("eta", 1.0))


def ladder(steps, count):
    return [round(steps * (count - i) / count) - 1 for i in range(count)]


@EACH
@pytest.mark.parametrize(("steps", "count"), [(5, 4), (10, 9), (50, 20), (1000, 12)])
def test_every_chain_is_the_textbook_one(name, options, steps, count):
    """A nonlinear denoiser of every prediction type, noise replayed: each x of the chain, not only the last."""
    for kind in SCHEDULERS[name].prediction_types:
        diffusion = build(name, steps, lambda x, a, s: torch.tanh(x + a - s), kind, **options)
        x = torch.randn(3, 2, dtype=torch.float64)
        seed, times = torch.Generator().manual_seed(7), ladder(steps, count)
        noises = [standard_normal(x.shape, x, seed) for _ in times]
        seed.manual_seed(7)
        ours = diffusion.sample(x, None, timesteps=times, generator=seed, return_chain=True)
        theirs = chain(name, steps, times, x, lambda x, a, s: torch.tanh(x + a - s), noises, **options)
        # The first step of a cosine schedule multiplies the rounding of eps by 1 / signal.
        amplified = 1.0 if kind in ("sample", "flow") else 1 / levels(name, steps)[0][times[0]]
        limit = amplified * 1e-13 + 1e-9
        torch.testing.assert_close(ours, torch.stack(theirs), rtol=limit, atol=limit)


@given(
    name=st.sampled_from(["ddim", "dpmsolver++", "unipc", "deis", "euler", "heun", "tcd", "flow"]),
    steps=st.integers(1, 12),
    data=st.data(),
)
def test_with_the_exact_noise_x_stays_on_the_forward_path(name, steps, data):
    """Deterministic samplers on any ladder: x after each step is the forward process at the next timestep."""
    times = data.draw(st.lists(st.integers(0, steps - 1), min_size=1, unique=True).map(lambda t: sorted(t)[::-1]))
    options = {"order": data.draw(st.integers(1, 3))} if name in ("dpmsolver++", "unipc", "deis") else {}
    target, noise = torch.randn(2, 3, 4, dtype=torch.float64)
    diffusion = build(name, steps, lambda x, a, s: target, eta=0.0, **options)

    def noised(t):
        return diffusion.add_noise(target, noise, torch.full((3,), t))

    steps_of = diffusion.sample(noised(times[0]), None, timesteps=times, return_chain=True)
    expected = torch.stack([*map(noised, times[1:]), target])
    torch.testing.assert_close(steps_of, expected, rtol=1e-8, atol=1e-8)


def moved(diffusion: ConditionalDiffusion) -> ConditionalDiffusion:
    """A copy on the accelerator, in eval mode."""
    return copy.deepcopy(diffusion).to(DEVICE).eval()


@pytest.mark.parametrize("name", SCHEDULERS)
def test_on_a_card_the_steps_become_one_graph_with_the_same_numbers(name: str) -> None:
    denoiser = TransformerDenoiser(8, 10, 1, 2) if name == "ddim" else RegisterDenoiser(8, 10, 1)
    torch.nn.init.normal_(denoiser.out.weight)
    diffusion = ConditionalDiffusion(denoiser, make_scheduler(name, 10), condition_dropout=0.1)
    starts, conditions = torch.randn(2, 4, 3, 2, 8)
    mask = torch.tensor([[True, False], [True, True], [True, True]])

    def all_calls(diffusion, place):
        """Every call twice or more: with other values, a mask, guidance and the chain, other sizes, and rows' seeds."""
        for x, c in zip(starts, conditions, strict=True):
            generator = torch.Generator().manual_seed(1)
            x, c = place(x), place(c)
            yield diffusion.sample(x, c, 5, generator=generator)
            yield diffusion.sample(x, c, 5, generator=generator)  # which goes on from where the first call left it
            yield diffusion.sample(x, c, 4, generator=generator, mask=place(mask))
            yield diffusion.sample(x, c, 4, generator=generator, guidance_scale=2.0, return_chain=True)
            rows = [torch.Generator().manual_seed(row) for row in range(2)]
            yield diffusion.sample(x[:2], c[:2], timesteps=[6, 4, 1], generator=rows)

    with torch.no_grad():
        expected = list(all_calls(diffusion.eval(), lambda x: x))
        with Accelerator() as device:
            results = list(all_calls(moved(diffusion), lambda x: x.to(DEVICE)))
            assert device.graphs == 4
            for result, values in zip(results, expected, strict=True):
                assert torch.equal(result.cpu(), values)  # also of a graph that was used again since


def test_a_graph_sees_new_weights_and_is_made_again_for_others() -> None:
    diffusion = ConditionalDiffusion(RegisterDenoiser(8, 10, 1), make_scheduler("ddim", 10), eta=0.0)
    x, c = torch.randn(2, 3, 2, 8)
    with Accelerator() as device, torch.no_grad():
        card = moved(diffusion)
        start, condition = x.to(DEVICE), c.to(DEVICE)

        def check(graphs: int, **options: object) -> None:
            for _ in range(3):
                result = card.sample(start, condition, 4, **options)
            assert torch.equal(result.cpu(), diffusion.sample(x, c, 4, **options))
            assert device.graphs == graphs

        check(1)
        for module in (diffusion, card):
            module.denoiser.out.weight.mul_(2.0)
        check(1)
        for module in (diffusion, card):
            module.denoiser.out.weight = torch.nn.Parameter(module.denoiser.out.weight * 0.5)
        check(2)
        for module in (diffusion, card):
            module.eta = 0.0 if module.eta else 0.5
            module.scheduler = "euler"
        check(3)


def test_a_module_with_graphs_is_pickled_without_them() -> None:
    diffusion = ConditionalDiffusion(RegisterDenoiser(8, 10, 1), make_scheduler("ddim", 10))
    diffusion._graphs._made["of a shape",] = lambda: None  # pickle refuses it, as it does a graph
    torch.save(diffusion, io.BytesIO())


def test_where_python_code_has_to_run_there_is_no_graph() -> None:
    diffusion = ConditionalDiffusion(RegisterDenoiser(8, 10, 1), make_scheduler("ddim", 10))
    steps = []
    with Accelerator() as device:
        card = moved(diffusion)
        x = torch.randn(3, 2, 8).to(DEVICE)
        for _ in range(3):
            assert card.sample(x, x, 4).requires_grad
            with torch.no_grad():
                card.sample(x, x, 4, callback=lambda step, timestep, x: steps.append(step))
                card.train().sample(x, x, 4)
                card.eval().cuda_graph = False
                card.sample(x, x, 4)
            card.cuda_graph = True
            hook = card.denoiser.register_forward_hook(lambda *_: steps.append(4))
            with torch.no_grad():
                card.sample(x, x, 4)
            hook.remove()
        assert steps == 3 * [0, 1, 2, 3, 4, 4, 4, 4]
        assert device.graphs == 0
