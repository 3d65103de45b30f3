"""Adaptive moments of long videos: cost over that of decoding, and the whole graph against parts that overlap.

    python benchmarks/segment_costs.py [--hours 0.5 1 3 6] [--rate 2] [--dim 512] [--part 3600]

Frames are simulated (`training_free.disturbed`: events of 8 s, drift, noise, the video's own background). Bytes are the
most that NumPy held at once beyond the frames. A minute of moving noise, 640 x 360 at 25 frames per second in H.264, is
decoded as `prvr` does, and gives the time of decoding. Differences are those of moments in parts from moments of the
whole graph: of the vectors, of the scores of 200 sentences about events of the video, and of the best moment.
"""

import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from _harness import environment, parse_options, seconds, show, write_figures
from against import write_film
from prvr.published.tf_prvr import (
    adaptive_segments,
    moments_between_edges,
    propagate,
    propagate_in_parts,
    segment_features,
    unit_frames,
)
from prvr_search.films import open_video
from training_free import MIDDLE, RATE, directions, disturbed, events, unit

QUERIES = 200


def decoding(rate: float) -> float:
    """Seconds that a second of video takes to be decoded."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_film(Path(folder) / "minute.mp4", 60, 360)

        def decode() -> int:
            with open_video(path) as video:
                return sum(1 for _ in video.sample(rate))

        return seconds(decode)[1] / 60


def measured(call: Callable[[], Any]) -> tuple[Any, float, int]:
    """The result of a call, its seconds, and, from a second call, the most bytes."""
    result, time = seconds(call)
    tracemalloc.start()
    call()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return result, time, peak


def main() -> None:
    args = parse_options(__doc__, hours=[0.5, 1.0, 3.0, 6.0], rate=2.0, dim=512, part=3600)
    print(environment())
    decode_time = decoding(args.rate)
    costs, differences = [], []
    for hours in args.hours:
        length, generator = round(hours * 3600 * args.rate), np.random.default_rng(args.seed)
        content = events(directions(generator, 2000, args.dim), round(length * RATE / args.rate), 1.0, generator)
        content = content[np.linspace(0, len(content) - 1, length).astype(int)]
        frames = disturbed(content, MIDDLE, generator)
        queries = unit(content[generator.choice(length, QUERIES)] + directions(generator, QUERIES, args.dim))
        del content
        segments, cut_time, cut_peak = measured(lambda rows=frames: adaptive_segments(rows))
        features, mean_time, mean_peak = measured(
            lambda rows=frames, spans=segments.spans: segment_features(unit_frames(rows), spans)
        )
        whole, time, peak = measured(lambda rows=features, made=segments: propagate(rows, made))
        parts, part_time, part_peak = measured(
            lambda rows=features, made=segments: propagate_in_parts(rows, made, part=args.part)
        )
        moments, other = (moments_between_edges(rows, segments) for rows in (whole, parts))
        times = [spent / (3600 * hours * decode_time) for spent in (cut_time + mean_time, time, part_time)]
        sizes = [size / 2**20 for size in (max(cut_peak, mean_peak), peak, part_peak)]
        counts = [len(segments.spans), len(moments.spans)]
        shown = [*(f"{each:.4f}" for each in times), *(f"{each:.0f}" for each in sizes)]
        costs.append([f"{hours:g} h, {length:,} frames", *counts, *shown])
        scores, others = moments.vectors @ queries.T, other.vectors @ queries.T
        lengths = np.linalg.norm(moments.vectors, axis=1)
        apart = np.linalg.norm(other.vectors - moments.vectors, axis=1) / lengths
        best = np.abs(others.max(0) - scores.max(0)).max() / scores.max(0).std()
        same = 100 * (others.argmax(0) == scores.argmax(0)).mean()
        shown = [f"{each:.3f}" for each in (np.median(apart), apart.max(), best)]
        differences.append([f"{hours:g} h", *shown, f"{same:.1f} %"])
    head = ["", "segments", "moments", "time over decoding: cuts, means", "whole", "parts", "MiB: cuts, means", "whole"]
    show(f"cost at {args.rate:g} frames per second, width {args.dim}, parts of {args.part}", [*head, "parts"], costs)
    head = ["", "vectors, median", "largest", "best score, largest over its spread", "same best moment"]
    show("parts minus whole", head, differences)
    write_figures(args, {"costs": costs, "differences": differences})


if __name__ == "__main__":
    main()
