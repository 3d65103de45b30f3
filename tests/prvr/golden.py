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
SYSTEMS = ("hlformer", "dreamprvr", "gmmformer", "ms-sl", "gmmformer-v2", "ral", "dl-dkd", "msc-prvr")


def drawn_weights(seed: int, shapes: dict[str, list[int]]) -> dict[str, np.ndarray]:
    """Weights from a generator whose numbers numpy promises to keep, tensor by tensor in order of names."""
    draw, weights = np.random.RandomState(seed), {}
    for name in sorted(shapes):
        numbers = 0.2 * draw.standard_normal(shapes[name])
        if name.endswith("weight") and "norm" in name.split(".")[-2].lower():
            numbers = 1 + numbers / 2
        elif name.endswith("weight") and numbers.ndim == 2:
            numbers = numbers * 5 / np.sqrt(numbers.shape[1])
        weights[name] = numbers.astype(np.float32)
    return weights


def drawn_batch(seed: int, sizes: dict[str, Any]) -> dict[str, np.ndarray]:
    """Features of unit length for videos with these numbers of frames and captions, and words for each caption."""
    draw, frames, words = np.random.RandomState(seed), np.array(sizes["frames"]), np.array(sizes["words"])

    def unit(*shape: int) -> np.ndarray:
        numbers = draw.standard_normal(shape)
        return (numbers / (np.linalg.norm(numbers, axis=-1, keepdims=True) + 1e-5)).astype(np.float32)

    clips = unit(len(frames), sizes["clips"], sizes["video_dim"])
    fine = unit(len(frames), frames.max(), sizes["video_dim"])
    if "walk" in sizes:  # frames that go on from those before, so that some are alike
        fine = np.cumsum(fine, 1)
        fine = (fine / np.linalg.norm(fine, axis=-1, keepdims=True)).astype(np.float32)
    text = unit(len(words), words.max(), sizes["query_dim"])
    teacher = {}
    if "teacher_dim" in sizes:  # features of the frames and sentences of a joint space
        shapes = (len(frames), frames.max(), sizes["teacher_dim"]), (len(words), sizes["teacher_dim"])
        teacher = {"teacher_videos": unit(*shapes[0]), "teacher_text": unit(*shapes[1])}
    masks = [(np.arange(count.max()) < count[:, None]).astype(np.float32) for count in (frames, words)]
    return {
        "clip_video_features": clips,
        "frame_video_features": fine * masks[0][..., None],
        "videos_mask": masks[0],
        "text_feat": text * masks[1][..., None],
        "text_mask": masks[1],
        "text_labels": np.repeat(np.arange(len(frames)), sizes["captions"]),
    } | teacher


RAW_FRAMES = (300, 200, 128, 70, 31, 3)


def drawn_corpus(seed: int, sizes: dict[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Features as extractors store them, of no unit length: frames that go on from those before by video, words by
    caption id. Some videos have more frames than a model takes and some captions more words.
    """
    draw, words = np.random.RandomState(seed), iter(sizes["words"])
    videos, captions = {}, {}
    for number, (frames, count) in enumerate(zip(RAW_FRAMES, sizes["captions"], strict=True)):
        steps = 0.4 * np.cumsum(draw.standard_normal((frames, sizes["video_dim"])), 0)
        videos[f"v{number}"] = (steps * np.exp(draw.standard_normal((frames, 1)))).astype(np.float32)
        for k in range(count):
            rows = 2 * next(words), sizes["query_dim"]
            captions[f"v{number}#enc#{k}"] = (5 * draw.standard_normal(rows)).astype(np.float32)
    return videos, captions


@dataclass(frozen=True)
class Golden:
    """One fixture file. Files with the key `drawn` hold no weights and no batch, but the seeds to draw them from."""

    system: str

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        with np.load(FIXTURES / f"prvr_{self.system}.npz") as file:
            arrays = dict(file)
        if "drawn" in arrays:
            drawn = json.loads(str(arrays["drawn"]))
            weights, batch = drawn_weights(drawn["seeds"][0], drawn["shapes"]), drawn_batch(drawn["seeds"][1], drawn)
            arrays |= {f"sd/{name}": numbers for name, numbers in weights.items()}
            arrays |= {f"in/{name}": numbers for name, numbers in batch.items()}
            for seed in drawn["seeds"][2:]:
                draw = np.random.RandomState(seed).standard_normal(drawn["noise"])
                arrays["in/noise"] = draw.astype(np.float32)
        return arrays

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

        owner, teacher = tensor("text_labels"), None
        if "in/teacher_text" in self.arrays:
            of_query = tensor("teacher_videos")[owner].double(), tensor("teacher_text").double()
            teacher = torch.nn.functional.cosine_similarity(of_query[0], of_query[1][:, None], dim=-1)
        return prvr.Batch(
            clips=tensor("clip_video_features"),
            frames=tensor("frame_video_features"),
            frame_mask=tensor("videos_mask") > 0,
            words=tensor("text_feat"),
            word_mask=tensor("text_mask") > 0,
            query_to_video=owner,
            teacher_frames=teacher,
        ).to(dtype=dtype)

    def given(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """What the objective would draw, by the names of its arguments."""
        stored = {"register_targets": "in/tps_output", "noise": "in/noise"}
        return {
            name: torch.from_numpy(self.arrays[key]).to(dtype) for name, key in stored.items() if key in self.arrays
        }


def check_close(actual: Tensor, expected: np.ndarray, tolerance: float, what: str) -> None:
    """Fail unless the largest difference is within `tolerance` of the largest value."""
    got = actual.detach().double().numpy()
    assert got.shape == expected.shape, f"{what}: shape {got.shape}, expected {expected.shape}"
    scale = max(float(np.abs(expected).max()), 1e-300)
    error = float(np.abs(got - expected).max()) / scale
    assert error <= tolerance, f"{what}: relative difference {error:.2e} exceeds {tolerance:.0e}"
