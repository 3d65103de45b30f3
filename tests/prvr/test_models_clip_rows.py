"""Clip constructions and poolings of frames, and the losses of key clips, against plain loops."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from test_models import build, make_batch
from torch import Tensor

import prvr
from prvr.config import BlockConfig, ConfigError, LossConfig, ModelConfig, validated
from prvr.errors import InputError
from prvr.losses import key_clip_nce_loss, key_clip_triplet_loss
from prvr.models.clips import MergedClips, Proposals
from prvr.models.rows import Sequences

DLDKD = {"clip_construction": "frames", "frame_pooling": "linear", "frame_query": "second"}
MERGED = {"clip_construction": "merged", "blocks": (BlockConfig(), BlockConfig(width=4.0))}
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


def test_what_does_not_go_together_is_refused() -> None:
    sizes = {"video_dim": 4, "query_dim": 4}
    with pytest.raises(ConfigError, match="frame_pooling='key_clip' needs branches='both' and frame_query='pooled'"):
        validated(ModelConfig, sizes | {"frame_pooling": "key_clip", "frame_query": "words"})
    with pytest.raises(ConfigError, match=r"key_clip_nce=0\.04 needs model\.frame_pooling='key_clip'"):
        prvr.load_config("hybrid-tvr", {"loss.key_clip_nce": 0.04})
    with pytest.raises(ConfigError, match=r"clip_construction='frames' needs compat\.padding='masked'"):
        validated(ModelConfig, sizes | {"clip_construction": "frames", "compat": {"padding": "to_length"}})
    with pytest.raises(ConfigError, match=r"makes of max_frames=128 rows num_clips=8 in three stages, each by at most"):
        validated(ModelConfig, {"video_dim": 4, "query_dim": 4, "clip_construction": "merged", "num_clips": 8})


def _merged(rows: Tensor, counts: list[int]) -> tuple[list[Tensor], list[int], list[int]]:
    """One video by plain loops: rows, their sizes, and the row of each frame."""
    members, x = [[i] for i in range(len(rows))], list(rows)
    for count in counts:
        pairs = [(float(x[i] @ x[i + 1]), i) for i in range(0, len(x), 2)]
        joined = {i for _, i in sorted(pairs, reverse=True)[: len(x) - count]}
        following: list[tuple[Tensor, list[int]]] = []
        for i in range(0, len(x), 2):
            if i in joined:
                a, b = len(members[i]), len(members[i + 1])
                following.append(((a * x[i] + b * x[i + 1]) / (a + b), members[i] + members[i + 1]))
            else:
                following += [(x[i], members[i]), (x[i + 1], members[i + 1])]
        x, members = [row for row, _ in following], [own for _, own in following]
    owner = [next(c for c, own in enumerate(members) if i in own) for i in range(len(rows))]
    return [row / (row.norm() + 1e-5) for row in x], [len(own) for own in members], owner


def test_neighbours_that_are_alike_merge_in_three_stages() -> None:
    part = MergedClips(ModelConfig(video_dim=5, query_dim=5, num_clips=6, max_frames=24))
    assert part.stages == [24, 16, 8, 6]
    frames = F.normalize(torch.randn(3, 24, 5, dtype=torch.float64), dim=2)
    clips = part.merge(frames)
    for v in range(3):
        rows, sizes, owner = _merged(frames[v], part.stages[1:])
        torch.testing.assert_close(clips.features[v], torch.stack(rows))
        assert clips.sizes[v].tolist() == sizes
        assert clips.clip_of[v].tolist() == owner


def test_short_videos_repeat_frames_and_sizes_are_weights_of_keys() -> None:
    retriever, batch = build(**MERGED), make_batch([9, 3, 1], pad_to=11)
    out, other = retriever(batch), retriever(dataclasses.replace(batch, clips=torch.zeros_like(batch.clips)))
    assert torch.equal(out.scores.total, other.scores.total)
    rows = [min(round(i / 12 * 3), 2) for i in range(12)]
    repeated = make_batch([12, 12])
    repeated.frames[1] = batch.frames[1, rows]
    torch.testing.assert_close(retriever(repeated).video.clips[1], out.video.clips[1])
    torch.testing.assert_close(retriever(repeated).video.frames[1], out.video.frames[1])
    sizes, spans = out.video.merged.sizes, out.video.clip_spans
    torch.testing.assert_close(spans[..., 1] - spans[..., 0], sizes / 12)
    assert torch.equal(spans[:, 1:, 0], spans[:, :-1, 1])
    assert float(spans[:, 0, 0].abs().max()) == 0
    assert retriever.encode_video(batch.clips, batch.frames, batch.frame_mask).merged is None


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


def test_alignment_is_plain_loops() -> None:
    retriever = build(**MERGED, num_clips=6, max_frames=24)
    batch = make_batch([24, 20, 17, 12], pad_to=24)
    batch = dataclasses.replace(batch, clips=batch.clips.repeat(1, 2, 1)[:, :6])
    similarity = 0.25
    terms = {"alignment": {"weight": 0.5, "similarity": similarity}}
    objective = prvr.Objective(LossConfig(OFF | terms), retriever.config).double()
    torch.nn.init.normal_(objective.alignment.project.weight)
    out, total, levels = retriever(batch), 0.0, set()
    for v in range(4):
        merged = out.video.merged
        clips, sizes, owner = (x[v].tolist() for x in (merged.features, merged.sizes, merged.clip_of))
        segments = list(objective.alignment.project(out.video.clips[v]))
        frames = objective.alignment.project(out.video.frames[v])
        clips = [torch.tensor(row, dtype=torch.float64) for row in clips]

        def cosine(a: Tensor, b: Tensor) -> float:
            return float(F.cosine_similarity(a, b, dim=0))

        reached = [{i} for i in range(6)]
        for own in reached:
            while more := {j for i in own for j in range(6) if cosine(clips[i], clips[j]) > similarity} - own:
                own |= more
        share = sum(len(own) - 1 for own in reached) / 30
        level = sum(share >= bound for bound in (0.2, 0.4, 0.6, 0.8))
        levels.add(level)
        for count in (4, 2, 2, 2)[:level]:
            pairs = [
                (cosine(clips[a], clips[b]), a, b) for a in range(0, len(clips), 2) for b in range(1, len(clips), 2)
            ]
            joined: dict[int, int] = {}
            for _, a, b in sorted(pairs, reverse=True):
                if len(joined) < len(clips) - count and a not in joined and b not in joined.values():
                    joined[a] = b
            left = [i for i in range(len(clips)) if i not in joined.values()]
            owner = [left.index({b: a for a, b in joined.items()}.get(i, i)) for i in owner]
            parts = [[i, joined[i]] if i in joined else [i] for i in left]
            weights = [sum(sizes[i] for i in part) for part in parts]
            clips = [sum(sizes[i] * clips[i] for i in p) / w for p, w in zip(parts, weights, strict=True)]
            segments = [sum(sizes[i] * segments[i] for i in p) / w for p, w in zip(parts, weights, strict=True)]
            sizes = weights
        products = (frames @ torch.stack(segments).T).exp()
        own = torch.tensor(owner)[:, None] == torch.arange(len(segments))
        for dim in (0, 1):
            right, wrong = ((products * part).sum(dim) / part.sum(dim) for part in (own, ~own))
            total = total - (right / (right + wrong)).log().mean()
    assert len(levels) > 1
    torch.testing.assert_close(objective(out, batch)["alignment"], 0.5 * total / 4)
