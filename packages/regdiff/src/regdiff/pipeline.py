"""A generator and a scheduler as one diffusers pipeline; `import regdiff` leaves this module, and diffusers, alone."""

import json
import os
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from diffusers.pipelines.pipeline_utils import DiffusionPipeline
from diffusers.utils.outputs import BaseOutput
from huggingface_hub import snapshot_download
from jaxtyping import Bool, Float
from torch import Tensor

from regdiff.hub import whole_folder
from regdiff.masks import expect_mask, masked
from regdiff.registers import RegisterGenerator
from regdiff.schedule import Scheduler
from regdiff.schedulers import SCHEDULERS, scheduler_of

_HUB_OPTIONS = ("revision", "token", "cache_dir", "force_download", "local_files_only")

#: (pipeline, step, timestep, {"latents": x}) -> the same dict, with another tensor in it to replace x, or None.
StepCallback = Callable[["RegisterPipeline", int, int, dict[str, Tensor]], dict[str, Tensor] | None]


@dataclass
class RegisterPipelineOutput(BaseOutput):
    """What a `RegisterPipeline` returns.

    Attributes:
        registers: (b, n, d).
        chain: (k, b, n, d), x after each step, the last being `registers`; None if it was not asked for.
    """

    registers: Tensor | np.ndarray
    chain: Tensor | np.ndarray | None = None


class RegisterPipeline(DiffusionPipeline):
    """Registers of sequences, in the manner of diffusers: progress bar, callback per step, exchangeable scheduler.

    It runs the model in eval mode and without gradients: without a generator the same features give the same registers,
    in any batch. For training use the model itself, it is `pipeline.model`.

    Saving and loading are its own, with diffusers' layout of folders: model/ (config.json, model.safetensors),
    scheduler/ and model_index.json. The base class can only save components derived from its own ModelMixin (others are
    left out with a warning), and what it loads from another library it looks for among names that this library happens
    to import. A `RegisterGenerator` is no ModelMixin, so that `import regdiff` stays without diffusers. Loading runs no
    code of the folder: it reads weights and configurations of the two known kinds.

    Args:
        model: A generator of the kind "diffusion".
        scheduler: The sampler; None means the model's own. Assign another one made by
            `OtherScheduler.from_config(pipeline.scheduler.config)` at any time; one that the model was not trained for
            is refused.

    Raises:
        ValueError: A model without diffusion, or a scheduler that does not fit it.

    Examples:
        >>> import torch
        >>> from regdiff.registers import make_register_generator
        >>> pipeline = RegisterPipeline(make_register_generator(dim=8, num_registers=4, num_heads=2))
        >>> pipeline.set_progress_bar_config(disable=True)
        >>> pipeline(torch.randn(3, 32, 8), num_inference_steps=5).registers.shape
        torch.Size([3, 4, 8])
    """

    model: RegisterGenerator
    scheduler: Any
    model_cpu_offload_seq = "model"
    _optional_components = ["scheduler"]  # noqa: RUF012  as the base class has it
    _callback_tensor_inputs = ["latents"]  # noqa: RUF012

    def __init__(self, model: RegisterGenerator, scheduler: Scheduler | None = None) -> None:
        super().__init__()
        if model.diffusion is None:
            raise ValueError("model: has no diffusion; expected a RegisterGenerator of the kind 'diffusion'")
        self.register_modules(model=model, scheduler=model.diffusion.scheduler if scheduler is None else scheduler)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "scheduler" and "model" in vars(self):
            self.model.with_scheduler(value)  # refuses one that does not fit, before it is set
        super().__setattr__(name, value)

    @torch.no_grad()
    def __call__(
        self,
        features: Float[Tensor, "b l d"],
        mask: Bool[Tensor, "b l"] | None = None,
        *,
        register_mask: Bool[Tensor, "b n"] | None = None,
        num_inference_steps: int | None = None,
        guidance_scale: float | None = None,
        generator: torch.Generator | None = None,
        return_chain: bool = False,
        callback_on_step_end: StepCallback | None = None,
        output_type: Literal["pt", "np"] = "pt",
        return_dict: bool = True,
    ) -> RegisterPipelineOutput | tuple[Any, ...]:
        """Generate the registers of each row.

        Args:
            features: The sequences; moved to the model's device and precision.
            mask: True marks a valid position; None means all are.
            register_mask: True marks a register that the row has; None means all n.
            num_inference_steps: Steps of the sampler; None means the model's.
            guidance_scale: Classifier-free guidance; None means the model's.
            generator: Source of the draws; None is deterministic.
            return_chain: Return x after each step, too.
            callback_on_step_end: See `StepCallback`; called after each step.
            output_type: "pt" for tensors, "np" for arrays.
            return_dict: False returns a tuple, (registers,) or (registers, chain).

        Raises:
            ValueError: Features that are not finite at valid positions, an unknown output type, and what
                `RegisterGenerator.forward` refuses.
            TypeError: A callback that returns neither a dict nor None.
        """
        if output_type not in ("pt", "np"):
            raise ValueError(f"output_type: got {output_type!r}, expected 'pt' or 'np'")
        device = self._execution_device
        features = features.to(device, self.model.dtype)
        if mask is not None:
            expect_mask("mask", mask, features.shape[:2])
            mask = mask.to(device)
        # The one moment at which waiting for the device costs nothing worth having.
        if not bool(masked(features, mask).isfinite().all()):
            raise ValueError("features: got NaN or infinite values at valid positions, expected finite ones")
        steps = self.model.sampling_steps(num_inference_steps)
        progress_bar: Any = self.progress_bar  # its decorator hides its signature
        with progress_bar(total=steps) as bar, _eval_mode(self.model):

            def after_step(step: int, timestep: int, x: Tensor) -> Tensor | None:
                bar.update()
                if callback_on_step_end is None:
                    return None
                outputs = callback_on_step_end(self, step, timestep, {"latents": x})
                if outputs is not None and not isinstance(outputs, dict):
                    raise TypeError(f"callback_on_step_end: returned {type(outputs).__name__}, expected a dict or None")
                return None if outputs is None else outputs.get("latents")

            result = self.model.with_scheduler(self.scheduler)(
                features,
                mask,
                generator,
                return_chain,
                register_mask=None if register_mask is None else register_mask.to(device),
                num_steps=num_inference_steps,
                guidance_scale=guidance_scale,
                callback=after_step,
            )
        self.maybe_free_model_hooks()
        outputs = [result.tokens, result.chain] if return_chain else [result.tokens]
        if output_type == "np":
            outputs = [_array(output) for output in outputs]
        return RegisterPipelineOutput(*outputs) if return_dict else tuple(outputs)

    def save_pretrained(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, save_directory: str | os.PathLike[str], safe_serialization: bool = True, variant: str | None = None
    ) -> None:
        """Write model/, scheduler/ and model_index.json; an interrupted save leaves what stood there.

        Args:
            save_directory: The folder, made if it does not exist.
            safe_serialization: Only True: weights are safetensors.
            variant: Only None.

        Raises:
            ValueError: Other values of the last two, which are there because diffusers' `push_to_hub` passes them.
        """
        if not safe_serialization or variant is not None:
            raise ValueError(
                f"safe_serialization, variant: got {safe_serialization}, {variant!r}, expected True and None"
            )
        with whole_folder(save_directory) as folder:
            self.model.save_pretrained(folder / "model")
            self.scheduler.save_pretrained(folder / "scheduler")
            self.save_config(folder)

    @classmethod
    def from_pretrained(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        *,
        model: RegisterGenerator | None = None,
        scheduler: Scheduler | None = None,
        torch_dtype: torch.dtype | None = None,
        **hub_options: Any,
    ) -> "RegisterPipeline":
        """Read what `save_pretrained` wrote.

        Args:
            pretrained_model_name_or_path: A folder, or the name of a repository on the Hugging Face Hub.
            model: Instead of the saved one.
            scheduler: Instead of the saved one.
            torch_dtype: Convert the model to it; None keeps the precision of the file.
            hub_options: revision, token, cache_dir, force_download, local_files_only.

        Raises:
            ValueError: Not such a folder, or components of unknown kinds.
            TypeError: An unknown option.
        """
        if unknown := sorted(hub_options.keys() - set(_HUB_OPTIONS)):
            raise TypeError(f"from_pretrained: got {', '.join(unknown)}, expected some of {', '.join(_HUB_OPTIONS)}")
        folder = Path(pretrained_model_name_or_path)
        if not folder.is_dir():
            wanted = ["model_index.json", "model/config.json", "model/model.safetensors", "scheduler/*.json"]
            folder = Path(snapshot_download(str(folder), allow_patterns=wanted, **hub_options))
        index = _read_index(folder)
        if model is None:
            if index["model"][-1] != "RegisterGenerator":
                raise ValueError(
                    f"model_index.json: model is {index['model']}, expected RegisterGenerator; pass model="
                )
            model = RegisterGenerator.from_pretrained(folder / "model")
        if scheduler is None:
            library, name = index["scheduler"]
            supported = sorted({row.scheduler for row in SCHEDULERS.values()})
            if library != "diffusers" or name not in supported:
                raise ValueError(
                    f"model_index.json: scheduler is {index['scheduler']}, expected one of diffusers' "
                    f"{', '.join(supported)}; or pass scheduler="
                )
            options = json.loads((folder / "scheduler" / "scheduler_config.json").read_text(encoding="utf-8"))
            scheduler = scheduler_of(options | {"_class_name": name})
        return cls(model if torch_dtype is None else model.to(torch_dtype), scheduler)


def _read_index(folder: Path) -> dict[str, Any]:
    try:
        index = json.loads((folder / "model_index.json").read_text(encoding="utf-8"))
        if all(len(index[name]) == 2 for name in ("model", "scheduler")):
            return index
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder}: not a folder of RegisterPipeline.save_pretrained ({error!r})") from error
    raise ValueError(
        f"{folder}: model_index.json names no model and scheduler, as RegisterPipeline.save_pretrained does"
    )


@contextmanager
def _eval_mode(model: torch.nn.Module) -> Any:
    """Every module in eval mode, and afterwards in the mode it had."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _array(values: Tensor) -> np.ndarray:
    values = values.cpu()
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()  # numpy has no bfloat16
