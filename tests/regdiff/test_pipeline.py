"""RegisterPipeline: what the model gives, schedulers exchanged, callbacks, progress, and refusals."""

import numpy as np
import pytest
import torch
from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    PNDMScheduler,
)
from register_pipelines import DIM, LENGTH, NUM, ROWS, STEPS, SWAPS, build, exchanged, features
from torch import nn

from regdiff.pipeline import RegisterPipeline, RegisterPipelineOutput
from regdiff.registers import make_register_generator


def test_it_is_the_model_in_eval_mode():
    pipeline, x = build(dropout=0.5), features()
    pipeline.model.train()
    pipeline.model.prior.eval()
    first, second = pipeline(x), pipeline(x)
    assert torch.equal(first.registers, second.registers)
    assert not first.registers.requires_grad
    assert pipeline.model.training
    assert not pipeline.model.prior.training
    expected = pipeline.model.eval()(x, return_chain=True)
    assert torch.equal(first.registers, expected.tokens)
    assert first.chain is None
    assert torch.equal(pipeline(x, return_chain=True).chain, expected.chain)


def test_options_reach_the_model():
    pipeline, x = build(condition_dropout=0.1), features()
    model, register_mask = pipeline.model.eval(), torch.rand(ROWS, NUM) < 0.5
    plain = pipeline(x).registers
    assert len(pipeline(x, num_inference_steps=4, return_chain=True).chain) == 4
    guided = pipeline(x, guidance_scale=3.0).registers
    assert torch.equal(guided, model(x, guidance_scale=3.0).tokens)
    assert not torch.allclose(guided, plain)
    drawn = [pipeline(x, generator=torch.Generator().manual_seed(seed)).registers for seed in (0, 0, 1)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.allclose(drawn[0], drawn[2])
    masked = pipeline(x, register_mask=register_mask).registers
    assert torch.equal(masked, plain * register_mask[..., None])


def test_output_types():
    pipeline, x = build(), features()
    result = pipeline(x, return_chain=True)
    assert isinstance(result, RegisterPipelineOutput)
    arrays = pipeline(x, return_chain=True, output_type="np")
    assert isinstance(arrays.registers, np.ndarray)
    assert np.array_equal(arrays.registers, result.registers.numpy())
    assert np.array_equal(arrays.chain, result.chain.numpy())
    (alone,) = pipeline(x, return_dict=False)
    assert torch.equal(alone, result.registers)
    registers, chain = pipeline(x, return_dict=False, return_chain=True)
    assert torch.equal(registers, result["registers"])
    assert torch.equal(chain, result[1])
    low = pipeline.to(torch.bfloat16)
    assert low(x, output_type="np").registers.dtype == np.float32
    assert low(x).registers.dtype == torch.bfloat16


def test_the_callback_sees_every_step_and_may_replace_x():
    pipeline, x, seen = build(), features(), []

    def watch(pipe, step, timestep, kwargs):
        assert pipe is pipeline
        seen.append((step, timestep, kwargs["latents"].clone()))
        return kwargs

    result = pipeline(x, num_inference_steps=3, return_chain=True, callback_on_step_end=watch)
    assert [(step, t) for step, t, _ in seen] == [(0, 5), (1, 3), (2, 1)]
    assert torch.equal(torch.stack([latents for *_, latents in seen]), result.chain)
    assert torch.equal(result.registers, pipeline(x, num_inference_steps=3).registers)

    def replace(pipe, step, timestep, kwargs):
        return {"latents": torch.full_like(kwargs["latents"], 0.25)}

    assert (pipeline(x, callback_on_step_end=replace).registers == 0.25).all()
    assert torch.equal(pipeline(x, callback_on_step_end=lambda *_: None).registers, pipeline(x).registers)


def test_a_callback_object_of_diffusers_works():
    from diffusers.callbacks import PipelineCallback

    class Halve(PipelineCallback):
        tensor_inputs = ["latents"]

        def callback_fn(self, pipeline, step_index, timestep, callback_kwargs):
            return {"latents": callback_kwargs["latents"] / 2}

    halve = Halve(cutoff_step_ratio=None, cutoff_step_index=2)
    pipeline, x = build(), features()
    assert not torch.allclose(pipeline(x, callback_on_step_end=halve).registers, pipeline(x).registers)


def test_the_progress_bar_counts_steps_and_can_be_silenced(capsys):
    pipeline, x = build(), features()
    pipeline(x)
    assert capsys.readouterr().err == ""
    pipeline.set_progress_bar_config(desc="registers", ascii=True)
    pipeline(x, num_inference_steps=4)
    assert "registers: 100%|" in (shown := capsys.readouterr().err)
    assert "4/4" in shown


@pytest.mark.parametrize("kind", SWAPS)
def test_schedulers_are_exchanged_as_in_diffusers(kind):
    pipeline, x = build(), features()
    own = pipeline(x).registers
    pipeline.scheduler = exchanged(kind, pipeline.scheduler)
    assert pipeline.config["scheduler"] == ("diffusers", kind.__name__)
    swapped = pipeline(x, num_inference_steps=4)
    model = pipeline.model.eval().with_scheduler(pipeline.scheduler)
    assert torch.equal(swapped.registers, model(x, num_steps=4).tokens)
    assert not torch.allclose(swapped.registers, own)
    assert torch.equal(pipeline.model(x).tokens, own)  # the model's own stays


def test_a_scheduler_that_does_not_fit_is_refused_when_it_is_assigned():
    pipeline = build()
    before = pipeline.scheduler
    with pytest.raises(ValueError, match="scheduler: got PNDMScheduler, expected one of"):
        pipeline.scheduler = PNDMScheduler.from_config(before.config)
    with pytest.raises(ValueError, match="prediction_type 'flow', expected 'epsilon'"):
        pipeline.scheduler = FlowMatchEulerDiscreteScheduler(num_train_timesteps=STEPS)
    with pytest.raises(ValueError, match="noise schedule"):
        RegisterPipeline(pipeline.model, type(before).from_config(before.config, beta_schedule="linear"))
    assert pipeline.scheduler is before


def test_nan_is_refused_only_at_valid_positions():
    pipeline, x = build(), features()
    mask = torch.ones(ROWS, LENGTH, dtype=torch.bool)
    mask[1, 4:] = False
    clean = pipeline(x, mask).registers
    x[1, 5, 0] = torch.nan
    assert torch.equal(pipeline(x, mask).registers, clean)
    with pytest.raises(ValueError, match="features: got NaN or infinite values at valid positions"):
        pipeline(x)


def test_bad_inputs_say_what_is_expected(tmp_path, unchecked):
    pipeline, x = build(), features()
    with pytest.raises(ValueError, match="output_type: got 'pil', expected 'pt' or 'np'"):
        pipeline(x, output_type="pil")
    with pytest.raises(TypeError, match="callback_on_step_end: returned int, expected a dict or None"):
        pipeline(x, callback_on_step_end=lambda *_: 3)
    with pytest.raises(ValueError, match="model: has no diffusion"):
        RegisterPipeline(make_register_generator(DIM, NUM, 2, kind="pooled"))
    with pytest.raises(ValueError, match="safe_serialization, variant: got False, None"):
        pipeline.save_pretrained(tmp_path / "a", safe_serialization=False)
    with pytest.raises(TypeError, match="from_pretrained: got subfolder, expected some of revision"):
        RegisterPipeline.from_pretrained(tmp_path, subfolder="b")


def test_modules_move_together():
    pipeline = build()
    assert pipeline.to("cpu", torch.float64) is pipeline
    assert pipeline.dtype == torch.float64
    assert pipeline.device == torch.device("cpu")
    assert isinstance(pipeline.model, nn.Module)
    assert pipeline(features()).registers.dtype == torch.float64  # features follow the model
