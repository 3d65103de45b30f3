"""ConditionalDiffusion owns its denoiser: replacing, moving, saving; old state dicts and old keywords."""

import copy
import json

import pytest
import torch
from saved_modules import spread_weights
from torch import nn

from regdiff import ConditionalDiffusion, KLToTarget, TransformerDenoiser, make_scheduler
from regdiff.registers import (
    PriorSampler,
    RegisterDenoiser,
    RegisterGenerator,
    Sampling,
    make_register_generator,
)

DIM, NUM, STEPS = 8, 3, 5


def generator(**options) -> RegisterGenerator:
    return spread_weights(make_register_generator(DIM, NUM, 2, steps=STEPS, **options))


def parts(**options) -> ConditionalDiffusion:
    denoiser = spread_weights(RegisterDenoiser(DIM, STEPS, layers=1))
    return ConditionalDiffusion(denoiser, make_scheduler("ddim", STEPS), **options)


def test_a_denoiser_that_is_put_in_takes_effect():
    ours, x = generator(), torch.randn(2, 6, DIM)
    before = ours(x).tokens
    other = spread_weights(TransformerDenoiser(DIM, STEPS, 1, 2))
    ours.denoiser = other
    assert ours.denoiser is ours.diffusion.denoiser is other
    after = ours(x).tokens
    assert not torch.allclose(after, before)
    expected = RegisterGenerator(ours.condition, parts(), ours.prior).eval()
    for network in (other, lambda sample, timestep, condition: other(sample, timestep, condition)):
        expected.denoiser = network
        assert torch.equal(expected(x).tokens, after)
    with pytest.raises(ValueError, match="assembled from parts"):
        ours.save_pretrained("nowhere")  # its options describe the one that was there
    with pytest.raises(ValueError, match="has no diffusion"):
        generator(kind="pooled").denoiser = other


@pytest.mark.parametrize("name", ["euler", "unipc", "ddpm"])
def test_a_scheduler_that_is_set_is_the_one_that_samples_and_is_saved(name, tmp_path):
    ours, (x, condition) = parts(condition_dropout=0.1, eta=0.5), torch.randn(2, 4, NUM, DIM)
    expected = ours.with_scheduler(name)
    ours.scheduler = name
    assert ours.capabilities.name == name
    results = []
    ours.save_pretrained(tmp_path)
    for each in (expected, ours, ConditionalDiffusion.from_pretrained(tmp_path)):
        results.append(each.sample(x, condition, generator=torch.Generator().manual_seed(0)))
        torch.manual_seed(0)
        results.append(each.eval().loss(x.clamp(-1, 1), condition))
    assert all(torch.equal(result, first) for result, first in zip(results, 3 * results[:2], strict=True))


def test_a_weighting_that_is_set_weighs_and_is_saved(tmp_path, unchecked):
    ours, (x, condition) = parts(), torch.randn(2, 4, NUM, DIM).clamp(-1, 1)
    ours.weighting = "min_snr"
    ours.snr_gamma = 0.5
    expected = parts(weighting="min_snr", snr_gamma=0.5)
    expected.denoiser = ours.denoiser
    ours.save_pretrained(tmp_path)
    losses = []
    for each in (expected, ours, ours.with_scheduler("euler"), ConditionalDiffusion.from_pretrained(tmp_path)):
        loss = each.eval().loss(x, condition, timesteps="all", generator=torch.Generator().manual_seed(0))
        losses.append(loss.item())
    assert len(set(losses)) == 1, losses
    with pytest.raises(ValueError, match="snr_gamma: got 0"):
        ours.snr_gamma = 0
    with pytest.raises(AttributeError, match="schedule"):
        ours.schedule = ours.schedule


def test_what_a_generator_was_set_to_is_saved_or_refused(tmp_path):
    x = torch.randn(2, 6, DIM)
    ours = generator(condition_dropout=0.2)
    ours.sampling, ours.loss_timesteps, ours.sample_prior = Sampling(2, guidance_scale=3.0), "all", False
    ours.save_pretrained(tmp_path)
    loaded = RegisterGenerator.from_pretrained(tmp_path)
    assert torch.equal(loaded(x).tokens, ours(x).tokens)
    assert loaded.loss_timesteps == "all"
    copy.deepcopy(ours).save_pretrained(tmp_path / "copy")
    changes = generator().with_scheduler("euler"), generator(), generator()
    changes[1].diffusion.eta = 0.0
    changes[2].prior = PriorSampler(DIM, None)
    for changed in changes:
        with pytest.raises(ValueError, match="assembled from parts"):
            changed.save_pretrained(tmp_path)


@pytest.mark.parametrize("kind", [nn.Parameter, torch.Tensor.clone, lambda value: (nn.Parameter(value), None)])
def test_the_null_condition_is_its_own(kind):
    diffusion = parts(null_condition=kind(torch.randn(1, NUM, DIM)), condition_dropout=0.5)
    own, (x, condition) = diffusion.denoiser, torch.randn(2, 2, NUM, DIM, dtype=torch.float64)
    tensors = dict(diffusion.named_parameters()) | dict(diffusion.named_buffers())
    (name,) = (name for name in tensors if "null" in name)
    diffusion.double()
    if name == "null_condition_0":  # of a tree
        diffusion.denoiser = lambda x, t, c: own(x, t, c[0])
        condition = (condition, torch.ones(2))

    def end(diffusion):
        seed = torch.Generator().manual_seed(0)
        return diffusion.sample(x, condition, guidance_scale=3.0, generator=seed)

    before = end(diffusion)
    for other in (copy.deepcopy(diffusion), diffusion.with_scheduler(make_scheduler("ddim", STEPS))):
        assert torch.equal(end(other), before)
    with torch.no_grad():
        getattr(diffusion, name).mul_(-2)
    assert not torch.equal(end(diffusion), before)


@pytest.mark.parametrize("case", ["plain", "options", "flow"])
def test_it_saves_itself(case, tmp_path):
    made = {
        "plain": lambda: parts(condition_dropout=0.1),
        "options": lambda: ConditionalDiffusion(
            spread_weights(TransformerDenoiser(16, STEPS, 1, 2, register_dim=DIM, condition_dim=DIM)),
            make_scheduler("euler-ancestral", STEPS, prediction_type="sample", clip_sample_range=2.0),
            loss_fn=KLToTarget(3.0),
            eta=0.5,
            use_clipped_model_output=False,
            condition_dropout=0.1,
            null_condition=nn.Parameter(torch.randn(1, NUM, DIM)),
        ),
        "flow": lambda: ConditionalDiffusion(
            RegisterDenoiser(DIM, STEPS),
            make_scheduler("flow", STEPS, shift=2.0),
            condition_dropout=0.1,
            data_range=(torch.full((DIM,), -3.0), 2.0),
        ),
    }
    ours = made[case]()
    ours.save_pretrained(tmp_path)
    loaded = ConditionalDiffusion.from_pretrained(tmp_path)
    assert not loaded.training
    assert loaded._describe() == ours._describe()
    assert loaded.state_dict().keys() == ours.state_dict().keys()
    x, condition = torch.randn(2, 4, NUM, DIM)
    calls = [
        each.eval().sample(x, condition, guidance_scale=2.0, generator=torch.Generator().manual_seed(0))
        for each in (ours, loaded)
    ]
    assert torch.equal(*calls)
    assert ConditionalDiffusion.from_pretrained(tmp_path, eta=0.25).eta == 0.25


def test_what_it_cannot_describe_must_be_given_again(tmp_path):
    net = nn.Linear(DIM, DIM)

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, sample, timestep, condition):
            return self.net(sample)

    ours = ConditionalDiffusion(Own(), make_scheduler("ddim", STEPS), eta=0.0)
    ours.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="the denoiser is not part of regdiff and was not saved; pass denoiser="):
        ConditionalDiffusion.from_pretrained(tmp_path)
    x, saved = torch.randn(2, 4, DIM), net.weight.detach().clone()
    expected = ours.sample(x, None)
    nn.init.zeros_(net.weight)
    loaded = ConditionalDiffusion.from_pretrained(tmp_path, denoiser=Own())
    assert torch.equal(net.weight, saved)
    assert torch.equal(loaded.sample(x, None), expected)
    values = json.loads((tmp_path / "config.json").read_text())
    values["scheduler"]["_class_name"] = "PNDMScheduler"
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match="got 'PNDMScheduler', expected one of"):
        ConditionalDiffusion.from_pretrained(tmp_path, denoiser=Own())


def test_a_state_dict_keeps_the_names_that_every_version_wrote():
    ours = generator(condition_dropout=0.2)
    state = ours.state_dict()
    assert not [name for name in state if name.startswith("diffusion")]
    assert {"denoiser.time_table", "denoiser.layers.0.proj_in.weight", "null_condition"} <= state.keys()
    for names in (state, {f"diffusion.{n}" if n.startswith(("denoiser", "null")) else n: v for n, v in state.items()}):
        other = generator(condition_dropout=0.2)
        given = {f"registers.{name}": value.clone() for name, value in names.items()}
        nn.ModuleDict({"registers": other}).load_state_dict(given)
        assert all(torch.equal(value, other.state_dict()[name]) for name, value in state.items())


def test_another_scheduler_shares_tensors_but_not_what_is_put_in_afterwards():
    null = nn.Parameter(torch.randn(1, NUM, DIM))
    ours = parts(null_condition=null, condition_dropout=0.1, data_range=(-2.0, 2.0))
    denoiser, other = ours.denoiser, ours.with_scheduler("euler")
    assert [id(p) for p in other.parameters()] == [id(p) for p in ours.parameters()]
    other.denoiser = spread_weights(RegisterDenoiser(DIM, STEPS, layers=1))
    other.null_condition = nn.Parameter(torch.zeros(1, NUM, DIM))
    other.data_low = torch.tensor(-5.0)
    assert ours.denoiser is denoiser
    assert ours.null_condition is null
    assert ours.data_range[0] == -2
