"""Scoring and ranking a whole split: streamed blocks against the plain way, as a ratio of their times.

    python benchmarks/evaluation.py                         # a fifth of the TVR test set each way
    python benchmarks/evaluation.py --queries 10895 --videos 2179 --device cuda --json evaluation.json

Streamed: `prvr.scoring.max_scores` block by block into `prvr.evaluation.streaming.stream_counts`, which gives ranks in
both directions. Plain: every chunk of videos is normalised again for every chunk of queries, the whole matrix is kept,
and ranks are looked up in sorted rows, query by query and (for video to text) video by video. Ranks must be equal.
"""

import argparse
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from _harness import Contender, Tasks, compare, environment, option, parse_options, show, write_figures
from prvr.evaluation.streaming import stream_counts
from prvr.scoring import max_scores, normalised
from prvr.types import VideoEmbedding


def chunks(total: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, total)) for start in range(0, total, size)]


def noise(args: argparse.Namespace) -> tuple[Tensor, VideoEmbedding, Tensor]:
    """Queries, videos, and the video of each query."""
    torch.manual_seed(args.seed)
    lengths = torch.randint(args.frames // 4, args.frames + 1, (args.videos, 1))
    video = VideoEmbedding(
        clips=torch.randn(args.videos, args.clips, args.hidden),
        frames=torch.randn(args.videos, args.frames, args.hidden),
        frame_mask=torch.arange(args.frames) < lengths,
    )
    owner = torch.arange(args.queries) * args.videos // args.queries
    return torch.randn(args.queries, args.hidden).to(args.device), video.to(args.device), owner.to(args.device)


def streamed(text: Tensor, video: VideoEmbedding, owner: Tensor, args: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """Ranks both ways; the rows of a part of the gallery are normalised once."""
    parts: dict[int, VideoEmbedding] = {}

    def score(rows: slice, columns: slice) -> Tensor:
        if columns.start not in parts:
            parts.clear()
            parts[columns.start] = normalised(video[columns])
        part = parts[columns.start]
        assert part.clips is not None
        assert part.frames is not None
        clips, _ = max_scores(text[rows], part.clips, dots=False, unit=part.unit)
        frames, _ = max_scores(text[rows], part.frames, part.frame_mask, dots=False, unit=part.unit)
        return 0.5 * clips + 0.5 * frames

    pairs = torch.stack([torch.arange(len(text)), owner.cpu()], 1)
    blocks = chunks(len(text), args.query_batch), chunks(len(video), args.video_batch)
    to_video, to_text = stream_counts(score, pairs, *blocks)
    return to_video.ranks(), to_text.ranks()


def plain_scores(text: Tensor, video: VideoEmbedding, args: argparse.Namespace) -> Tensor:
    assert video.clips is not None
    assert video.frames is not None
    assert video.frame_mask is not None
    rows = []
    for q in chunks(len(text), args.plain_query_batch):
        row = []
        for v in chunks(len(video), args.video_batch):
            query = F.normalize(text[q], dim=-1)
            clips = torch.einsum("qd,vcd->qvc", query, F.normalize(video.clips[v], dim=-1)).amax(-1)
            frames = torch.einsum("qd,vld->qvl", query, F.normalize(video.frames[v], dim=-1))
            row.append(0.5 * clips + 0.5 * frames.masked_fill(~video.frame_mask[v], -torch.inf).amax(-1))
        rows.append(torch.cat(row, 1))
    return torch.cat(rows)


def plain_ranks(scores: Tensor, owner: Tensor) -> tuple[list[int], list[int]]:
    """Other queries of the same video never count against it: the first one is the best."""
    to_video, to_text = [], []
    for row, video in zip(scores, owner.tolist(), strict=True):
        to_video.append(1 + int((row.argsort(descending=True) == video).nonzero()[0]))
    for video, column in enumerate(scores.T):
        to_text.append(1 + int((owner[column.argsort(descending=True)] == video).nonzero()[0]))
    return to_video, to_text


def tasks(way: str, args: argparse.Namespace) -> Tasks:
    """Everything, and for the plain way the ranking alone."""
    text, video, owner = noise(args)
    without_gradient = torch.inference_mode()
    if way == "streamed":
        return {"whole": without_gradient(partial(streamed, text, video, owner, args))}
    scoring = without_gradient(partial(plain_scores, text, video, args))
    scores = scoring()
    return {"whole": lambda: plain_ranks(scoring(), owner), "ranking": lambda: plain_ranks(scores, owner)}


def main() -> None:
    args = parse_options(
        __doc__,
        queries=2_179,
        videos=436,
        hidden=384,
        clips=32,
        frames=128,
        query_batch=256,
        video_batch=64,
        plain_query_batch=option(50, "what the released code uses"),
        device="cpu",
        rounds=3,
    )
    print(environment(args.device))
    text, video, owner = noise(args)
    with torch.inference_mode():
        ours = [rank for ranks in streamed(text, video, owner, args) for rank in ranks.tolist()]
        plain = [rank for ranks in plain_ranks(plain_scores(text, video, args), owner) for rank in ranks]
    sides = [Contender(way, tasks, (way, args)) for way in ("streamed", "plain")]
    comparison = compare(sides, rounds=args.rounds, threads=args.threads)
    sorting = sum(comparison.values("ranking", "plain")) / sum(comparison.values("whole", "plain"))
    equal = sum(a == b for a, b in zip(ours, plain, strict=True)) / len(ours)
    share = min(1.0, args.query_batch * args.video_batch / (args.queries * args.videos))
    rows = {
        "plain time / streamed time": comparison.ratio("whole", "plain", "streamed"),
        "share of plain time that is sorting": f"{sorting:.1%}",
        "share of the score matrix held at a time": f"{share:.4%}",
        "ranks that agree (the rest: neighbours within rounding)": f"{equal:.2%}",
    }
    title = f"evaluation of {args.queries:,} queries x {args.videos:,} videos on {args.device}"
    show(title, ["what", "value"], list(rows.items()))
    write_figures(args, rows)


if __name__ == "__main__":
    main()
