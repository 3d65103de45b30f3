"""save_pretrained and from_pretrained: the same module, whole files, and refusals."""

import json
import subprocess
import sys

import pytest
import torch
from huggingface_hub import constants
from safetensors import SafetensorError
from saved_modules import in_hub_cache, spread_weights
from torch import nn

from regdiff.registers import RegisterDenoiser, RegisterGenerator, Sampling, make_register_generator
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
        found[f"denoiser, {name}"] = (spread_weights(denoiser), sample, torch.tensor([0, 4, 2, 1]), condition)
    return found


LOAD = """
import importlib, sys, torch
for folder in sys.argv[1:]:
    module, name, *call = torch.load(folder + "/call.pt")
    loaded = getattr(importlib.import_module(module), name).from_pretrained(folder + "/saved")
    assert not loaded.training
    with torch.no_grad():
        result = loaded(*call)
    torch.save(getattr(result, "tokens", result), folder + "/result.pt")
"""


def test_a_fresh_process_gives_the_same_numbers(tmp_path):
    """One process for all: it takes seconds to start."""
    given = calls()
    for name, (saved, *call) in given.items():
        saved.save_pretrained(tmp_path / name / "saved")
        torch.save((type(saved).__module__, type(saved).__name__, *call), tmp_path / name / "call.pt")
    folders = [str(tmp_path / name) for name in given]
    done = subprocess.run([sys.executable, "-c", LOAD, *folders], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""  # huggingface_hub's own loader prints
    for name, (saved, *call) in given.items():
        with torch.no_grad():
            result = saved(*call)
        assert torch.equal(torch.load(tmp_path / name / "result.pt"), getattr(result, "tokens", result)), name


@pytest.mark.parametrize("case", GENERATORS)
def test_every_argument_is_restored(case, tmp_path):
    generator = generator_of(case)
    generator.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert GENERATORS[case].items() <= config.items()
    loaded = RegisterGenerator.from_pretrained(tmp_path)
    assert loaded._hub_mixin_config == generator._hub_mixin_config
    plain = (bool, int, float, str, type(None), Sampling)
    simple = {name for name, value in vars(generator).items() if isinstance(value, plain)} - {"training"}
    assert {name: getattr(loaded, name) for name in simple} == {name: getattr(generator, name) for name in simple}
    if generator.diffusion is not None:
        ours, theirs = loaded.diffusion, generator.diffusion
        assert dict(ours.scheduler.config) == dict(theirs.scheduler.config)
        assert (ours.weighting, ours.condition_dropout) == (theirs.weighting, theirs.condition_dropout)
    for name, value in [*generator.named_parameters(), *generator.named_buffers()]:
        assert torch.equal(
            value, loaded.get_parameter(name) if isinstance(value, nn.Parameter) else loaded.get_buffer(name)
        )


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


def test_bad_files_say_what_is_wrong(tmp_path):
    RegisterDenoiser(DIM, 5).save_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match="size mismatch"):
        RegisterDenoiser.from_pretrained(tmp_path, dim=4)
    with pytest.raises(RuntimeError, match="Missing key"):
        RegisterDenoiser.from_pretrained(tmp_path, layers=3)
    (tmp_path / constants.SAFETENSORS_SINGLE_FILE).write_bytes(b"garbage")
    with pytest.raises(SafetensorError):
        RegisterDenoiser.from_pretrained(tmp_path)
