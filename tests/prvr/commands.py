"""What the tests of the commands share."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from prvr.cli import main

SMALL = {
    "model.hidden": 16,
    "model.heads": 2,
    "model.lorentz_dim": 15,
    "model.blocks": [{"space": "euclidean"}, {"space": "lorentz", "width": 2.0}],
    "model.registers.steps": 2,
    "model.max_frames": 40,
    "data.captions_per_video": 1,
    "train.batch_size": 30,
    "train.epochs": 2,
    "fit.kernel": "gaussian",
    "fit.windows": [[8]],
    "fit.widths": [1.0],
    "fit.penalties": [3.0],
    "fit.temperatures": [0.1],
}
"""Of hybrid-toy: trained on toy-tiny in seconds."""


def as_options(keys: Mapping[str, Any]) -> list[str]:
    """Keys of a configuration as words of a command line."""
    return [f"--{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in keys.items()]


def cells(text: str) -> str:
    """Tables as one line, without their frames."""
    return " ".join("".join(c for c in text if not 0x2500 <= ord(c) < 0x2580).split())


def explained(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command that must fail says: one paragraph, exit code 2, nothing on standard output."""
    capsys.readouterr()
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    assert err.count("\n") == 1, err
    assert err.startswith("prvr: error: ")
    return err
