"""Real films, long and short: scores without training, moments, and what tells right first hits from wrong ones.

    PYTHONPATH=FOLDER python benchmarks/films.py --films FILMS --captions films.csv --encoder MODULE:CLASS

The captions have the columns video (a name without its ending), text, start and end. The sets and the rule stand in
`benchmarks/studies/films.md`, with all candidates that were tried; here are those that its tables need.
"""

import csv
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.stats import rankdata

from _harness import environment, option, parse_options, show, write_figures
from prvr.data.sampling import growing_means
from prvr.encoders import open_encoder, open_featurizer
from prvr_search.films import open_video
from prvr_search.ranking.results import WindowTimeline, merged_moments
from prvr_search.ranking.scores import mean_lines
from prvr_search.vectors.files import cut_windows
from prvr_search.vectors.joint import SENTENCES
from prvr_search.vectors.model import unit

RATE, WINDOW = 2.0, 120.0
PART = 0.7  # of a film: moments below it are judged by themselves, too
CONSTANT = {
    "whole film": [(0, 1)],
    "middle third": [(1 / 3, 2 / 3)],
    "random": [*combinations(np.linspace(0, 1, 33), 2)],
}
"""Answers that read no sentence, as shares of the film; of several, the mean counts."""
PARTS = ((0, 1, 0, 1), (0, 0.75, 0, 0.75), (0.25, 1, 0.25, 1), (0.15, 0.85, 0.15, 0.85))  # of a picture: other views


class Film:
    def __init__(self, rows: np.ndarray, shown: Sequence[tuple[str, float, float, float]]) -> None:
        """Rows at `RATE`, and what they show: a film, from and to when, and from which of its seconds on."""
        self.rows, self.shown, self.seconds = unit(rows.astype(np.float32)), shown, len(rows) / RATE
        self.spans, self.times = cut_windows(len(rows), self.seconds, RATE, WINDOW, WINDOW)
        self.levels = [growing_means(self.rows[slice(*span)]) for span in self.spans]
        self.mean = np.mean([level[-1] for level in self.levels], 0)
        centred = self.rows - self.rows.mean(0)
        spread = np.linalg.svd(centred, compute_uv=False) ** 2
        self.independent = max(1.0, spread.sum() ** 2 / max((spread**2).sum(), 1e-12))  # participation ratio

    def best(self, texts: np.ndarray) -> np.ndarray:
        return np.max([(texts @ level.T).max(1) for level in self.levels], 0)

    def moment(self, text: np.ndarray, usual: float) -> tuple[float, float]:
        lines = mean_lines([level @ text for level in self.levels], np.ptp(self.spans, axis=1).tolist())
        timelines = [WindowTimeline(*span, 0.0, line) for span, line in zip(self.times.tolist(), lines, strict=True)]
        best = merged_moments(timelines, 1, usual)[0]
        return best.start, best.end


SCORES: dict[str, Callable[[Film, np.ndarray, np.ndarray], np.ndarray]] = {
    "max": lambda film, texts, spread: film.best(texts),
    "mix 0.5": lambda film, texts, spread: (film.best(texts) + (texts @ film.rows.T).mean(1)) / 2,
    "corrected 0.25": lambda f, texts, spread: (
        f.best(texts) - spread * (2 * np.log(max(1.0, f.independent))) ** 0.5 / 4
    ),
}


class Captions(NamedTuple):
    owners: list[str]
    spans: np.ndarray
    texts: dict[str, np.ndarray]


def right(film: Film, owner: str) -> bool:
    pair = ("carphone_pristine", "carphone_distorted")  # the same film twice
    return any(name == owner or {name, owner} == {*pair} for name, *_ in film.shown)


def overlap(film: Film, owner: str, span: np.ndarray, moment: tuple[float, float]) -> float:
    """The highest IoU of a moment with a stretch that shows a second of the span or all of it."""
    stretches: list[tuple[float, float]] = []
    for name, start, end, offset in sorted(film.shown, key=lambda part: part[1]):
        first, last = max(start, start + span[0] - offset), min(end, start + span[1] - offset)
        if name == owner and last - first >= min(1.0, span[1] - span[0]) - 1e-6:
            if stretches and first <= stretches[-1][1] + 1e-6:
                first = stretches.pop()[0]
            stretches.append((first, last))
    shared = [min(moment[1], b) - max(moment[0], a) for a, b in stretches]
    covered = [max(moment[1], b) - min(moment[0], a) for a, b in stretches]
    return max((max(0.0, s) / c for s, c in zip(shared, covered, strict=True)), default=np.nan)


def joined(generator: np.random.Generator, views: dict[str, list[np.ndarray]], names: Sequence[str], rows: int) -> list:
    """Excerpts of 2 to 8 s of other views of films: name, rows, first second."""
    parts, total = [], 0
    while total < rows:
        name = names[int(generator.integers(len(names)))]
        phase = int(generator.integers(2))
        view = views[name][int(generator.integers(8))][phase::2]
        view = view if len(view) else views[name][0]
        count = min(len(view), int(generator.integers(4, 17)))
        first = int(generator.integers(len(view) - count + 1))
        parts.append((name, view[first : first + count], (first + phase / 2) / RATE))
        total += count
    return parts


def film_of(parts: Sequence[tuple[str, np.ndarray, float]]) -> Film:
    edges = np.cumsum([0, *(len(rows) for _, rows, _ in parts)]) / RATE
    shown = [(name, edges[i], edges[i + 1], offset) for i, (name, _, offset) in enumerate(parts)]
    return Film(np.concatenate([rows for _, rows, _ in parts]), shown)


def measured(gallery: Sequence[Film], captions: Captions, chosen: Sequence[int]) -> list[dict[str, float]]:
    """For each caption its number, and what each score and rule makes of it."""
    found: list[dict[str, float]] = [{"caption": q} for q in chosen]
    longest = np.argsort([-film.seconds for film in gallery])[:2]
    for kind, vectors in captions.texts.items():
        texts = vectors[chosen]
        spread = np.concatenate([texts @ film.rows.T for film in gallery], 1).std(1)
        usual = texts @ np.mean([film.mean for film in gallery], 0)
        for name, score in SCORES.items():
            scores = np.stack([score(film, texts, spread) for film in gallery], 1)
            for row, q, line in zip(found, chosen, scores, strict=True):
                hits = np.array([right(film, captions.owners[q]) for film in gallery])
                order, name_ = -np.sort(-line), f"{name}{kind}"
                row[f"{name_} rank"] = 1 + (line[~hits] >= line[hits].max()).sum()
                row[f"{name_} longest"] = line.argmax() in longest
                row[f"{name_} margin"], row[f"{name_} score"] = order[0] - order[1], order[0]
                row[f"{name_} z-score"] = (order[0] - line.mean()) / line.std()
        for row, q, text, level in zip(found, chosen, texts, usual, strict=True):
            owner, span = captions.owners[q], captions.spans[q]
            film = next(film for film in gallery if any(name == owner for name, *_ in film.shown))
            rules = {f"line{kind}": [film.moment(text, np.inf)], f"background{kind}": [film.moment(text, float(level))]}
            is_part = span[1] - span[0] < PART * film.seconds
            for name, moments in (rules | CONSTANT).items():
                of_film = np.array(moments) * (film.seconds if name in CONSTANT else 1)
                iou = np.nan if np.isnan(span[0]) else np.mean([overlap(film, owner, span, tuple(m)) for m in of_film])
                row[f"{name} iou"], row[f"{name} iou, part"] = iou, iou if is_part else np.nan
    return found


def interval(values: np.ndarray, digits: int) -> str:
    draws = np.random.default_rng(0).integers(len(values), size=(10_000, len(values)))
    low, high = np.nanquantile(np.nanmean(values[draws], 1), (0.025, 0.975))
    return f"{np.nanmean(values):+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"


def area(right_first: np.ndarray, values: np.ndarray) -> float:
    positive = right_first.sum()
    negative = len(values) - positive
    return (rankdata(values)[right_first].sum() - positive * (positive + 1) / 2) / (positive * negative)


def tables(rows: Sequence[dict[str, float]], count: int) -> tuple[list[list[str]], list[list[str]], list[list[str]]]:
    """Scores, moments and areas; differences are from the first, means over seeds first, intervals over captions."""
    numbers = np.array([int(row["caption"]) for row in rows])
    groups = [np.flatnonzero(numbers == q) for q in range(count)]

    def by_caption(key: str, change: Callable[[np.ndarray], np.ndarray] = lambda x: x) -> np.ndarray:
        values = change(np.array([float(row[key]) for row in rows]))
        return np.array([values[group].mean() if len(group) else np.nan for group in groups])

    scores, areas, generator = [], [], np.random.default_rng(0)
    resampled = [np.concatenate([groups[q] for q in generator.integers(count, size=count)]) for _ in range(2000)]
    for name in [key.removesuffix(" rank") for key in rows[0] if key.endswith(" rank")]:
        first, five = (by_caption(f"{name} rank", lambda x, k=k: 100.0 * (x <= k)) for k in (1, 5))
        inverse, base = by_caption(f"{name} rank", lambda x: 1 / x), by_caption("max rank", lambda x: 1 / x)
        sums = [by_caption("max rank", lambda x, k=k: 100.0 * (x <= k)) for k in (1, 5)]
        longest = 100 * np.nanmean(by_caption(f"{name} longest"))
        row = [f"{np.nanmean(x):.1f}" for x in (first, five)] + [interval(first + five - sum(sums), 1)]
        scores.append([name, *row, f"{longest:.0f}", f"{np.nanmean(inverse):.3f}", interval(inverse - base, 3)])
        right_first = np.array([row[f"{name} rank"] == 1 for row in rows])
        for measure in ("margin", "z-score", "score"):
            values = np.array([float(row[f"{name} {measure}"]) for row in rows])
            drawn = [area(right_first[i], values[i]) for i in resampled if 0 < right_first[i].sum() < len(i)]
            low, high = np.quantile(drawn, (0.025, 0.975))
            areas.append([name, measure, f"{area(right_first, values):.2f} ({low:.2f} to {high:.2f})"])
    ious = []
    for key in (key for key in rows[0] if " iou" in key):
        values = by_caption(key)
        if not np.isnan(values).all():
            base = by_caption(f"line iou{', part' * key.endswith('part')}")
            ious.append([key, f"{np.nanmean(values):.3f}", interval(values - base, 3)])
    return scores, ious, areas


def seconds(text: str) -> float:
    return sum(float(part) * 60**i for i, part in enumerate(reversed(text.split(":")))) if text else np.nan


def main() -> None:
    args = parse_options(
        __doc__,
        films=option("films", "folder of films"),
        captions=option("films.csv", "table of captions"),
        encoder=option("conse:ConSE", "MODULE:CLASS of an encoder with sentences"),
        share=option(0.4, "how much of the mean sentence is subtracted"),
        seeds=option(20, "of mixed galleries; a quarter of them of needles"),
    )
    print(environment())
    encoder = open_encoder(args.encoder, "cpu")
    plain: dict[str, np.ndarray] = {}
    views: dict[str, list[np.ndarray]] = {}
    for path in sorted(Path(args.films).iterdir()):
        name = path.name if path.stem in plain else path.stem
        with open_video(path) as video:
            plain[name] = encoder.encode(np.stack([encoder.prepare(frame.pixels) for frame in video.sample(RATE)]))
        with open_video(path) as video:
            pictures = [frame.pixels for frame in video.sample(2 * RATE)]
        views[name] = []
        for top, bottom, left, end in PARTS:
            for step in (1, -1):
                h, w = pictures[0].shape[:2]
                crops = [p[int(top * h) : int(bottom * h), int(left * w) : int(end * w)][:, ::step] for p in pictures]
                views[name].append(encoder.encode(np.stack([encoder.prepare(np.ascontiguousarray(c)) for c in crops])))
    lines = list(csv.DictReader(Path(args.captions).read_text("utf-8").splitlines()))
    side = open_featurizer(args.encoder)
    texts = unit(np.stack([side.sentence(line["text"]) for line in lines]))
    mean = unit(np.stack([side.sentence(text) for text in SENTENCES])).mean(0)
    centred = {"": texts, ", centred": unit(texts - np.float32(args.share) * mean)}
    spans = np.array([(seconds(line["start"]), seconds(line["end"])) for line in lines])
    captions, names = Captions([line["video"] for line in lines], spans, centred), sorted(plain)
    single = {name: film_of([(name, plain[name], 0.0)]) for name in names}
    everything = range(len(lines))
    sets = {"films": measured([*single.values()], captions, everything), "mixed": [], "needle": []}
    for seed in range(args.seeds):
        generator = np.random.default_rng(seed)
        order = [names[i] for i in generator.permutation(len(names))]
        films = [single[name] for name in order[9:]]
        for a, b in ((0, 3), (3, 5), (5, 7), (7, 9)):
            rows = int(RATE * np.exp(generator.uniform(np.log(180), np.log(1200))))
            parts = [(name, plain[name], 0.0) for name in order[a:b]]
            parts += joined(generator, views, order[a:b], rows - sum(len(part[1]) for part in parts))
            films.append(film_of([parts[i] for i in generator.permutation(len(parts))]))
        sets["mixed"] += measured(films, captions, everything)
        for q in everything if seed % 4 == 0 else ():
            start, end = spans[q]
            if np.isnan(start):
                continue
            others = [name for name in names if not right(single[name], captions.owners[q])]
            others = [others[i] for i in generator.permutation(len(others))]
            rest, other = (joined(generator, views, some, 2400) for some in (others[:8], others[8:16]))
            piece = plain[captions.owners[q]][int(start * RATE) : int(np.ceil(min(start + 3, end) * RATE))]
            rest.insert(int(generator.integers(len(rest))), (captions.owners[q], piece, start))
            films = [film_of(rest), film_of(other), *(single[name] for name in others)]
            sets["needle"] += measured(films, captions, [q])
    written = {}
    for name, rows in sets.items():
        scores, ious, areas = tables(rows, len(lines))
        written[name] = {"scores": scores, "moments": ious, "areas": areas}
        show(name, ["", "R@1", "R@5", "sum minus max", "longest %", "MRR", "minus max"], scores)
        show(f"{name}, moments", ["", "IoU", "minus line"], ious)
        show(f"{name}, area", ["", "", "right first hit"], areas)
    write_figures(args, written)


if __name__ == "__main__":
    main()
