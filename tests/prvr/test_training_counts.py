"""What a training step asks of a GPU does not grow unnoticed: operators and bytes, counted on the meta device."""

import warnings

import pytest
import torch
from nightly import NIGHTLY

from _counts import count_step
from prvr.config import load_config

SIZES = {"hidden": 64, "video_dim": 96, "query_dim": 64, "lorentz_dim": 63}

#: Operators that compute, and megabytes that they read and write, of a step with 8 videos and 40 queries.
COUNTED = {
    "gmmformer-tvr": (759, 414.3),
    "hlformer-tvr": (1860, 1255.7),
    "dreamprvr-tvr": (2448, 1004.1),
    "hybrid-tvr": (3857, 1074.1),
}


@pytest.mark.skipif(torch.__version__ < "2.13" or torch.__version__ >= "2.14", reason="counted with torch 2.13")
@pytest.mark.parametrize("preset", [name for name in COUNTED if NIGHTLY or name != "dreamprvr-tvr"])
def test_operators_and_bytes_of_a_step(preset: str) -> None:
    work = count_step(
        load_config(preset, {f"model.{name}": size for name, size in SIZES.items()}, shared=True), videos=8
    ).total()
    found, known = (work.calls, work.bytes / 1e6), COUNTED[preset]
    line = f'"{preset}": ({work.calls}, {work.bytes / 1e6:.1f})'
    for what, now, before in zip(("operators", "megabytes"), found, known, strict=True):
        assert now <= 1.05 * before, f"{what} of a step: {before} before, {now:.6g} now; if that must be, write {line}"
        if now < 0.95 * before:
            warnings.warn(f"{what} of a step: {before} before, {now:.6g} now; write {line} into COUNTED", stacklevel=1)
