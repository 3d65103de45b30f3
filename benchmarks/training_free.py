"""Retrieval without training: single frames against means of frames and adaptive moments (TF-PRVR), by disturbance.

    python benchmarks/training_free.py --root ROOT --collection tvr             # simulated frames at every level
    python benchmarks/training_free.py --root ROOT --collection toy-demo        # the corpus's own joint features
    python benchmarks/training_free.py --root ROOT --collection tvr --needle    # 5 to 80 s in two hours
    python benchmarks/training_free.py --root ROOT --collection tvr --ideas --sentences MINILM --seeds 0 1 2

A corpus without a joint encoder gives its captions, their token features and their moments, such as public annotations
with token features of a sentence encoder. Its frames are then simulated in the space of the sentences, two a second:

    frame = unit(moments + events + background * own + topic * mean + drift * walk + noise * white)

moments: sentence vectors (mean of the tokens, centred by the training captions) of the moments at that time, each plus
`gap` times a unit vector of its own, since what is seen is not what is said; events: the same for training captions,
8 s each on average, where no moment is; own: a unit vector of the video; mean: that of its sentences; walk: a
stationary process that forgets in 3 s; white: new in each frame; a vector that all videos share times `common`, which
is 0 but for --ideas. All are of unit length, or expected so. One level changes at a time, around the middle, which was
chosen on `val` by single frames alone: about the SumR that papers print.
`smooth` is nearer to CLIP, whose frames are much alike and far from their sentences.

Rule, written before the first run: a method replaces single frames if SumR is higher in the middle and on toy-large,
the 95 % interval of the difference over videos above 0, mean IoU is not lower there, and no level loses more than 2.
`frames and means`: frames, and means of 4, 16, 64, ... frames of each window of 120 s. Three seeds decide about it. Its
rule for the moment was chosen on `val` of toy-demo and TVR. The first choice, the mean over the levels up to that of
the best row, had mean IoU 0.423 on toy-large, single frames 0.424, so `mean_lines` was chosen, on `val` and on 500 toy
videos of seed 5. If that is lower too, moments stay those of single frames.

--needle: films of two hours at one frame per second, `gap` 1, which is easier than the middle, with one moment of each
length of `LENGTHS_IN_FILM` among events; a sentence must find its film and its moment. Contenders: `single frames` are
in windows of 120 s; `equal windows` has means of four frames, as many rows as adaptive
moments; `shots` are cut where neighbouring frames differ most. Intervals are over the films of all seeds.

--ideas: changes of training-free search (moments of unit length), each beside a control that should do nothing or less.

    weakest part      whole sentence + lowest score of its parts, split at conjunctions; control: + mean of the parts
    wordings          mean of four wordings of the sentence; control: one wording
    centred           moments minus the mean of the collection's; control: minus as long a vector of random direction
    hubs by moments   QB-Norm, its bank one moment of each video; control: a bank of sentences, which users do not have
    motion            moment + half the difference of its neighbours; control: minus it
    frames            (1 - w) moment + w frame of it, the best sum; control: the sum of the best of each
    beta 0            no propagation
    best segment      the best segment of any level, without moments and propagation; control: windows of 6, 12, 24, ...

Rule, written before the first run: an idea is kept if the 95 % interval of its gain in SumR over videos is above 0 on
at least two of the corpora (TVR and ActivityNet in the middle, toy-demo, toy-large), and it loses more than 2 on none
of them and at no other level that is run. w is chosen from `WEIGHTS` on every second video of a corpus, at the first
level that is run; only the other videos are reported for `frames` and its control.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import sha256
from typing import NamedTuple

import numpy as np
import torch

from _harness import environment, option, parse_options, show, write_figures
from prvr.data import Corpus, Split, open_corpus
from prvr.data.sampling import GROWTH, growing_means, level_counts
from prvr.encoders import open_featurizer
from prvr.evaluation import RetrievalMetrics
from prvr.evaluation.metrics import ranks
from prvr.evaluation.significance import Interval, bootstrap_intervals, paired_test
from prvr.evaluation.zero_shot import has_zero_shot
from prvr.scoring import best_moment
from prvr.segments import (
    AdaptiveMoments,
    adaptive_moments,
    adaptive_segments,
    level_cuts,
    moments_between_edges,
    segment_features,
    unit_frames,
)
from prvr.stages import QueryBank
from prvr.stages.joint_space import JointSplit, joint_encoders
from prvr_search.ranking import mean_lines
from prvr_search.results import WindowTimeline, merged_moments
from prvr_search.sync import cut

RATE = 2.0  # simulated frames per second
WINDOW = 120.0  # seconds: windows of search without training, which do not overlap
LENGTHS = (5.0, 15.0)  # seconds of moments: short, middle, long
FILMS, HOURS, LENGTHS_IN_FILM = 20, 2.0, (5.0, 10.0, 20.0, 40.0, 80.0)
WORDINGS = ("{}", "a video of {}", "a scene in which {}", "this shows {}")
PARTS = re.compile(r",? (?:and|then|while|before|after|as|against|in front of|on(?= an? [\w-]+ background)) |, ")
WEIGHTS = (0.1, 0.2, 0.3, 0.5, 0.7, 0.9)


@dataclass(frozen=True)
class Levels:
    gap: float = 3.0
    background: float = 1.0
    drift: float = 1.0
    noise: float = 3.0
    topic: float = 0.0
    common: float = 0.0


MIDDLE = Levels()
GRID: dict[str, tuple[dict[str, float], ...]] = {
    "noise": tuple({"noise": value} for value in (0.0, 1.0, 2.0, 4.0, 6.0)),
    "gap": tuple({"gap": value} for value in (1.0, 2.0, 4.0)),
    "background": tuple({"background": value} for value in (0.0, 2.0, 4.0)),
    "drift": tuple({"drift": value} for value in (0.0, 2.0, 4.0)),
    "topic": tuple({"topic": value} for value in (0.5, 1.0, 2.0)),
    "smooth": tuple({"gap": value, "noise": 0.5, "background": 2.0} for value in (3.0, 4.0, 5.0)),
    "common": ({"common": 2.0},),
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
    texts: tuple[str, ...] = ()

    @classmethod
    def of(cls, split: Split, vectors: np.ndarray) -> "Queries":
        numbers = {video: i for i, video in enumerate(split.video_ids)}
        relevant = np.zeros((len(vectors), len(numbers)), bool)
        for row, caption in zip(relevant, split.captions, strict=True):
            row[[numbers[video] for video in split.relevant(caption)]] = True
        moments = [split.moments[caption.id] for caption in split.captions]
        spans = np.array([(moment.start, moment.end) for moment in moments])
        owner = np.array([numbers[caption.video_id] for caption in split.captions])
        return cls(vectors, owner, spans, relevant, tuple(caption.text for caption in split.captions))


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


def events(
    captions: np.ndarray, length: int, gap: float, generator: np.random.Generator, rate: float = RATE
) -> np.ndarray:
    """Captions that follow each other without a pause, one row per frame."""
    rows = np.empty((length, captions.shape[1]))
    first = 0
    while first < length:
        last = first + max(1, round(generator.exponential(8.0) * rate))
        rows[first:last] = seen(captions[generator.integers(len(captions), size=1)], gap, generator)
        first = last
    return rows


def seen(vectors: np.ndarray, gap: float, generator: np.random.Generator) -> np.ndarray:
    return unit(vectors + gap * directions(generator, *vectors.shape))


def disturbed(content: np.ndarray, levels: Levels, generator: np.random.Generator, rate: float = RATE) -> np.ndarray:
    length, dim = content.shape
    keep = np.exp(-1 / (3 * rate))
    walk = generator.standard_normal((length, dim)) / dim**0.5
    for i in range(1, length):
        walk[i] = keep * walk[i - 1] + (1 - keep**2) ** 0.5 * walk[i]
    white = generator.standard_normal((length, dim)) / dim**0.5
    own = directions(generator, 1, dim)
    rows = content + levels.background * own + levels.drift * walk + levels.noise * white
    rows += levels.common * directions(np.random.default_rng(0), 1, dim)
    return unit(rows).astype(np.float32)


def simulated(
    vectors: np.ndarray,
    moments: np.ndarray,
    duration: float,
    captions: np.ndarray,
    levels: Levels,
    seed: str,
    rate: float = RATE,
) -> Video:
    generator = np.random.default_rng(int.from_bytes(sha256(seed.encode()).digest()[:8], "little"))
    length = max(1, round(duration * rate))
    times = (np.arange(length) + 0.5) / rate
    inside = (times[:, None] >= moments[:, 0]) & (times[:, None] < np.maximum(moments[:, 1], moments[:, 0] + 1 / rate))
    content = inside @ seen(vectors, levels.gap, generator)
    covered = inside.any(1)
    content[covered] = unit(content[covered])
    content[~covered] = events(captions, length, levels.gap, generator, rate)[~covered]
    content += levels.topic * unit(vectors.mean(0))
    return Video(disturbed(content, levels, generator, rate), duration)


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


def unpropagated(frames: np.ndarray) -> AdaptiveMoments:
    """Moments of unit length with beta 0."""
    segments = adaptive_segments(frames)
    moments = moments_between_edges(segment_features(unit_frames(frames), segments.spans), segments)
    return AdaptiveMoments(unit(moments.vectors), moments.spans)


def means(frames: np.ndarray, edges: np.ndarray) -> AdaptiveMoments:
    spans = np.stack([edges[:-1], edges[1:]], 1)
    return AdaptiveMoments(segment_features(unit_frames(frames), spans), spans)


def equal_windows(frames: np.ndarray) -> AdaptiveMoments:
    """Means of four frames."""
    return means(frames, np.append(np.arange(0, len(frames), 4), len(frames)))


def shots(frames: np.ndarray) -> AdaptiveMoments:
    """Means between the frames whose difference stands out, by the rule that cuts the levels of adaptive segments."""
    steps = np.linalg.norm(np.diff(unit_frames(frames), axis=0), axis=1)
    return means(frames, np.union1d([0, len(frames)], level_cuts(steps) - 1))


def best_segment(frames: np.ndarray) -> AdaptiveMoments:
    """The segments of all levels; their spans overlap."""
    spans = adaptive_segments(frames).spans
    return AdaptiveMoments(segment_features(unit_frames(frames), spans), spans)


def pyramid(frames: np.ndarray) -> AdaptiveMoments:
    """Windows of 6, 12, 24, ... frames up to the whole video, about as many as segments; their spans overlap."""
    count, sizes = len(frames), [6]
    while sizes[-1] < count:
        sizes.append(sizes[-1] * 2)
    edges = [np.append(np.arange(0, count, size), count) for size in sizes]  # the last: the whole video
    spans = np.concatenate([np.stack([some[:-1], some[1:]], 1) for some in edges])
    return AdaptiveMoments(segment_features(unit_frames(frames), spans), spans)


def frames_and_means(frames: np.ndarray, rate: float = RATE) -> AdaptiveMoments:
    """What the index has of each window; the spans of rows of all levels and windows overlap."""
    vectors, spans = [], []
    for window in cut(len(frames), len(frames) / rate, rate, WINDOW, WINDOW):
        vectors.append(growing_means(frames[window.first : window.stop]))
        count = window.stop - window.first
        for level, rows in enumerate(level_counts(count)):
            starts = np.arange(rows) * GROWTH**level
            spans.append(window.first + np.stack([starts, np.minimum(starts + GROWTH**level, count)], 1))
    return AdaptiveMoments(np.concatenate(vectors), np.concatenate(spans))


def span_of_best(scores: np.ndarray, parts: AdaptiveMoments, duration: float) -> tuple[float, float]:
    first, last = parts.spans[scores.argmax()] * (duration / parts.spans[-1, 1])
    return float(first), float(last)


def around_best(scores: np.ndarray, parts: AdaptiveMoments, duration: float) -> tuple[float, float]:
    """The rule of search over the line of scores, the video as one window."""
    return best_moment(torch.from_numpy(np.repeat(scores, np.diff(parts.spans)[:, 0])), duration)


def around_best_in_windows(scores: np.ndarray, parts: AdaptiveMoments, duration: float) -> tuple[float, float]:
    """The rule of search, whose rows are frames, or frames and means."""
    count = parts.spans[:, 1].max()
    windows = cut(count, duration, count / duration, WINDOW, WINDOW)
    lines = [scores[window.first : window.stop] for window in windows]
    if len(scores) > count:
        lines = mean_lines(np.split(scores, len(windows)), [len(line) for line in lines])
    timelines = [WindowTimeline(w.start, w.end, 0.0, line) for w, line in zip(windows, lines, strict=True)]
    best = merged_moments(timelines, 1)[0]
    return best.start, best.end


METHODS = {
    "single frames": Method(single_frames, around_best_in_windows),
    "frames and means": Method(frames_and_means, around_best_in_windows),
    "adaptive": Method(adaptive_moments, span_of_best),
    "adaptive, moment by level": Method(adaptive_moments, around_best),
    "adaptive, beta 0": Method(lambda frames: adaptive_moments(frames, 0.0), around_best),
    "adaptive, unit length": Method(unit_moments, around_best),
    "best segment": Method(best_segment, span_of_best),
    "windows of 6, 12, 24, ... frames": Method(pyramid, span_of_best),
}
FILM_METHODS = {
    "single frames": METHODS["single frames"],
    "frames and means": Method(partial(frames_and_means, rate=1.0), around_best_in_windows),
    "equal windows": Method(equal_windows, around_best),
    "shots": Method(shots, around_best),
    "training-free": Method(unit_moments, around_best),
    "training-free, beta 0": Method(unpropagated, around_best),
} | {name: METHODS[name] for name in [*METHODS][-2:]}


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


def bounded(value: float, interval: Interval, sign: str = "+") -> str:
    return f"{value:{sign}.1f} ({interval.low:{sign}.1f} to {interval.high:{sign}.1f})"


def figures(runs: Sequence[tuple[dict[str, Outcome], np.ndarray]], queries: Queries) -> list[list[str]]:
    """Of one run for each seed, by method; a video is resampled with its queries in all of them."""
    relevant, frames = torch.from_numpy(queries.relevant), sum(run[1].sum() for run in runs)
    place = {
        name: np.concatenate([ranks(torch.from_numpy(run[name].scores), relevant).numpy() for run, _ in runs])
        for name in runs[0][0]
    }
    owner, spans = np.tile(queries.owner, len(runs)), np.tile(queries.moments, (len(runs), 1))
    lengths, has_moment = np.diff(spans)[:, 0], ~np.isnan(spans).any(1)
    table = []
    for name in place:
        metrics = RetrievalMetrics.from_ranks(torch.from_numpy(place[name]))
        interval = bootstrap_intervals(place[name], owner)
        lead = paired_test(place["single frames"], place[name], owner)["sumr"]
        moments = np.concatenate([run[name].moments for run, _ in runs])
        ious = np.array([overlap(*pair) for pair in zip(moments[has_moment], spans[has_moment], strict=True)])
        band = np.digitize(lengths[has_moment], LENGTHS, right=True)
        bands = [ious[band == number].mean() if (band == number).any() else np.nan for number in range(3)]
        table.append(
            [
                name,
                *(bounded(getattr(metrics, key), interval[key], "") for key in ("r1", "sumr")),
                bounded(lead.value, lead.interval),
                f"{ious.mean():.3f}",
                *(f"{100 * (ious > least).mean():.1f}" for least in (0.5, 0.7)),
                ", ".join(f"{value:.3f}" for value in bands),
                f"{sum(run[name].rows.sum() for run, _ in runs) / frames:.2f}",
            ]
        )
    return table


HEAD = ["", "R@1", "SumR", "minus single frames", "IoU", "> .5", "> .7", "IoU: short, middle, long", "rows per frame"]


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


def gallery(captions: Captions, levels: Levels, seed: int = 0) -> Iterator[Video]:
    queries = captions.queries
    for number, name in enumerate(captions.ids):
        own = queries.owner == number
        yield simulated(
            queries.vectors[own],
            queries.moments[own],
            captions.durations[number],
            captions.training,
            levels,
            f"{name} {seed}" if seed else name,
        )


def films(captions: Captions, levels: Levels, seed: int) -> tuple[Iterator[Video], Queries]:
    """Long videos of training captions, in each a moment of every length, each of another test caption."""
    generator = np.random.default_rng(seed)
    count, duration = len(LENGTHS_IN_FILM), HOURS * 3600
    chosen = generator.choice(len(captions.queries.owner), (FILMS, count), replace=False)
    lengths = np.array(LENGTHS_IN_FILM)
    places = generator.permuted(np.tile(np.arange(count), (FILMS, 1)), axis=1)
    starts = places * duration / count + generator.uniform(0, duration / count - lengths, (FILMS, count))
    spans, vectors = np.stack([starts, starts + lengths], 2), captions.queries.vectors[chosen]
    videos = (
        simulated(vectors[i], spans[i], duration, captions.training, levels, f"film {seed} {i}", 1.0)
        for i in range(FILMS)
    )
    owner = np.arange(FILMS).repeat(count)
    return videos, Queries(
        vectors.reshape(-1, vectors.shape[-1]), owner, spans.reshape(-1, 2), np.eye(FILMS, dtype=bool)[owner]
    )


def mean_of(values: np.ndarray) -> str:
    """The mean of one value per film, and half of its 95 % interval."""
    return f"{values.mean():.3f} ± {1.96 * values.std(ddof=1) / len(values) ** 0.5:.3f}"


def film_table(captions: Captions, levels: Levels, seeds: Sequence[int]) -> list[list[str]]:
    """The shortest moments: recall of the film, and IoU of the moment in it, also minus single frames; by length."""
    found: dict[str, list[list[np.ndarray]]] = {name: [] for name in FILM_METHODS}
    for seed in seeds:
        videos, queries = films(captions, levels, seed)
        outcomes, frames = run(videos, queries, FILM_METHODS)
        for name, each in outcomes.items():
            place = ranks(torch.from_numpy(each.scores), torch.from_numpy(queries.relevant)).numpy()
            ious = np.array([overlap(*pair) for pair in zip(each.moments, queries.moments, strict=True)])
            rows = np.full(len(place), each.rows.sum() / frames.sum())
            found[name].append([part.reshape(FILMS, -1) for part in (place, ious, rows)])
    joined = {name: [np.concatenate(part) for part in zip(*parts, strict=True)] for name, parts in found.items()}
    table, first = [], joined["single frames"]
    for name, (place, ious, rows) in joined.items():
        needle = place[:, 0]
        table.append(
            [
                name,
                mean_of(100.0 * (needle == 1)),
                mean_of(100.0 * (needle == 1) - 100.0 * (first[0][:, 0] == 1)),
                f"{100 * (needle <= 5).mean():.1f}",
                mean_of(ious[:, 0]),
                mean_of(ious[:, 0] - first[1][:, 0]),
                f"{100 * (ious[:, 0] > 0.5).mean():.1f}",
                ", ".join(f"{100 * value:.0f}" for value in (place == 1).mean(0)),
                ", ".join(f"{value:.3f}" for value in ious.mean(0)),
                f"{rows.mean():.2f}",
            ]
        )
    return table


FILM_HEAD = ["", "R@1", "minus single", "R@5", "IoU", "minus single", "> .5", "R@1 by length", "IoU by length"]


class Asked(NamedTuple):
    """The queries in all wordings `(w, q, d)`, their parts with the first of each query, and other sentences."""

    wordings: np.ndarray
    parts: np.ndarray
    starts: np.ndarray
    others: np.ndarray


def sentence_encoder(corpus: Corpus, folder: str | None) -> Callable[[Sequence[str]], np.ndarray]:
    """What encodes any sentences as those of the corpus are: its joint encoder, or the model in a folder."""
    if has_zero_shot(corpus):
        side = open_featurizer(joint_encoders(corpus).frames)
        return lambda texts: unit(np.stack([side.sentence(text) for text in texts]))
    from transformers import AutoModel, AutoTokenizer

    if folder is None:
        raise SystemExit("--ideas needs --sentences FOLDER: the sentence encoder of the corpus")
    tokens, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    mean = sentence_vectors(corpus, corpus.split("train")).mean(0)

    def encode(texts: Sequence[str]) -> np.ndarray:
        rows, some = [], sorted(set(texts), key=len)
        with torch.inference_mode():
            for first in range(0, len(some), 64):
                batch = tokens(some[first : first + 64], padding=True, truncation=True, return_tensors="pt")
                mask = batch["attention_mask"][..., None]
                rows.append((model(**batch).last_hidden_state * mask).sum(1) / mask.sum(1))
        numbers = {text: i for i, text in enumerate(some)}
        return unit(unit(torch.cat(rows).double().numpy()[[numbers[text] for text in texts]]) - mean)

    return encode


def asked(queries: Queries, encode: Callable[[Sequence[str]], np.ndarray], others: np.ndarray) -> Asked:
    parts = [[part for part in PARTS.split(text) if " " in part.strip()] for text in queries.texts]
    parts = [some if len(some) > 1 else [text] for some, text in zip(parts, queries.texts, strict=True)]
    print(f"{np.mean([len(some) > 1 for some in parts]):.0%} of the sentences have several parts")
    wordings = [wording.format(text) for wording in WORDINGS for text in queries.texts]
    vectors = encode([*wordings, *(part for some in parts for part in some)])
    wordings, parts_of = vectors[: len(wordings)].reshape(len(WORDINGS), len(parts), -1), vectors[len(wordings) :]
    if (alike := np.median(np.einsum("qd,qd->q", wordings[0], queries.vectors))) < 0.99:
        raise SystemExit(f"--sentences is not the encoder of the corpus: captions have a cosine of {alike:.2f}")
    return Asked(wordings, parts_of, np.cumsum([0, *map(len, parts)])[:-1], others)


def best(vectors: np.ndarray, rows: Iterable[np.ndarray]) -> np.ndarray:
    """The highest cosine of each vector with the rows of each video."""
    vectors = vectors.astype(np.float32)
    return np.stack([(vectors @ each.astype(np.float32).T).max(1) for each in rows], 1)


def moved(rows: np.ndarray, sign: float) -> np.ndarray:
    return unit(rows + sign * np.gradient(rows, axis=0)) if len(rows) > 1 else rows


def by_bank(scores: np.ndarray, bank: np.ndarray) -> np.ndarray:
    return QueryBank.of(torch.from_numpy(bank)).normalise(torch.from_numpy(scores)).numpy()


def idea_scores(videos: Sequence[Video], queries: Queries, asked: Asked) -> dict[str, np.ndarray]:
    """The scores of all queries with all videos by each idea and its control."""
    generator = np.random.default_rng(0)
    segments = [unit_moments(video.frames) for video in videos]
    moments = [each.vectors for each in segments]
    frames = [unit_frames(video.frames) for video in videos]
    whole, by_frame = best(queries.vectors, moments), best(queries.vectors, frames)
    parts = best(asked.parts, moments)
    several = np.diff(np.append(asked.starts, len(parts)))[:, None]
    mean = np.concatenate(moments).mean(0)
    other = np.linalg.norm(mean) * directions(generator, len(mean))
    bank = best(np.stack([rows[generator.integers(len(rows))] for rows in moments]), moments)
    np.fill_diagonal(bank, bank.min())
    scores = {
        "training-free": whole,
        "single frames": by_frame,
        "weakest part": whole + np.minimum.reduceat(parts, asked.starts),
        "weakest part, control": whole + np.add.reduceat(parts, asked.starts) / several,
        "wordings": best(asked.wordings.mean(0), moments),
        "wordings, control": best(asked.wordings[1], moments),
        "centred": best(queries.vectors, [unit(rows - mean) for rows in moments]),
        "centred, control": best(queries.vectors, [unit(rows - other) for rows in moments]),
        "hubs by moments": by_bank(whole, bank),
        "hubs, control": by_bank(whole, best(asked.others, moments)),
        "motion": best(queries.vectors, [moved(rows, 1.0) for rows in moments]),
        "motion, control": best(queries.vectors, [moved(rows, -1.0) for rows in moments]),
        "beta 0": best(queries.vectors, [unpropagated(video.frames).vectors for video in videos]),
        "best segment": best(queries.vectors, [best_segment(video.frames).vectors for video in videos]),
        "best segment, control": best(queries.vectors, [pyramid(video.frames).vectors for video in videos]),
    }
    mixed: dict[float, list[np.ndarray]] = {weight: [] for weight in WEIGHTS}
    vectors = queries.vectors.astype(np.float32)
    for rows, each in zip(frames, segments, strict=True):
        single = vectors @ rows.astype(np.float32).T
        around = np.repeat(vectors @ each.vectors.astype(np.float32).T, np.diff(each.spans)[:, 0], axis=1)
        for weight, columns in mixed.items():
            columns.append(((1 - weight) * around + weight * single).max(1))
    for weight, columns in mixed.items():
        scores[f"frames, {weight}"] = np.stack(columns, 1)
        scores[f"frames, {weight}, control"] = (1 - weight) * whole + weight * by_frame
    return scores


class Ideas:
    """The ranks of each idea over all seeds of one level after the other, and the weight of frames from the first."""

    def __init__(self, queries: Queries, seeds: int) -> None:
        self.owner, self.weight = np.tile(queries.owner, seeds), None

    def table(self, scores: Sequence[dict[str, np.ndarray]], relevant: torch.Tensor) -> list[list[str]]:
        place = {
            name: np.concatenate([ranks(torch.from_numpy(each[name]), relevant).numpy() for each in scores])
            for name in scores[0]
        }
        even = self.owner % 2 == 0
        if self.weight is None:
            sums = {w: RetrievalMetrics.from_ranks(torch.from_numpy(place[f"frames, {w}"][even])).sumr for w in WEIGHTS}
            self.weight = max(sums, key=sums.__getitem__)
        rows = []
        for name, each in place.items():
            if name.startswith("frames") and f" {self.weight}" not in name:
                continue
            some = ~even if name.startswith("frames") else np.ones_like(even)
            metrics = RetrievalMetrics.from_ranks(torch.from_numpy(each[some]))
            row = [name, f"{metrics.r1:.1f}", f"{metrics.sumr:.1f}"]
            for base in ("training-free", "single frames"):
                lead = paired_test(place[base][some], each[some], self.owner[some], samples=2000)["sumr"]
                row.append(bounded(lead.value, lead.interval))
            rows.append(row)
        return rows


IDEA_HEAD = ["", "R@1", "SumR", "minus training-free", "minus single frames"]


def own_features(corpus: Corpus, split: str) -> tuple[Iterator[Video], Queries]:
    """The frames and captions of a corpus that names a joint encoder."""
    joint, content = JointSplit(corpus, split), corpus.split(split)
    queries = Queries.of(content, unit(joint.text_vectors.numpy()))
    lengths = durations(content, queries).tolist()

    def videos() -> Iterator[Video]:
        with corpus.open_features() as features:
            for video, length in zip(content.video_ids, lengths, strict=True):
                yield Video(features.read(video)[:, : joint.encoders.joint_dim].astype(np.float32), length)

    return videos(), queries


def main() -> None:
    args = parse_options(
        __doc__,
        root=option("data", "folder of collections, as --data-root of prvr train"),
        collection="tvr",
        split="test",
        videos=option(250, "simulated videos of the gallery"),
        needle=False,
        ideas=False,
        sentences=option(None, "folder of the sentence encoder of the captions, for --ideas"),
        bank=option("toy-demo", "collection of toy videos whose training captions are the bank of the control of hubs"),
        seeds=option([0], "of simulated frames"),
        noise=option([2.0, 3.0, 4.0], "levels of --needle"),
        methods=option([*METHODS], "single frames first"),
        kinds=option(["middle", *GRID], "which levels are changed; with --ideas only the first of each"),
    )
    print(environment())
    corpus = open_corpus(args.root, args.collection)
    methods = {name: METHODS[name] for name in args.methods}
    name, written = f"{args.collection} {args.split}", []
    if has_zero_shot(corpus):
        stream, queries = own_features(corpus, args.split)
        if args.ideas:
            encode, videos = sentence_encoder(corpus, None), list(stream)
            others = encode([caption.text for caption in open_corpus(args.root, args.bank).split("train").captions])
            scores = idea_scores(videos, queries, asked(queries, encode, others))
            table = Ideas(queries, 1).table([scores], torch.from_numpy(queries.relevant))
            show(f"{name}, own features", IDEA_HEAD, table)
        else:
            table = figures([run(stream, queries, methods)], queries)
            show(f"{name}, own features", HEAD, table)
        write_figures(args, table)
        return
    captions = read(corpus, args.split, args.videos)
    queries = captions.queries
    if args.needle:
        for noise in args.noise:
            levels = replace(MIDDLE, gap=1.0, noise=noise)
            rows = film_table(captions, levels, args.seeds)
            show(f"{name}, needles: {levels}", [*FILM_HEAD, "rows per frame"], rows)
            written.append({"levels": asdict(levels), "rows": rows})
        write_figures(args, written)
        return
    grid = {"middle": ({},), **GRID}
    if args.ideas:
        sentences = asked(queries, sentence_encoder(corpus, args.sentences), captions.training[:2000])
        ideas = Ideas(queries, len(args.seeds))
    for kind, change in [(name, each) for name in args.kinds for each in grid[name][: 1 if args.ideas else None]]:
        levels = replace(MIDDLE, **change)
        title = f"{name}, {kind}: {levels}"
        if args.ideas:
            scores = [idea_scores(list(gallery(captions, levels, seed)), queries, sentences) for seed in args.seeds]
            rows = ideas.table(scores, torch.from_numpy(queries.relevant))
            written.append({"kind": kind, "levels": asdict(levels), "rows": rows})
            show(title, IDEA_HEAD, rows)
            continue
        table = figures([run(gallery(captions, levels, seed), queries, methods) for seed in args.seeds], queries)
        written.append({"kind": kind, "levels": asdict(levels), "rows": table})
        show(title, HEAD, table)
    write_figures(args, written)


if __name__ == "__main__":
    main()
