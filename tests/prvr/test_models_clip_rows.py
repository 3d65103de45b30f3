"""Clip constructions and poolings of frames, and the losses of key clips, against plain loops."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from test_models import build, make_batch
from torch import Tensor, nn

import prvr
from prvr.config import CLIPS, ConfigError, LossConfig, ModelConfig, config_to_dict, validated
from prvr.errors import InputError
from prvr.losses import key_clip_nce_loss, key_clip_triplet_loss
from prvr.models.clips import ClipConstruction, FramePooling, KeyClipFrames, Proposals
from prvr.types import VideoEmbedding

DLDKD = {"clip_construction": "frames", "frame_pooling": "linear", "frame_query": "second"}
MSSL = {"clip_construction": "proposals", "frame_pooling": "key_clip"}
OFF = {"info_nce_clips": 0, "info_nce_frames": 0, "diversity": 0, "triplet": 0}


def test_proposals_are_the_means_of_all_runs_of_clips() -> None:
    model = ModelConfig(video_dim=5, query_dim=5, num_clips=7)
    encoded = torch.randn(3, 7, 5, dtype=torch.float64)
    part = Proposals(model)
    rows, spans = part(lambda clips: clips, encoded, None, None)
    assert rows.shape[1] == part.rows == 28
    for number, (first, last) in enumerate((7 * spans[1]).round().int().tolist()):
        torch.testing.assert_close(rows[:, number], encoded[:, first:last].mean(1))
    assert len({tuple(span) for span in spans[0].tolist()}) == 28


@pytest.mark.parametrize("dots", [True, False])
def test_frames_are_those_that_the_best_clip_reads(dots: bool) -> None:
    retriever, batch = build(**MSSL), make_batch([9, 3, 1], pad_to=11)
    with torch.no_grad():
        for parameter in retriever.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
        plain = build(clip_construction="proposals")
        plain.load_state_dict({k: v for k, v in retriever.state_dict().items() if "frame_pool" not in k})
        text, video = retriever.encode_text(batch.words, batch.word_mask), retriever(batch).video
        every = plain(batch).video  # with frames one by one
        scores = retriever.score(text, video, dots)
        part = retriever.frame_pool
        for q in range(len(text)):
            for v, length in enumerate((9, 3, 1)):
                cosines = F.cosine_similarity(text[q], every.clips[v], dim=-1)
                key, frames = every.clips[v, cosines.argmax()], every.frames[v, :length]
                read = (frames @ part.key.weight.T @ key).softmax(0) @ (frames @ part.value.weight.T)
                torch.testing.assert_close(scores.clips[q, v], cosines.max())
                torch.testing.assert_close(scores.frames[q, v], F.cosine_similarity(text[q], read, dim=0))
                if dots:
                    torch.testing.assert_close(scores.frames_dot[q, v], text[q] @ read)
                    torch.testing.assert_close(scores.clips_dot[q, v], (every.clips[v] @ text[q]).max())
        unit = retriever.score(text, retriever.for_scoring(video))
        torch.testing.assert_close(unit.total, scores.total, rtol=1e-12, atol=1e-12)


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
        for q, (clip_query, frame_query) in enumerate(zip(out.text.sentence, out.text.words[:, 0], strict=True)):
            for query, of, (cosines, dots) in (
                (clip_query, rows, (out.scores.clips, out.scores.clips_dot)),
                (frame_query, frames, (out.scores.frames, out.scores.frames_dot)),
            ):
                torch.testing.assert_close(cosines[q, v], F.cosine_similarity(query, of, dim=-1).max())
                torch.testing.assert_close(dots[q, v], (of @ query).max())
    names = {name.removeprefix("encoder.") for name, _ in retriever.frame_query.named_parameters()}
    assert names == {name for name, _ in retriever.query.named_parameters()}


def test_frame_distillation_is_a_plain_loop_and_decays() -> None:
    retriever, batch = build(**DLDKD), make_batch([9, 3, 1], pad_to=11)
    out, terms = retriever(batch), {"frame_distillation": {"weight": 0.5, "temperature": 0.2, "decay": 0.9}}
    objective = prvr.Objective(LossConfig(OFF | terms), retriever.config)
    expected = 0.0
    for q, v in enumerate(batch.query_to_video.tolist()):
        length = int(batch.frame_mask[v].sum())
        cosines = F.cosine_similarity(out.text.sentence[q], out.video.clips[v, :length], dim=-1)
        target = (batch.teacher_frames[q, :length] / 0.2).softmax(0)
        expected = expected + (target * (target.log() - (cosines / 0.2).log_softmax(0))).sum()
    torch.testing.assert_close(objective(out, batch)["frame_distillation"], 0.5 * expected)
    objective.epoch = 3
    torch.testing.assert_close(objective(out, batch)["total"], 0.5 * 0.9**3 * expected)
    parts = [part.labels.teacher_frames for part in batch.padded(12, 8).split(2)]
    assert torch.equal(torch.cat(parts)[:, :11], batch.labels.teacher_frames)
    with pytest.raises(InputError, match=r"Pass them as Batch\.teacher_frames"):
        objective(out, dataclasses.replace(batch, teacher_frames=None))


def test_losses_of_key_clips_are_plain_loops() -> None:
    scores = torch.randn(6, 6, dtype=torch.float64)
    owner = [0, 0, 1, 2, 2, 2]
    same = torch.tensor(owner)[:, None] == torch.tensor(owner)
    for positives in (torch.eye(6, dtype=torch.bool), same):
        contrast = ranking = torch.zeros((), dtype=torch.float64)
        for q in range(6):
            wrong = [p for p in range(6) if not positives[q, p]]
            terms = [scores[q, p] for p in [q, *wrong]] + [scores[p, q] for p in [q, *wrong]]
            contrast = contrast + torch.stack(terms).logsumexp(0) - scores[q, q]
            for negative in (scores[q, wrong].max(), scores[wrong, q].max()):
                ranking = ranking + F.relu(0.3 + negative - scores[q, q])
        torch.testing.assert_close(key_clip_nce_loss(scores, positives), contrast / 6)
        torch.testing.assert_close(key_clip_triplet_loss(scores, positives, 0.3, "hardest"), ranking / 6)


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


def test_hard_negatives_of_key_clips_come_from_the_pool() -> None:
    scores, right = torch.arange(25.0).reshape(5, 5), torch.eye(5, dtype=torch.bool)
    found = {key_clip_triplet_loss(scores, right, 30.0, "hard", hard_pool=1).item() for _ in range(20)}
    assert found == {key_clip_triplet_loss(scores, right, 30.0, "hardest").item()}
    assert len({key_clip_triplet_loss(scores, right, 30.0, "hard", hard_pool=2).item() for _ in range(20)}) > 1


class Halves(nn.Module):
    """A construction of a user's own, which cuts each video at its own place before it is encoded."""

    has_spans = True

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.rows = model.num_clips

    def forward(self, encode, clips: Tensor, frames: Tensor, mask: Tensor):
        counts = mask.sum(1).tolist()
        cuts = [max(1, count // 3) for count in counts]
        parts = [
            torch.stack([frames[v, :cut].mean(0), *[frames[v, min(cut, count - 1) : count].mean(0)] * (self.rows - 1)])
            for v, (cut, count) in enumerate(zip(cuts, counts, strict=True))
        ]
        shares = [
            [[0.0, cut / count]] + [[min(cut, count - 1) / count, 1.0]] * (self.rows - 1)
            for cut, count in zip(cuts, counts, strict=True)
        ]
        return encode(torch.stack(parts)), clips.new_tensor(shares)


def test_a_construction_of_ones_own_cuts_each_video_differently(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CLIPS, "_entries", dict(CLIPS._entries))
    CLIPS.register("halves", Halves, "Two parts of unequal length.")
    retriever = build(clip_construction="halves")
    assert isinstance(retriever.clip_rows, ClipConstruction)
    assert isinstance(retriever.frame_pool, FramePooling)
    batch = make_batch([9, 3, 1])
    video = retriever(batch).video
    torch.testing.assert_close(video.clip_spans[:, 0, 1], torch.tensor([1 / 3, 1 / 3, 1.0], dtype=torch.float64))
    alone = [
        retriever.encode_video(batch.clips[v : v + 1], batch.frames[v : v + 1], batch.frame_mask[v : v + 1])
        for v in range(3)
    ]
    joined = VideoEmbedding.cat(alone)
    torch.testing.assert_close(joined.clips, video.clips)
    assert torch.equal(joined.clip_spans, video.clip_spans)
    assert torch.equal(video[1:].clip_spans, video.clip_spans[1:])
    read = validated(ModelConfig, config_to_dict(retriever.config))
    assert read.clip_construction == "halves"


def test_what_does_not_go_together_is_refused() -> None:
    sizes = {"video_dim": 4, "query_dim": 4}
    with pytest.raises(ConfigError, match="frame_pooling='key_clip' needs branches='both' and frame_query='pooled'"):
        validated(ModelConfig, sizes | {"frame_pooling": "key_clip", "frame_query": "words"})
    with pytest.raises(ConfigError, match=r"unknown clip_construction 'proposal'; did you mean proposals\?"):
        validated(ModelConfig, sizes | {"clip_construction": "proposal"})
    with pytest.raises(ConfigError, match=r"key_clip_nce=0\.04 needs model\.frame_pooling='key_clip'"):
        prvr.load_config("hybrid-tvr", {"loss.key_clip_nce": 0.04})
    with pytest.raises(ConfigError, match=r"frame_distillation=0\.1 needs model\.clip_construction='frames'"):
        prvr.load_config("hybrid-tvr", {"loss.frame_distillation": 0.1})
    with pytest.raises(ConfigError, match=r"clip_construction='frames' needs registers\.kind='none' and compat\.padd"):
        validated(ModelConfig, sizes | {"clip_construction": "frames", "compat": {"padding": "to_length"}})
    part = KeyClipFrames(ModelConfig(**sizes, hidden=8))
    assert part.by_clip
