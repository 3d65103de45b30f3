"""RegisterPipeline on disk: the same registers in a fresh process, whole folders, and refusals."""

import json
import subprocess
import sys

import pytest
import torch
from diffusers import EulerDiscreteScheduler
from register_pipelines import LENGTH, ROWS, SWAPS, build, exchanged, features, in_hub_cache
from test_hub import calls

from regdiff.pipeline import RegisterPipeline

LOAD = """
import sys, torch
import regdiff, regdiff.transformer
from regdiff.pipeline import RegisterPipeline
for folder in sys.argv[1:]:
    name, *call = torch.load(folder + "/call.pt")
    kind = getattr(regdiff, name, None) or getattr(regdiff.transformer, name, None) or RegisterPipeline
    loaded = kind.from_pretrained(folder + "/saved")
    if kind is RegisterPipeline:
        result = loaded(*call, return_chain=True).chain
    else:
        assert not loaded.training
        with torch.no_grad():
            result = loaded(*call)
    torch.save(getattr(result, "tokens", result), folder + "/result.pt")
"""


def test_a_fresh_process_gives_the_same_registers(tmp_path):
    """One process for pipelines and modules: it takes seconds to start."""
    pipelines = {"own": build(), "guided": build(denoiser="transformer", condition_dropout=0.1, guidance_scale=2.0)}
    pipelines["float64"] = build(scheduler="flow", prediction_type="flow").to(torch.float64)
    for kind in SWAPS:
        pipelines[kind.__name__] = build()
        pipelines[kind.__name__].scheduler = exchanged(kind, pipelines["own"].scheduler)
    mask = torch.arange(LENGTH).expand(ROWS, -1) < 5
    given = {name: (pipeline, features(dtype=pipeline.dtype), mask) for name, pipeline in pipelines.items()}
    given |= calls()
    for name, (saved, *call) in given.items():
        saved.save_pretrained(tmp_path / name / "saved")
        torch.save((type(saved).__name__, *call), tmp_path / name / "call.pt")
    folders = [str(tmp_path / name) for name in given]
    done = subprocess.run([sys.executable, "-c", LOAD, *folders], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""  # huggingface_hub's own loader prints
    for name, (saved, *call) in given.items():
        with torch.no_grad():
            result = saved(*call, return_chain=True).chain if name in pipelines else saved(*call)
        expected = getattr(result, "tokens", result)
        assert torch.equal(torch.load(tmp_path / name / "result.pt"), expected), name


def test_what_is_on_disk_is_laid_out_as_diffusers_does(tmp_path):
    pipeline = build()
    pipeline.save_pretrained(tmp_path)
    files = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert {
        "model_index.json",
        "model/config.json",
        "model/model.safetensors",
        "scheduler/scheduler_config.json",
    } <= files
    index = json.loads((tmp_path / "model_index.json").read_text())
    assert index["_class_name"] == "RegisterPipeline"
    assert index["scheduler"] == ["diffusers", "DDIMScheduler"]
    assert index["model"] == ["regdiff.registers", "RegisterGenerator"]
    assert set(pipeline.components) == {"model", "scheduler"}


def test_components_may_be_given_instead_of_loaded(tmp_path):
    pipeline, x = build(), features()
    pipeline.save_pretrained(tmp_path)
    euler = EulerDiscreteScheduler.from_config(pipeline.scheduler.config)
    loaded = RegisterPipeline.from_pretrained(tmp_path, scheduler=euler, torch_dtype=torch.float64)
    assert loaded.scheduler is euler
    assert loaded.dtype == torch.float64
    other = build().model
    loaded = RegisterPipeline.from_pretrained(tmp_path, model=other)
    assert loaded.model is other
    assert torch.equal(RegisterPipeline(**pipeline.components)(x).registers, pipeline(x).registers)


def test_from_the_hub_s_cache(tmp_path):
    """Without a network."""
    pipeline, x = build(), features()
    loaded = RegisterPipeline.from_pretrained(**in_hub_cache(pipeline, tmp_path))
    loaded.set_progress_bar_config(disable=True)
    assert torch.equal(loaded(x).registers, pipeline(x).registers)


def test_an_interrupted_save_leaves_the_old_files(tmp_path, monkeypatch):
    target = tmp_path / "saved"
    build().save_pretrained(target)
    before = {path: path.read_bytes() for path in target.rglob("*") if path.is_file()}
    pipeline = build()

    def full(*_, **__):
        raise OSError("no space left")

    monkeypatch.setattr(pipeline.scheduler, "save_pretrained", full)  # the model has been written by then
    with pytest.raises(OSError, match="no space left"):
        pipeline.save_pretrained(target)
    assert {path: path.read_bytes() for path in target.rglob("*") if path.is_file()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


def test_bad_folders_say_what_is_wrong(tmp_path):
    with pytest.raises(ValueError, match=r"not a folder of RegisterPipeline.save_pretrained"):
        RegisterPipeline.from_pretrained(tmp_path)
    build().save_pretrained(tmp_path)
    path = tmp_path / "model_index.json"
    good = json.loads(path.read_text())
    for name, value, message in (
        ("scheduler", ["os", "system"], r"scheduler is \['os', 'system'\], expected one of diffusers'"),
        ("scheduler", ["diffusers", "PNDMScheduler"], "expected one of diffusers' DDIMScheduler"),
        ("model", ["elsewhere", "Model"], r"model is \['elsewhere', 'Model'\], expected RegisterGenerator"),
        ("model", None, "not a folder of RegisterPipeline.save_pretrained"),
    ):
        path.write_text(json.dumps(good | {name: value}))
        with pytest.raises(ValueError, match=message):
            RegisterPipeline.from_pretrained(tmp_path)
