"""Retrieval without training: the best frame (`zero-shot`) against adaptive moments (TF-PRVR), by disturbance.

    python benchmarks/training_free.py --root ROOT --collection tvr             # simulated frames at every level
    python benchmarks/training_free.py --root ROOT --collection tvr --needle    # 5 s in two hours
    python benchmarks/training_free.py --root ROOT --collection toy-demo        # the corpus's own joint features

A corpus without a joint encoder gives its captions, their token features and their moments, such as public annotations
with token features of a sentence encoder. Its frames are then simulated in the space of the sentences, two a second:

    frame = unit(moments + events + background * own + topic * mean + drift * walk + noise * white)

moments: sentence vectors (mean of the tokens, centred by the training captions) of the moments at that time, each plus
`gap` times a unit vector of its own, since what is seen is not what is said; events: the same for training captions,
8 s each on average, where no moment is; own: a unit vector of the video; mean: that of its sentences; walk: a
stationary process that forgets in 3 s; white: new in each frame. All are of unit length, or expected so. One level
changes at a time, around the middle, which was chosen on `val` by zero-shot alone: about the SumR that papers print.
`smooth` is nearer to CLIP, whose frames are much alike and far from their sentences.

Rule, written before the first run: adaptive moments replace zero-shot if SumR is higher in the middle and on toy-large,
the 95 % interval of the difference over videos above 0, mean IoU is not lower there, and no level loses more than 2.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import NamedTuple

import numpy as np
import torch

from _harness import environment, option, parse_options, show, write_figures
from prvr.data import Corpus, Split, open_corpus
from prvr.evaluation.metrics import RetrievalMetrics, ranks
from prvr.evaluation.significance import bootstrap_intervals, paired_test
from prvr.evaluation.zero_shot import has_zero_shot
from prvr.scoring import best_moment
from prvr.search.results import WindowTimeline, merged_moments
from prvr.search.sync import cut
from prvr.segments import AdaptiveMoments, adaptive_moments, unit_frames
from prvr.stages.joint_space import JointSplit

RATE = 2.0  # simulated frames per second
WINDOW = 120.0  # seconds: windows of zero-shot, which do not overlap
LENGTHS = (5.0, 15.0)  # seconds of moments: short, middle, long
NEEDLES, HOURS, NEEDLE = 50, 2.0, 5.0


@dataclass(frozen=True)
class Levels:
    gap: float = 3.0
    background: float = 1.0
    drift: float = 1.0
    noise: float = 3.0
    topic: float = 0.0


MIDDLE = Levels()
GRID: dict[str, tuple[dict[str, float], ...]] = {
    "noise": tuple({"noise": value} for value in (0.0, 1.0, 2.0, 4.0, 6.0)),
    "gap": tuple({"gap": value} for value in (1.0, 2.0, 4.0)),
    "background": tuple({"background": value} for value in (0.0, 2.0, 4.0)),
    "drift": tuple({"drift": value} for value in (0.0, 2.0, 4.0)),
    "topic": tuple({"topic": value} for value in (0.5, 1.0, 2.0)),
    "smooth": tuple({"gap": value, "noise": 0.5, "background": 2.0} for value in (3.0, 4.0, 5.0)),
}


class Video(NamedTuple):
    frames: np.ndarray
    duration: float


class Queries(NamedTuple):
    """Unit vectors, the number of the video of each, its moment in seconds, and all videos that it describes."""

    vectors: np.ndarray
    owner: np.ndarray
    moments: np.ndarray
    relevant: np.ndarray

    @classmethod
    def of(cls, split: Split, vectors: np.ndarray) -> "Queries":
        numbers = {video: i for i, video in enumerate(split.video_ids)}
        relevant = np.zeros((len(vectors), len(numbers)), bool)
        for row, caption in zip(relevant, split.captions, strict=True):
            row[[numbers[video] for video in split.relevant(caption)]] = True
        moments = [split.moments[caption.id] for caption in split.captions]
        spans = np.array([(moment.start, moment.end) for moment in moments])
        return cls(vectors, np.array([numbers[c.video_id] for c in split.captions]), spans, relevant)


def durations(split: Split, queries: Queries) -> np.ndarray:
    """The length of each video in seconds: what its moments say, and reach."""
    longest = np.zeros(queries.relevant.shape[1])
    stated = [split.moments[caption.id].duration for caption in split.captions]
    np.maximum.at(longest, queries.owner, np.fmax(stated, queries.moments[:, 1]))
    return longest


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def directions(generator: np.random.Generator, *shape: int) -> np.ndarray:
    return unit(generator.standard_normal(shape))


def sentence_vectors(corpus: Corpus, split: Split) -> np.ndarray:
    """The mean of the tokens of each caption."""
    with corpus.open_queries() as tokens:
        return unit(np.stack([tokens.read(caption.id).mean(0) for caption in split.captions]).astype(np.float64))


def events(captions: np.ndarray, length: int, gap: float, generator: np.random.Generator) -> np.ndarray:
    """Captions that follow each other without a pause, one row per frame."""
    rows = np.empty((length, captions.shape[1]))
    first = 0
    while first < length:
        last = first + max(1, round(generator.exponential(8.0) * RATE))
        rows[first:last] = seen(captions[generator.integers(len(captions), size=1)], gap, generator)
        first = last
    return rows


def seen(vectors: np.ndarray, gap: float, generator: np.random.Generator) -> np.ndarray:
    return unit(vectors + gap * directions(generator, *vectors.shape))


def disturbed(content: np.ndarray, levels: Levels, generator: np.random.Generator) -> np.ndarray:
    length, dim = content.shape
    keep = np.exp(-1 / (3 * RATE))
    walk = generator.standard_normal((length, dim)) / dim**0.5
    for i in range(1, length):
        walk[i] = keep * walk[i - 1] + (1 - keep**2) ** 0.5 * walk[i]
    white = generator.standard_normal((length, dim)) / dim**0.5
    own = directions(generator, 1, dim)
    rows = content + levels.background * own + levels.drift * walk + levels.noise * white
    return unit(rows).astype(np.float32)


def simulated(
    vectors: np.ndarray, moments: np.ndarray, duration: float, captions: np.ndarray, levels: Levels, seed: str
) -> Video:
    generator = np.random.default_rng(int.from_bytes(sha256(seed.encode()).digest()[:8], "little"))
    length = max(1, round(duration * RATE))
    times = (np.arange(length) + 0.5) / RATE
    inside = (times[:, None] >= moments[:, 0]) & (times[:, None] < np.maximum(moments[:, 1], moments[:, 0] + 1 / RATE))
    content = inside @ seen(vectors, levels.gap, generator)
    covered = inside.any(1)
    content[covered] = unit(content[covered])
    content[~covered] = events(captions, length, levels.gap, generator)[~covered]
    content += levels.topic * unit(vectors.mean(0))
    return Video(disturbed(content, levels, generator), duration)


class Method(NamedTuple):
    """Vectors that queries are compared with, and the rule for the moment."""

    parts: Callable[[np.ndarray], AdaptiveMoments]
    moment: Callable[[np.ndarray, AdaptiveMoments, float], tuple[float, float]]


def single_frames(frames: np.ndarray) -> AdaptiveMoments:
    return AdaptiveMoments(unit_frames(frames), np.stack([np.arange(len(frames)), np.arange(len(frames)) + 1], 1))


def unit_moments(frames: np.ndarray) -> AdaptiveMoments:
    """Moments as an index that holds unit vectors would store them."""
    moments = adaptive_moments(frames)
    return AdaptiveMoments(unit(moments.vectors), moments.spans)


def frames_and_moments(frames: np.ndarray) -> AdaptiveMoments:
    """Each frame plus its moment: the score is the best sum of both."""
    rows, moments = single_frames(frames), adaptive_moments(frames)
    return AdaptiveMoments(rows.vectors + np.repeat(moments.vectors, np.diff(moments.spans)[:, 0], axis=0), rows.spans)


def span_of_best(scores: np.ndarray, parts: AdaptiveMoments, duration: float) -> tuple[float, float]:
    first, last = parts.spans[scores.argmax()] * (duration / parts.spans[-1, 1])
    return float(first), float(last)


def around_best(scores: np.ndarray, parts: AdaptiveMoments, duration: float) -> tuple[float, float]:
    """The rule of search over the line of scores, the video as one window."""
    return best_moment(torch.from_numpy(np.repeat(scores, np.diff(parts.spans)[:, 0])), duration)


def around_best_in_windows(scores: np.ndarray, parts: AdaptiveMoments, duration: float) -> tuple[float, float]:
    """The rule of search."""
    windows = [
        WindowTimeline(w.start, w.end, float(scores[w.first : w.stop].max()), scores[w.first : w.stop])
        for w in cut(len(scores), duration, len(scores) / duration, WINDOW, WINDOW)
    ]
    best = merged_moments(windows, 1)[0]
    return best.start, best.end


METHODS = {
    "zero-shot": Method(single_frames, around_best_in_windows),
    "adaptive": Method(adaptive_moments, span_of_best),
    "adaptive, moment by level": Method(adaptive_moments, around_best),
    "adaptive, beta 0": Method(lambda frames: adaptive_moments(frames, 0.0), around_best),
    "adaptive, unit length": Method(unit_moments, around_best),
    "frames + adaptive": Method(frames_and_moments, around_best),
}


def overlap(one: Sequence[float], other: Sequence[float]) -> float:
    union = max(one[1], other[1]) - min(one[0], other[0])
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0])) / union if union > 0 else 1.0


class Outcome(NamedTuple):
    """Scores of all queries with all videos, the moment of each query in its own video, and the rows per video."""

    scores: np.ndarray
    moments: np.ndarray
    rows: np.ndarray


def run(videos: Iterator[Video], queries: Queries, methods: dict[str, Method]) -> tuple[dict[str, Outcome], np.ndarray]:
    """What each method makes of the same videos, and the number of frames of these."""
    scores: dict[str, list[np.ndarray]] = {name: [] for name in methods}
    moments = {name: np.zeros((len(queries.owner), 2)) for name in methods}
    rows: dict[str, list[int]] = {name: [] for name in methods}
    frames = []
    for number, video in enumerate(videos):
        frames.append(len(video.frames))
        own = np.flatnonzero(queries.owner == number)
        made: dict[Callable, tuple[AdaptiveMoments, np.ndarray]] = {}
        for name, method in methods.items():
            if method.parts not in made:
                parts = method.parts(video.frames)
                made[method.parts] = parts, queries.vectors.astype(np.float32) @ parts.vectors.T.astype(np.float32)
            parts, lines = made[method.parts]
            scores[name].append(lines.max(1))
            rows[name].append(len(parts.spans))
            for query in own:
                moments[name][query] = method.moment(lines[query], parts, video.duration)
    return {
        name: Outcome(np.stack(scores[name], 1), moments[name], np.array(rows[name])) for name in methods
    }, np.array(frames)


def figures(outcomes: dict[str, Outcome], frames: np.ndarray, queries: Queries) -> list[dict[str, object]]:
    relevant = torch.from_numpy(queries.relevant)
    place = {name: ranks(torch.from_numpy(each.scores), relevant).numpy() for name, each in outcomes.items()}
    lengths = np.diff(queries.moments)[:, 0]
    table = []
    for name, each in outcomes.items():
        metrics = RetrievalMetrics.from_ranks(torch.from_numpy(place[name]))
        interval = bootstrap_intervals(place[name], queries.owner)
        lead = paired_test(place["zero-shot"], place[name], queries.owner)["sumr"]
        has_moment = ~np.isnan(queries.moments).any(1)
        ious = np.array(
            [overlap(*pair) for pair in zip(each.moments[has_moment], queries.moments[has_moment], strict=True)]
        )
        bands = [
            float(some.mean())
            if len(some := ious[(lengths[has_moment] > low) & (lengths[has_moment] <= high)])
            else np.nan
            for low, high in zip((-1, *LENGTHS), (*LENGTHS, np.inf), strict=True)
        ]
        table.append(
            {
                "method": name,
                "r1": metrics.r1,
                "r1_interval": (interval["r1"].low, interval["r1"].high),
                "sumr": metrics.sumr,
                "sumr_interval": (interval["sumr"].low, interval["sumr"].high),
                "minus_zero_shot": (lead.value, lead.interval.low, lead.interval.high),
                "iou": float(ious.mean()),
                "iou_above_half": 100 * float((ious > 0.5).mean()),
                "iou_above_0.7": 100 * float((ious > 0.7).mean()),
                "iou_by_length": bands,
                "rows_per_frame": float(each.rows.sum() / frames.sum()),
            }
        )
    return table


HEAD = ("R@1", "SumR", "minus zero-shot", "IoU", "> .5", "> .7", "IoU: short, middle, long", "rows per frame")


def cells(row: dict) -> list[str]:
    lead, low, high = row["minus_zero_shot"]
    return [
        "{:.1f} ({:.1f} to {:.1f})".format(row["r1"], *row["r1_interval"]),
        "{:.1f} ({:.1f} to {:.1f})".format(row["sumr"], *row["sumr_interval"]),
        f"{lead:+.1f} ({low:+.1f} to {high:+.1f})",
        f"{row['iou']:.3f}",
        f"{row['iou_above_half']:.1f}",
        f"{row['iou_above_0.7']:.1f}",
        ", ".join(f"{value:.3f}" for value in row["iou_by_length"]),
        f"{row['rows_per_frame']:.2f}",
    ]


class Captions(NamedTuple):
    """Test captions with their moments by video, and vectors of training captions."""

    ids: tuple[str, ...]
    queries: Queries
    durations: np.ndarray
    training: np.ndarray


def read(corpus: Corpus, split: str, videos: int) -> Captions:
    training = sentence_vectors(corpus, corpus.split("train"))
    mean = training.mean(0)
    test = corpus.split(split)
    chosen = set(test.video_ids[:videos])
    test = replace(test, captions=tuple(caption for caption in test.captions if caption.video_id in chosen))
    queries = Queries.of(test, unit(sentence_vectors(corpus, test) - mean))
    return Captions(test.video_ids, queries, durations(test, queries), unit(training - mean))


def gallery(captions: Captions, levels: Levels) -> Iterator[Video]:
    queries = captions.queries
    for number, name in enumerate(captions.ids):
        own = queries.owner == number
        yield simulated(
            queries.vectors[own], queries.moments[own], captions.durations[number], captions.training, levels, name
        )


def haystacks(captions: Captions, levels: Levels) -> tuple[Iterator[Video], Queries]:
    """Long videos of training captions, each with a few seconds of one test caption."""
    generator = np.random.default_rng(0)
    chosen = generator.choice(len(captions.queries.owner), NEEDLES, replace=False)
    starts = generator.uniform(0, HOURS * 3600 - NEEDLE, NEEDLES)
    spans = np.stack([starts, starts + NEEDLE], 1)
    vectors = captions.queries.vectors[chosen]
    videos = (
        simulated(vectors[i : i + 1], spans[i : i + 1], HOURS * 3600, captions.training, levels, f"needle {i}")
        for i in range(NEEDLES)
    )
    return videos, Queries(vectors, np.arange(NEEDLES), spans, np.eye(NEEDLES, dtype=bool))


def needle_cells(each: Outcome, queries: Queries) -> list[str]:
    first = each.scores.argmax(1) == queries.owner
    touch = (each.moments[:, 0] < queries.moments[:, 1]) & (each.moments[:, 1] > queries.moments[:, 0])
    shares = [f"{100 * some.mean():.1f}" for some in (first, touch, first & touch)]
    return [*shares, f"{np.median(np.diff(each.moments)):.1f} s"]


def own_features(corpus: Corpus, split: str) -> tuple[Iterator[Video], Queries]:
    """The frames and captions of a corpus that names a joint encoder."""
    joint, content = JointSplit(corpus, split), corpus.split(split)
    queries = Queries.of(content, unit(joint.text_vectors.numpy()))
    lengths = durations(content, queries).tolist()
    return (Video(rows.numpy(), length) for rows, length in zip(joint.frames(), lengths, strict=True)), queries


def main() -> None:
    args = parse_options(
        __doc__,
        root=option("data", "folder of collections, as --data-root of prvr train"),
        collection="tvr",
        split="test",
        videos=option(250, "simulated videos of the gallery"),
        needle=False,
        methods=option([*METHODS], "zero-shot first"),
        kinds=option(["middle", *GRID], "which levels are changed"),
    )
    print(environment())
    corpus = open_corpus(args.root, args.collection)
    methods = {name: METHODS[name] for name in args.methods}
    if has_zero_shot(corpus):
        videos, queries = own_features(corpus, args.split)
        outcomes, frames = run(videos, queries, methods)
        table = figures(outcomes, frames, queries)
        show(f"{args.collection} {args.split}, own features", ["", *HEAD], [[r["method"], *cells(r)] for r in table])
        write_figures(args, table)
        return
    captions = read(corpus, args.split, args.videos)
    if args.needle:
        videos, queries = haystacks(captions, MIDDLE)
        outcomes, _ = run(videos, queries, methods)
        rows = [[name, *needle_cells(each, queries)] for name, each in outcomes.items()]
        show("5 s in two hours", ["", "video first", "touches", "both", "median length"], rows)
        write_figures(args, rows)
        return
    written = []
    grid = {"middle": ({},), **GRID}
    for kind, change in [(name, each) for name in args.kinds for each in grid[name]]:
        levels = replace(MIDDLE, **change)
        outcomes, frames = run(gallery(captions, levels), captions.queries, methods)
        table = figures(outcomes, frames, captions.queries)
        written += [{"kind": kind, "levels": asdict(levels), **row} for row in table]
        title = f"{args.collection} {args.split}, {kind}: {levels}"
        show(title, ["", *HEAD], [[row["method"], *cells(row)] for row in table])
    write_figures(args, written)


if __name__ == "__main__":
    main()
