"""The authors' numbers packed in tests/fixtures, as models and batches."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import prvr

FIXTURES = Path(__file__).parents[1] / "fixtures"
SYSTEMS = ("hlformer", "dreamprvr", "gmmformer")


@dataclass(frozen=True)
class Golden:
    """One fixture file."""

    system: str

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        with np.load(FIXTURES / f"prvr_{self.system}.npz") as file:
            return dict(file)

    @property
    def config(self) -> dict[str, Any]:
        return json.loads(str(self.arrays["config"]))

    @property
    def state(self) -> dict[str, Tensor]:
        return {k[3:]: torch.from_numpy(v) for k, v in self.arrays.items() if k.startswith("sd/")}

    def load(self, dtype: torch.dtype) -> tuple[prvr.Retriever, prvr.Objective]:
        retriever, objective = prvr.load_released(self.state, self.config)
        return retriever.to(dtype), objective.to(dtype)

    def batch(self, dtype: torch.dtype) -> prvr.Batch:
        def tensor(key: str) -> Tensor:
            return torch.from_numpy(self.arrays[f"in/{key}"])

        return prvr.Batch(
            clips=tensor("clip_video_features"),
            frames=tensor("frame_video_features"),
            frame_mask=tensor("videos_mask") > 0,
            words=tensor("text_feat"),
            word_mask=tensor("text_mask") > 0,
            query_to_video=tensor("text_labels"),
        ).to(dtype=dtype)

    def register_targets(self, dtype: torch.dtype) -> Tensor | None:
        stored = self.arrays.get("in/tps_output")
        return None if stored is None else torch.from_numpy(stored).to(dtype)


def check_close(actual: Tensor, expected: np.ndarray, tolerance: float, what: str) -> None:
    """Fail unless the largest difference is within `tolerance` of the largest value."""
    got = actual.detach().double().numpy()
    assert got.shape == expected.shape, f"{what}: shape {got.shape}, expected {expected.shape}"
    scale = max(float(np.abs(expected).max()), 1e-300)
    error = float(np.abs(got - expected).max()) / scale
    assert error <= tolerance, f"{what}: relative difference {error:.2e} exceeds {tolerance:.0e}"
