"""Scoring and ranking a whole split: streamed blocks against the plain way, as a ratio of their times.

    python benchmarks/evaluation.py                         # a fifth of the TVR test set each way
    python benchmarks/evaluation.py --queries 10895 --videos 2179 --device cuda --json evaluation.json
    python benchmarks/evaluation.py --made --queries 10000 --videos 100000 --hidden 64 --clips 4 --frames 8

Streamed: `prvr.scoring.max_scores` block by block into `prvr.evaluation.streaming.stream_counts`, which gives ranks in
both directions. Plain: every chunk of videos is normalised anew for every chunk of queries, the whole matrix is kept,
and ranks are looked up in sorted rows, query by query and (for video to text) video by video. Both must give equal
ranks.

With `--made` the gallery is made part by part as it is asked for, and only the memory of ranking it is told.
"""

import argparse
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from _harness import Contender, Tasks, compare, environment, option, parse_options, peak, show, write_figures
from prvr.evaluation.streaming import stream_counts
from prvr.scoring import max_scores, normalised
from prvr.types import VideoEmbedding


def chunks(total: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, total)) for start in range(0, total, size)]


def encoded_noise(
    queries: int, videos: int, hidden: int, clips: int, frames: int, device: torch.device
) -> tuple[Tensor, VideoEmbedding, Tensor]:
    """Queries, videos, and the video of each query."""
    mask = torch.arange(frames) < torch.randint(frames // 4, frames + 1, (videos, 1))
    video = VideoEmbedding(
        clips=torch.randn(videos, clips, hidden), frames=torch.randn(videos, frames, hidden), frame_mask=mask
    ).to(device)
    owner = (torch.arange(queries) * videos // queries).to(device)
    return torch.randn(queries, hidden, device=device), video, owner


def made_gallery(args: argparse.Namespace) -> Callable[[slice], VideoEmbedding]:
    """Videos made from their numbers when they are asked for, so that no gallery is held."""

    def made(columns: slice) -> VideoEmbedding:
        generator = torch.Generator(args.device).manual_seed(columns.start)
        count = columns.stop - columns.start

        def noise(length: int) -> Tensor:
            return torch.randn(count, length, args.hidden, generator=generator, device=args.device)

        mask = torch.ones(count, args.frames, dtype=torch.bool, device=args.device)
        return VideoEmbedding(noise(args.clips), noise(args.frames), mask)

    return made


def streamed(
    text: Tensor,
    video: VideoEmbedding | Callable[[slice], VideoEmbedding],
    owner: Tensor,
    query_batch: int,
    video_batch: int,
    once: bool = True,
    videos: int | None = None,
) -> tuple[Tensor, Tensor, int]:
    """Ranks both ways, and how many blocks were scored; `once`: rows normalised once per part of the gallery."""
    total = len(video) if isinstance(video, VideoEmbedding) else videos
    assert total is not None
    cut = (lambda columns: video[columns]) if isinstance(video, VideoEmbedding) else video
    held: tuple[int, VideoEmbedding] | None = None
    calls = 0

    def score(rows: slice, columns: slice) -> Tensor:
        nonlocal calls, held
        calls += 1
        if held is None or held[0] != columns.start:
            held = (columns.start, normalised(cut(columns)) if once else cut(columns))
        part = held[1]
        assert part.clips is not None
        assert part.frames is not None
        clips, _ = max_scores(text[rows], part.clips, dots=False, unit=part.unit)
        frames, _ = max_scores(text[rows], part.frames, part.frame_mask, dots=False, unit=part.unit)
        return 0.5 * clips + 0.5 * frames

    pairs = torch.stack([torch.arange(len(text)), owner.cpu()], 1)
    to_video, to_text = stream_counts(score, pairs, chunks(len(text), query_batch), chunks(total, video_batch))
    return to_video.ranks(), to_text.ranks(), calls


def plain_scores(text: Tensor, video: VideoEmbedding, query_batch: int, video_batch: int) -> Tensor:
    assert video.clips is not None
    assert video.frames is not None
    assert video.frame_mask is not None
    rows = []
    for q in chunks(len(text), query_batch):
        row = []
        for v in chunks(len(video), video_batch):
            query = F.normalize(text[q], dim=-1)
            clips = torch.einsum("qd,vcd->qvc", query, F.normalize(video.clips[v], dim=-1)).amax(-1)
            frames = torch.einsum("qd,vld->qvl", query, F.normalize(video.frames[v], dim=-1))
            frames = frames.masked_fill(~video.frame_mask[v], -torch.inf).amax(-1)
            row.append(0.5 * clips + 0.5 * frames)
        rows.append(torch.cat(row, 1))
    return torch.cat(rows)


def plain_ranks(scores: Tensor, owner: Tensor) -> tuple[list[int], list[int]]:
    to_video = []
    for row, video in zip(scores, owner.tolist(), strict=True):
        order = row.argsort(descending=True)
        to_video.append(1 + int((order == video).nonzero()[0]))
    to_text = []
    for video, column in enumerate(scores.T):
        order = column.argsort(descending=True)
        to_text.append(1 + int((owner[order] == video).nonzero()[0]))
        # other queries of the same video never count against it: the first one found is the best
    return to_video, to_text


def tasks(way: str, args: argparse.Namespace) -> Tasks:
    """What one way does with a split of noise: everything, or the ranking alone."""
    device = torch.device(args.device)
    text, video, owner = encoded_noise(args.queries, args.videos, args.hidden, args.clips, args.frames, device)
    without_gradient = torch.inference_mode()
    if way in ("streamed", "anew"):
        return {
            "whole": without_gradient(
                partial(streamed, text, video, owner, args.query_batch, args.video_batch, once=way == "streamed")
            )
        }
    scoring = without_gradient(partial(plain_scores, text, video, args.plain_query_batch, args.video_batch))
    scores = scoring()
    right = scores[torch.arange(len(text), device=device), owner][:, None]
    if way == "counted":
        return {"ranking": lambda: ((scores > right).sum(1), (scores == right).sum(1))}
    return {"whole": lambda: plain_ranks(scoring(), owner), "ranking": lambda: plain_ranks(scores, owner)}


def memory_of_a_made_gallery(args: argparse.Namespace, device: torch.device) -> None:
    """Ranks against ever larger galleries: what the ranking holds must not grow with them."""
    text = torch.randn(args.queries, args.hidden, device=device)
    made = made_gallery(args)
    for videos in (args.videos // 10, args.videos):
        owner = torch.arange(args.queries) * videos // args.queries
        ranking = partial(streamed, text, made, owner, args.query_batch, args.video_batch, videos=videos)
        most, matrix = peak(torch.inference_mode()(ranking), device)[1], args.queries * videos * 4
        print(f"{args.queries:,} x {videos:,}: peak {most / 1e9:.2f} GB, the matrix would take {matrix / 1e9:.2f} GB")


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
        made=option(False, "a gallery that is not held: memory alone"),
        device="cpu",
        rounds=3,
    )
    device = torch.device(args.device)
    if args.made:
        memory_of_a_made_gallery(args, device)
        return
    print(environment(args.device))
    text, video, owner = encoded_noise(args.queries, args.videos, args.hidden, args.clips, args.frames, device)
    with torch.inference_mode():
        to_video, to_text, calls = streamed(text, video, owner, args.query_batch, args.video_batch)
        plain_video, plain_text = plain_ranks(
            plain_scores(text, video, args.plain_query_batch, args.video_batch), owner
        )
    sides = [Contender(way, tasks, (way, args)) for way in ("streamed", "anew", "plain", "counted")]
    found = compare(sides, rounds=args.rounds, threads=args.threads)
    equal = sum(
        a == b for a, b in zip([*to_video.tolist(), *to_text.tolist()], [*plain_video, *plain_text], strict=True)
    )
    blocks = len(chunks(args.queries, args.query_batch)) * len(chunks(args.videos, args.video_batch))
    flops = 2 * args.queries * args.videos * (args.clips + args.frames) * args.hidden
    result = {
        "queries": args.queries,
        "videos": args.videos,
        "hidden": args.hidden,
        "tokens_per_video": args.clips + args.frames,
        "score_tflop": flops / 1e12,
        "blocks_scored": calls / blocks,
        "matrix_held_share": args.query_batch * args.video_batch / (args.queries * args.videos),
        "speedup_whole": found.ratio("whole", "plain", "streamed"),
        "normalised_per_block_over_once": found.ratio("whole", "anew", "streamed"),
        "plain_ranking_share": sum(found.values("ranking", "plain")) / sum(found.values("whole", "plain")),
        "speedup_count_over_sort_text_to_video": found.ratio("ranking", "plain", "counted"),
        "equal_ranks": equal / (args.queries + len(to_text)),
    }
    shown = {
        "arithmetic of all scores, TFLOP": f"{result['score_tflop']:.2f}",
        "blocks scored / blocks in all": f"{result['blocks_scored']:.2f}",
        "share of the score matrix held at a time": f"{result['matrix_held_share']:.4%}",
        "plain time / streamed time": result["speedup_whole"],
        "rows normalised for each block / once, time": result["normalised_per_block_over_once"],
        "share of plain time that is sorting": f"{result['plain_ranking_share']:.1%}",
        "sorted ranks / counted ranks, time": result["speedup_count_over_sort_text_to_video"],
        "ranks that agree (the rest: neighbours within rounding)": f"{result['equal_ranks']:.2%}",
    }
    title = f"evaluation of {args.queries:,} queries x {args.videos:,} videos on {device}"
    show(title, ["what", "value"], list(shown.items()))
    write_figures(args, result)


if __name__ == "__main__":
    main()
