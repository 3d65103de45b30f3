"""Every attention of every preset looks at content at its start, and an evaluation says so of a trained one."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from reports import make_report, printed
from torch import Tensor

from prvr.config import ModelConfig, load_config, preset_names
from prvr.evaluation import EvaluationReport
from prvr.evaluation.report import BlockUse
from prvr.evaluation.tables import blocks_table
from prvr.models import Retriever
from prvr.models.blocks import Mixer
from prvr.plot.attention import watched


def features(count: int, length: int, width: int) -> Tensor:
    """Rows of unit length: what a sequence shares, six events one after the other, and noise."""
    shared, noise = torch.randn(count, 1, width), torch.randn(count, length, width)
    events = torch.randn(count, 6, width).repeat_interleave(-(-length // 6), 1)[:, :length]
    return F.normalize(shared + events + 0.7 * noise, dim=-1)


def uses(config: ModelConfig) -> list[BlockUse]:
    torch.manual_seed(0)
    retriever = Retriever(config).eval()
    with torch.no_grad(), watched(retriever) as blocks:
        mask = torch.ones(3, config.max_frames, dtype=torch.bool)
        clips, frames = (features(3, length, config.video_dim) for length in (config.num_clips, config.max_frames))
        retriever.encode_video(clips, frames, mask)
        retriever.encode_text(features(3, 10, config.query_dim), torch.ones(3, 10, dtype=torch.bool))
    assert len(blocks) >= sum(isinstance(module, Mixer) for module in retriever.modules())
    return blocks


def _models() -> dict[str, ModelConfig]:
    """The presets whose attentions differ: one of each kind and size."""
    models: dict[tuple, tuple[str, ModelConfig]] = {}
    for name in preset_names():
        model = load_config(name).model
        if isinstance(model, ModelConfig):
            names = ("hidden", "heads", "lorentz_dim", "blocks", "compat", "window", "motion")
            kind = (*(getattr(model, name) for name in names), model.registers.kind)
            frames = replace(model, max_frames=32, video_dim=256, query_dim=256)  # neither decides how attention starts
            models.setdefault(kind, (name, frames))
    return dict(models.values())


MODELS = _models()


@pytest.mark.parametrize("name", MODELS)
def test_logits_have_a_spread_over_keys_at_the_start(name: str) -> None:
    config = MODELS[name]
    for use in uses(config):
        # The weights N(0, 0.02) of Euclidean blocks give about 0.0003 hidden: small models start with less.
        least = 0.05 if "groups.1" in use.block or config.hidden >= 256 else 0.02
        assert least < use.deviation < 2, use
        assert 0.5 < use.entropy <= 1 + 1e-6, use
        assert use.other_registers is None or use.other_registers > 1e-5, use


def test_a_report_keeps_what_blocks_do_and_shows_it(tmp_path: Path) -> None:
    blocks = (BlockUse("clips 0", 0.5, 0.9), BlockUse("clips 1", 0.25, 0.95, 0.125, 0.0625))
    report = make_report([1, 2], [0, 1], blocks=blocks)
    report.to_json(tmp_path / "evaluation.json")
    assert EvaluationReport.from_json(tmp_path / "evaluation.json").blocks == blocks
    assert re.search(r"clips 1 +0\.25 +0\.950 +12\.5% +6\.2%", printed(blocks_table(report)))
    assert blocks_table(make_report([1], [0])) is None
