"""Refusals of bad input, each with what was expected and how to mend it."""

import torch
from torch import Tensor

from prvr.errors import InputError
from prvr.stages.diffusion.pooling import TextToVideo, VideoToText

_View = TextToVideo | VideoToText


def _expect_width(name: str, x: Tensor, width: int) -> None:
    if x.shape[-1] != width:
        raise InputError(
            f"{name}: have width {x.shape[-1]}, this re-ranker was built for {width}: use the embeddings of the "
            "retriever it was trained on, or train one for these"
        )


def _expect_mask(frames: Tensor, frame_mask: Tensor) -> None:
    if frame_mask.dtype != torch.bool:
        raise InputError(f"frame_mask is {frame_mask.dtype}, expected torch.bool (True = valid): use frame_mask > 0")
    if frame_mask.shape != frames.shape[:-1]:
        raise InputError(f"frame_mask: got shape {tuple(frame_mask.shape)}, expected {tuple(frames.shape[:-1])}")


def expect_pairs(view: _View, width: int, text: Tensor, frames: Tensor, frame_mask: Tensor) -> None:
    """Refuse queries and candidates that do not fit together.

    Raises:
        ValueError: number of axes, rows, candidates or width, or a mask that is not one.
    """
    for name, x, ranks, shape in (
        ("text", text, view.text_rank, view.text_shape),
        ("frames", frames, view.frames_rank, view.frames_shape),
    ):
        if x.ndim not in ranks:
            raise InputError(f"{name}: got shape {tuple(x.shape)}, expected {shape} in direction {view.name!r}")
        _expect_width(name, x, width)
    _expect_mask(frames, frame_mask)
    if text.ndim == view.text_rank[0] and frames.ndim == view.frames_rank[0] and len(text) != len(frames):
        raise InputError(f"text has {len(text)} rows, frames {len(frames)}: must be equal")


def expect_gallery(view: _View, width: int, scores: Tensor, text: Tensor, frames: Tensor, frame_mask: Tensor) -> None:
    """Refuse a score matrix that does not belong to these texts and videos, or numbers that are none.

    Raises:
        ValueError: a shape or width that does not fit, NaN, or a video without a valid frame.
    """
    _expect_width("text", text, width)
    _expect_width("frames", frames, width)
    _expect_mask(frames, frame_mask)
    expected = (len(text), len(frames)) if view.name == "t2v" else (len(frames), len(text))
    if scores.shape != expected:
        order = "(texts, videos)" if view.name == "t2v" else "(videos, texts)"
        raise InputError(
            f"scores: got shape {tuple(scores.shape)}, expected {expected}, {order} in direction {view.name!r}"
        )
    if bool(scores.isnan().any()):
        raise InputError(f"scores are NaN in row {int(scores.isnan().any(1).int().argmax())}: look at its embedding")
    finite = text.isfinite().all(1)
    if not bool(finite.all()):
        raise InputError(
            f"text: row {int(finite.int().argmin())} is not finite: a query without a valid word? Leave it out"
        )
    seen = frame_mask.any(1)
    if not bool(seen.all()):
        raise InputError(f"frame_mask: video {int(seen.int().argmin())} has no valid frame: leave it out")


def expect_shape(name: str, x: Tensor, like: Tensor) -> None:
    """Refuse what has not one number for each query and candidate.

    Raises:
        ValueError: it has not.
    """
    if x.shape != like.shape:
        raise InputError(
            f"{name}: got shape {tuple(x.shape)}, expected {tuple(like.shape)}, one for each candidate of each row"
        )


def expect_target(target: Tensor) -> None:
    """Refuse rows in which no candidate is right; on the CPU alone, elsewhere asking waits for the device.

    Raises:
        ValueError: there is one.
    """
    if target.device.type != "cpu":
        return
    right = (target > 0).any(1)
    if not bool(right.all()):
        raise InputError(
            f"target: no candidate of row {int(right.int().argmin())} is right: put one in, or leave the row out"
        )


def expect_timestep(timestep: Tensor, steps: int) -> None:
    """Refuse steps that were not trained; on the CPU alone.

    Raises:
        ValueError: there is one.
    """
    if timestep.device.type == "cpu" and bool(((timestep < 0) | (timestep >= steps)).any()):
        raise InputError(
            f"timestep: got {timestep.min()} to {timestep.max()}, expected 0 to {steps - 1}: no other was trained"
        )
