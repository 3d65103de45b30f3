"""Clip constructions and poolings of frames, and the losses of key clips, against plain loops."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from test_models import build, make_batch

import prvr
from prvr.config import BlockConfig, ConfigError, LossConfig, ModelConfig, validated
from prvr.errors import InputError
from prvr.models.rows import Sequences
from prvr.published.ms_sl.clips import key_clip_nce_loss

DLDKD = {"clip_construction": "frames", "frame_pooling": "linear", "frame_query": "second"}
MERGED = {"clip_construction": "merged", "blocks": (BlockConfig(), BlockConfig(width=4.0))}
MSSL = {"clip_construction": "proposals", "frame_pooling": "key_clip"}
OFF = {"info_nce_clips": 0, "info_nce_frames": 0, "diversity": 0, "triplet": 0}


def test_both_branches_encode_frames_and_have_queries_of_their_own() -> None:
    """Rows past a video's end repeat its last one, and clips are not read."""
    retriever, batch = build(**DLDKD), make_batch([9, 3, 1], pad_to=11)
    out, other = retriever(batch), retriever(dataclasses.replace(batch, clips=torch.zeros_like(batch.clips)))
    assert torch.equal(out.scores.total, other.scores.total)
    for v, length in enumerate((9, 3, 1)):
        rows, frames = out.video.clips[v], out.video.frames[v, :length]
        assert len(rows) == retriever.config.max_frames
        assert torch.equal(rows[length:], rows[length - 1].expand(len(rows) - length, -1))
        expected = [[i / length, (i + 1) / length] for i in range(length)]
        torch.testing.assert_close(out.video.clip_spans[v, :length], torch.tensor(expected, dtype=torch.float64))
        for query, of, scores in (
            (out.text.sentence, rows, out.scores.clips),
            (out.text.words[:, 0], frames, out.scores.frames),
        ):
            torch.testing.assert_close(scores[:, v], F.cosine_similarity(query[:, None], of, dim=-1).amax(1))


def test_frame_distillation_decays_and_needs_a_teacher() -> None:
    """The numbers are those of the authors, see test_released.py."""
    retriever, batch = build(**DLDKD), make_batch([9, 3, 1], pad_to=11)
    out, terms = retriever(batch), {"frame_distillation": {"weight": 0.5, "temperature": 0.2, "decay": 0.9}}
    objective = prvr.Objective(LossConfig(OFF | terms), retriever.config)
    first = objective(out, batch)["total"]
    objective.epoch = 3
    torch.testing.assert_close(objective(out, batch)["total"], 0.9**3 * first)
    with pytest.raises(InputError, match=r"Pass them as Batch\.teacher_frames"):
        objective(out, dataclasses.replace(batch, teacher_frames=None))


def test_siblings_are_negatives_only_as_released() -> None:
    retriever, batch = build(**MSSL), make_batch([9, 3])
    out = retriever(batch)
    totals = {}
    for siblings in ("left_out", "negatives"):
        terms = {"key_clip_nce": {"weight": 1.0, "siblings": siblings}}
        totals[siblings] = prvr.Objective(LossConfig(OFF | terms), retriever.config)(out, batch)["key_clip_nce"]
    owner = batch.query_to_video
    key = out.scores.key_clip[torch.arange(4), owner]
    dots = out.text @ out.video.frames[owner, key].T
    torch.testing.assert_close(totals["left_out"], key_clip_nce_loss(dots, owner[:, None] == owner))
    torch.testing.assert_close(totals["negatives"], key_clip_nce_loss(dots, torch.eye(4, dtype=torch.bool)))
    assert totals["negatives"] > totals["left_out"]


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"key_clip_nce=0\.04 needs model\.frame_pooling='key_clip'"):
        prvr.load_config("hybrid-tvr", {"loss.key_clip_nce": 0.04})
    with pytest.raises(ConfigError, match=r"makes of max_frames=128 rows num_clips=8 in three stages, each by at most"):
        validated(ModelConfig, {"video_dim": 4, "query_dim": 4, "clip_construction": "merged", "num_clips": 8})


@pytest.mark.parametrize("window", ["multiply", "add"])
@pytest.mark.parametrize("width", [None, 4.0])
def test_a_key_of_size_two_is_the_same_key_twice(window: str, width: float | None) -> None:
    retriever = build(**(MERGED | {"window": window, "blocks": (BlockConfig(width=width),)}))
    mixer, x = retriever.clips.layers[0].groups[0].mixer, torch.randn(2, 4, 16, dtype=torch.float64)
    sizes = torch.tensor([[1.0, 2.0, 1.0, 3.0], [2.0, 1.0, 1.0, 1.0]], dtype=torch.float64)
    table = None if width is None else torch.rand(1, 4, 4, dtype=torch.float64) + 0.1
    rows = mixer(x, Sequences(None, 4, sizes=sizes), table, None)
    for v in range(2):
        times = sizes[v].long()
        first = times.cumsum(0) - times
        long = None if table is None else table.repeat_interleave(times, 1).repeat_interleave(times, 2)
        expected = mixer(x[v : v + 1].repeat_interleave(times, 1), Sequences(None, int(times.sum())), long, None)
        torch.testing.assert_close(rows[:, v], expected[:, 0, first])
