"""save_pretrained and from_pretrained: the same module, whole files, and refusals."""

import json

import pytest
import torch
from saved_modules import in_hub_cache, spread_weights

from regdiff.registers import RegisterDenoiser, RegisterGenerator, make_register_generator
from regdiff.transformer import TransformerDenoiser

DIM, NUM, ROWS, LENGTH = 8, 3, 4, 6

# Every option of make_register_generator away from its default at least once.
GENERATORS = {
    "defaults": {},
    "options": {
        "steps": 6,
        "layers": 1,
        "start": "gaussian",
        "length": 9,
        "dropout": 0.3,
        "num_sampling_steps": 4,
        "scheduler": "euler",
        "prediction_type": "v_prediction",
        "denoiser": "transformer",
        "weighting": "min_snr",
        "condition_dropout": 0.2,
        "guidance_scale": 2.0,
        "checkpoint": True,
    },
    "lcm": {"scheduler": "lcm", "prediction_type": "sample"},
    "condition": {"kind": "condition"},
    "pooled": {"kind": "pooled"},
    "prior": {"kind": "prior", "start": "prior_mean"},
}


def generator_of(case: str) -> RegisterGenerator:
    return spread_weights(make_register_generator(DIM, NUM, 2, **GENERATORS[case]))


def calls():
    """Modules by name, each with arguments that it can be called with."""
    mask = torch.arange(LENGTH).expand(ROWS, -1) < 5
    found = {case: (generator_of(case), torch.randn(ROWS, LENGTH, DIM), mask) for case in GENERATORS}
    denoisers = {
        "mlp": RegisterDenoiser(DIM, 5, layers=1, dropout=0.1),
        "transformer": TransformerDenoiser(DIM, 5, 1, 2, num_registers=NUM, mlp_ratio=2),
        "float64": TransformerDenoiser(16, 5, register_dim=DIM, condition_dim=DIM).double(),
    }
    for name, denoiser in denoisers.items():
        sample, condition = torch.randn(2, ROWS, NUM, DIM, dtype=denoiser.out.weight.dtype)
        found[name] = (spread_weights(denoiser), sample, torch.tensor([0, 4, 2, 1]), condition)
    return found


@pytest.mark.parametrize("case", [*GENERATORS, "mlp", "transformer", "float64"])
def test_every_argument_and_number_is_restored(case, tmp_path, capsys):
    saved, *call = calls()[case]
    saved.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert GENERATORS.get(case, {}).items() <= config.items()
    torch.manual_seed(5)
    loaded = type(saved).from_pretrained(tmp_path)
    assert not loaded.training
    assert loaded._hub_mixin_config == saved._hub_mixin_config
    if getattr(saved, "diffusion", None) is not None:
        assert dict(loaded.diffusion.scheduler.config) == dict(saved.diffusion.scheduler.config)
    before, after = ([*module.named_parameters(), *module.named_buffers()] for module in (saved, loaded))
    for (name, value), (other_name, other) in zip(before, after, strict=True):
        assert name == other_name
        assert torch.equal(value, other)
    with torch.no_grad():
        first, second = (module(*call) for module in (saved, loaded))
    assert torch.equal(getattr(first, "tokens", first), getattr(second, "tokens", second))
    assert capsys.readouterr().out == ""  # huggingface_hub's own loader prints


def test_the_card_names_the_class_and_files_of_one_s_own_stay(tmp_path):
    denoiser = RegisterDenoiser(DIM, 5)
    denoiser.save_pretrained(tmp_path)
    assert "regdiff.registers.denoiser.RegisterDenoiser.from_pretrained(PATH)" in (tmp_path / "README.md").read_text()
    for name in ("README.md", "log.txt"):
        (tmp_path / name).write_text("mine")
    denoiser.save_pretrained(tmp_path)
    assert {(tmp_path / name).read_text() for name in ("README.md", "log.txt")} == {"mine"}


def test_from_the_hub_s_cache(tmp_path):
    """Without a network."""
    generator = generator_of("defaults")
    loaded = RegisterGenerator.from_pretrained(**in_hub_cache(generator, tmp_path))
    features = torch.randn(2, LENGTH, DIM)
    assert torch.equal(loaded(features).tokens, generator(features).tokens)


def test_an_interrupted_save_leaves_the_old_files(tmp_path):
    target = tmp_path / "saved"
    RegisterDenoiser(DIM, 5).save_pretrained(target)
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    broken = RegisterDenoiser(DIM, 5)
    broken._hub_mixin_config["dim"] = object()  # weights are written before this fails
    with pytest.raises(TypeError, match="not JSON serializable"):
        broken.save_pretrained(target)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]
