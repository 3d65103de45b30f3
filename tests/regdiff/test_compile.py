"""torch.compile(fullgraph=True) and torch.export of a RegisterGenerator, with masks and without, against itself.

The run-time shape checks of the other tests cannot be traced, so this module imports regdiff afresh (`plain`).
"""

import importlib

import pytest
import torch
from unchecked import unchecked

DIM, NUM, LENGTH = 8, 3, 6
CASES = {
    "ddim": {},
    "unipc": {
        **{"scheduler": "unipc", "prediction_type": "v_prediction", "start": "gaussian"},
        **{"guidance_scale": 1.5, "condition_dropout": 0.1},
    },
    "transformer": {"scheduler": "ddpm", "denoiser": "transformer", "num_sampling_steps": 3},
}


@pytest.fixture(scope="module")
def plain():
    """regdiff as users import it."""
    with unchecked("regdiff"):
        yield importlib.import_module("regdiff")


def build(plain, case):
    generator = plain.registers.make_register_generator(DIM, NUM, 2, steps=5, **CASES[case]).double().eval()
    with torch.no_grad():
        for parameter in generator.parameters():
            parameter.normal_(std=0.2)
    return generator


def inputs(masked):
    features = torch.randn(4, LENGTH, DIM).double()
    mask = torch.rand(4, LENGTH) < 0.6
    mask[:, 2] = True
    return (features, mask) if masked else (features, None)


@pytest.mark.parametrize(("case", "masked"), [("ddim", True), ("unipc", False)])
def test_export_gives_the_same_numbers(plain, case, masked):
    generator, given = build(plain, case), inputs(masked)
    exported = torch.export.export(generator, given).module()
    other = inputs(masked)  # not only what it was traced with
    for each in (given, other):
        torch.testing.assert_close(exported(*each).tokens, generator(*each).tokens, rtol=1e-7, atol=1e-7)
    assert exported(*given).prior is None if case == "unipc" else exported(*given).prior.mean.shape == (4, DIM)


@pytest.mark.parametrize(("case", "train"), [("ddim", True), ("unipc", False), ("transformer", True)])
def test_the_whole_graph_compiles(plain, case, train):
    """Dynamo refuses a module that holds a GRU unless it is allowed; the prior has one, a Gaussian start none."""
    generator, (features, mask) = build(plain, case).train(train), inputs(masked=True)
    torch._dynamo.reset()
    backend = "aot_eager" if case == "ddim" and train else "eager"
    with torch._dynamo.config.patch(allow_rnn=CASES[case].get("start") != "gaussian"):
        compiled = torch.compile(generator, fullgraph=True, backend=backend)
        results = []
        for module in (generator, compiled):
            torch.manual_seed(1)
            generator.zero_grad()
            tokens = module(features, mask).tokens
            tokens.square().sum().backward()
            results.append([tokens, *(p.grad for p in generator.parameters() if p.grad is not None)])
    assert len(results[0]) > 10
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-7)


def test_timesteps_that_were_not_computed_say_how_to(plain):
    generator = build(plain, "ddim")
    with pytest.raises(RuntimeError, match=r"call diffusion\.stages\(num_steps, timesteps\) once before"):
        torch.export.export(generator, (inputs(False)[0],), {"num_steps": 2})
    generator.diffusion.stages(2)
    torch.export.export(generator, (inputs(False)[0],), {"num_steps": 2})


@pytest.mark.parametrize(("name", "first"), [("ddim", True), ("dpmsolver++", False), ("heun", True), ("unipc", False)])
def test_sample_compiles_whether_its_timesteps_were_computed_or_not(plain, name, first):
    """And in one graph; another scheduler afterwards is another graph."""
    diffusion = plain.ConditionalDiffusion(lambda x, t, c: torch.tanh(x), plain.make_scheduler(name, 17), eta=0.0)
    x = torch.randn(2, 3)
    torch._dynamo.reset()
    if first:
        diffusion.stages(7)
    compiled = torch.compile(diffusion.sample, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, None, num_steps=7), diffusion.sample(x, None, num_steps=7))
    diffusion.scheduler = "tcd"
    torch.testing.assert_close(compiled(x, None, num_steps=7), diffusion.sample(x, None, num_steps=7))
