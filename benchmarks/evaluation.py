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
import json
import resource
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

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


def memory_of_a_made_gallery(args: argparse.Namespace, device: torch.device) -> None:
    """Ranks against ever larger galleries: what the ranking holds must not grow with them."""
    text = torch.randn(args.queries, args.hidden, device=device)
    made = made_gallery(args)
    for videos in (args.videos // 10, args.videos):
        owner = torch.arange(args.queries) * videos // args.queries
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        with torch.inference_mode():
            streamed(text, made, owner, args.query_batch, args.video_batch, videos=videos)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(device)
        matrix = args.queries * videos * 4
        print(f"{args.queries:,} x {videos:,}: peak {peak / 1e9:.2f} GB, the matrix would take {matrix / 1e9:.2f} GB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=2_179)
    parser.add_argument("--videos", type=int, default=436)
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--clips", type=int, default=32)
    parser.add_argument("--frames", type=int, default=128)
    parser.add_argument("--query-batch", type=int, default=256)
    parser.add_argument("--video-batch", type=int, default=64)
    parser.add_argument("--plain-query-batch", type=int, default=50, help="what the released code uses")
    parser.add_argument("--made", action="store_true", help="a gallery that is not held: memory alone")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="also write the table as JSON")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    device = torch.device(args.device)
    if args.made:
        memory_of_a_made_gallery(args, device)
        return
    text, video, owner = encoded_noise(args.queries, args.videos, args.hidden, args.clips, args.frames, device)

    def timed(run):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        result = run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return result, time.perf_counter() - start

    with torch.inference_mode():
        (to_video, to_text, calls), ours = timed(
            lambda: streamed(text, video, owner, args.query_batch, args.video_batch)
        )
        _, anew = timed(lambda: streamed(text, video, owner, args.query_batch, args.video_batch, once=False))
        scores, scoring = timed(lambda: plain_scores(text, video, args.plain_query_batch, args.video_batch))
        (plain_video, plain_text), ranking = timed(lambda: plain_ranks(scores, owner))
        best = scores[torch.arange(len(text), device=device), owner]
        _, counting = timed(lambda: ((scores > best[:, None]).sum(1), (scores == best[:, None]).sum(1)))
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
        "speedup_whole": (scoring + ranking) / ours,
        "normalised_per_block_over_once": anew / ours,
        "plain_ranking_share": ranking / (scoring + ranking),
        "speedup_count_over_sort_text_to_video": ranking / counting,
        "equal_ranks": equal / (args.queries + len(to_text)),
    }
    table = Table(title=f"evaluation of {args.queries:,} queries x {args.videos:,} videos on {device}")
    table.add_column("what")
    table.add_column("value", justify="right")
    for name, value in (
        ("arithmetic of all scores, TFLOP", f"{result['score_tflop']:.2f}"),
        ("blocks scored / blocks in all", f"{result['blocks_scored']:.2f}"),
        ("share of the score matrix held at a time", f"{result['matrix_held_share']:.4%}"),
        ("plain time / streamed time", f"{result['speedup_whole']:.2f}"),
        ("rows normalised for each block / once, time", f"{result['normalised_per_block_over_once']:.2f}"),
        ("share of plain time that is sorting", f"{result['plain_ranking_share']:.1%}"),
        ("sorted ranks / counted ranks, time", f"{result['speedup_count_over_sort_text_to_video']:.1f}"),
        ("ranks that agree (the rest: neighbours within rounding)", f"{result['equal_ranks']:.2%}"),
    ):
        table.add_row(name, value)
    Console().print(table)
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
