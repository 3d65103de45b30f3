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
from prvr.segments import (
    adaptive_segments,
    moments_between_edges,
    propagate,
    propagate_in_parts,
    segment_features,
    unit_frames,
)
from prvr.video import open_video
from training_free import MIDDLE, RATE, directions, disturbed, events, unit

QUERIES = 200


def decoding(rate: float) -> float:
    """Seconds that a second of video takes to be decoded."""
    import av

    generator = np.random.default_rng(0)
    texture = generator.integers(0, 256, (720, 1280, 3), np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "minute.mp4"
        with av.open(str(path), "w") as container:
            stream: Any = container.add_stream("libx264", rate=25, options={"preset": "veryfast", "crf": "28"})
            stream.width, stream.height = 640, 360
            for number in range(60 * 25):
                top, left = number % 360, (3 * number) % 640
                picture = np.ascontiguousarray(texture[top : top + 360, left : left + 640])
                container.mux(stream.encode(av.VideoFrame.from_ndarray(picture)))
            container.mux(stream.encode())

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
        before = max(cut_peak, mean_peak)
        costs.append(
            [
                f"{hours:g} h, {length:,} frames",
                len(segments.spans),
                len(moments.spans),
                f"{(cut_time + mean_time) / (3600 * hours * decode_time):.4f}",
                f"{time / (3600 * hours * decode_time):.4f}",
                f"{part_time / (3600 * hours * decode_time):.4f}",
                f"{before / 2**20:.0f}",
                f"{peak / 2**20:.0f}",
                f"{part_peak / 2**20:.0f}",
            ]
        )
        scores, others = moments.vectors @ queries.T, other.vectors @ queries.T
        lengths = np.linalg.norm(moments.vectors, axis=1)
        differences.append(
            [
                f"{hours:g} h",
                f"{np.median(np.linalg.norm(other.vectors - moments.vectors, axis=1) / lengths):.3f}",
                f"{(np.linalg.norm(other.vectors - moments.vectors, axis=1) / lengths).max():.3f}",
                f"{np.abs(others.max(0) - scores.max(0)).max() / scores.max(0).std():.3f}",
                f"{100 * (others.argmax(0) == scores.argmax(0)).mean():.1f} %",
            ]
        )
    head = ["", "segments", "moments", "time over decoding: cuts, means", "whole", "parts", "MiB: cuts, means", "whole"]
    show(f"cost at {args.rate:g} frames per second, width {args.dim}, parts of {args.part}", [*head, "parts"], costs)
    head = ["", "vectors, median", "largest", "best score, largest over its spread", "same best moment"]
    show("parts minus whole", head, differences)
    write_figures(args, {"costs": costs, "differences": differences})


if __name__ == "__main__":
    main()
