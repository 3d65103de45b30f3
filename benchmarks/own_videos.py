"""From video files to answers: how well the right video and the right moment are found, beside what needs no training.

    python benchmarks/own_videos.py                  # files of the toy demo corpus, hybrid-toy as it stands
    python benchmarks/own_videos.py --run runs/demo  # the same files, a model that was trained before
    python benchmarks/own_videos.py --quick          # the tiny corpus, two epochs: that it runs, not how well

Every video of the corpus is written as MP4, extracted, and captioned with its own sentences and splits; the index holds
the test videos. Moments are of the best hit within a query's own video, whatever its rank; `found` asks for the right
video first as well. Controls for moments: the best instant +- half the mean moment of training; the whole video; a
random stretch of mean length. `covers the highest`: the moment holds the middle of the highest part of the relevance
curve. Last: 5 s of a moment in the features of 2 hours of other videos.
"""

import argparse
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from _harness import option, parse_options, show, write_figures
from prvr import load_config
from prvr.data import Corpus, TextData, open_corpus, write_corpus, write_layout
from prvr.data.layout import read_relevance
from prvr.data.synthetic import write_videos
from prvr.evaluation.metrics import chance_recall
from prvr.search import SearchHit, SearchResult, VideoIndex, open_model
from prvr.training import terminal_bar, train
from prvr.video import VideoStore, extract, open_encoder
from prvr.video.store import VideoEntry, write_entry, write_header

HOURS, PLANTED = 2.0, 5.0
WINDOWS: dict[str, dict[str, Any]] = {
    "windows of 120 s": {},
    "windows of 30 s": {"window": 30.0, "stride": 15.0},
    "no windows": {"window": None, "stride": None},
    "shots": {"window": "shots", "stride": None},
}
Span = tuple[float, float]


@dataclass(frozen=True)
class Query:
    text: str
    video: str
    moment: Span
    duration: float
    relevant: frozenset[str]


@dataclass(frozen=True)
class Scored:
    """In percent, but for the mean IoU, which lies in [0, 1]."""

    name: str
    r1: float | None
    r10: float | None
    iou: float
    iou50: float
    iou70: float
    found50: float | None
    found70: float | None
    cover: float | None = None


def overlap(a: Span, b: Span) -> float:
    """Intersection over union of two stretches of time.

    >>> overlap((0.0, 4.0), (2.0, 6.0))
    0.3333333333333333
    """
    common = max(0.0, min(a[1], b[1]) - max(a[0], b[0]))
    return common / (a[1] - a[0] + b[1] - b[0] - common)


def features_from_files(corpus: Corpus, folder: Path, others: bool) -> dict[str, VideoStore]:
    """Stores of the test videos and of the others, if these are wanted, decoded from MP4 files."""
    test = set(corpus.split("test").video_ids)
    files, stores = write_videos(corpus, None if others else sorted(test)), {}
    for name, keep in (("test", True), ("others", False))[: 1 + others]:
        chosen = [path for path in sorted(files.glob("*.mp4")) if (path.stem in test) == keep]
        report = extract(chosen, open_encoder("toy"), folder / f"store-{name}")
        print(f"{name}: {len(report.extracted)} files extracted, {len(report.failed)} failed")
        stores[name] = VideoStore(folder / f"store-{name}")
    return stores


def captioned(corpus: Corpus, stores: Iterable[VideoStore], folder: Path) -> None:
    """The corpus again, its own captions and splits, its features from the files."""
    splits = {name: corpus.split(name) for name in ("train", "val", "test")}
    captions = {name: split.captions for name, split in splits.items()}
    whole = splits["test"]
    with corpus.open_queries() as queries:
        write_layout(
            folder / "films",
            TextData(captions=captions, moments=whole.moments, relevance=whole.relevance, tags=whole.tags),
            videos=((Path(video).stem, store.read(video)) for store in stores for video in store.video_ids),
            queries=((c.id, queries.read(c.id)) for some in captions.values() for c in some),
            about=json.loads((corpus.folder / "corpus.json").read_text(encoding="utf-8")),
        )


def queries_of(corpus: Corpus) -> list[Query]:
    split, found = corpus.split("test"), []
    for caption in split.captions:
        moment = split.moments[caption.id]
        video, span = f"{caption.video_id}.mp4", (moment.start, moment.end)
        relevant = frozenset(f"{other}.mp4" for other in split.relevant(caption))
        found.append(Query(caption.text, video, span, moment.duration, relevant))
    return found


def searched(folder: Path, model: str, store: VideoStore, texts: Sequence[str], **options: Any) -> list[SearchResult]:
    """Every video of a store for every text, best first."""
    with VideoIndex.create(folder, open_model(model, store.header), store.header, **options) as index:
        index.add(store)
        return [one for text in texts for one in index.search_many([text], len(store.video_ids), moments=1)]


def hits_of_own_videos(queries: Sequence[Query], results: Sequence[SearchResult]) -> list[SearchHit]:
    return [
        next(hit for hit in result.hits if hit.video_id == query.video)
        for query, result in zip(queries, results, strict=True)
    ]


def score(name: str, queries: Sequence[Query], results: Sequence[SearchResult]) -> Scored:
    ranks = [
        next(rank for rank, hit in enumerate(result.hits, 1) if hit.video_id in query.relevant)
        for query, result in zip(queries, results, strict=True)
    ]
    own = hits_of_own_videos(queries, results)
    first = np.array([result.hits[0].video_id == query.video for query, result in zip(queries, results, strict=True)])
    moments = _moments(name, queries, [(hit.start, hit.end) for hit in own])
    ious = np.array([overlap(query.moment, (hit.start, hit.end)) for query, hit in zip(queries, own, strict=True)])
    r1, r10 = (100 * float(np.mean(np.array(ranks) <= k)) for k in (1, 10))
    found50, found70 = (100 * float(np.mean(first & (ious >= level))) for level in (0.5, 0.7))
    cover = 100 * float(np.mean([hit.start <= highest(hit) <= hit.end for hit in own]))
    return replace(moments, r1=r1, r10=r10, found50=found50, found70=found70, cover=cover)


def controls(queries: Sequence[Query], results: Sequence[SearchResult], length: float, videos: int) -> list[Scored]:
    own = hits_of_own_videos(queries, results)
    rng = np.random.default_rng(0)
    starts = [rng.uniform(0, max(query.duration - length, 0)) for query in queries]
    relevant = torch.tensor([len(query.relevant) for query in queries])
    r1, r10 = (chance_recall(videos, relevant, k) for k in (1, 10))
    chance = _moments("chance", queries, [(start, start + length) for start in starts])
    return [
        replace(chance, r1=r1, r10=r10),
        _moments("best instant +- half the mean", queries, [around(hit, length) for hit in own]),
        _moments("whole video", queries, [(0.0, query.duration) for query in queries]),
    ]


def highest(hit: SearchHit) -> float:
    """The middle of the highest part of the time line, in seconds."""
    return (int(np.argmax(hit.relevance)) + 0.5) / len(hit.relevance) * hit.video.duration


def around(hit: SearchHit, length: float) -> Span:
    """The mean length around the highest part of the time line, within the video."""
    middle = highest(hit)
    start = min(max(middle - length / 2, 0.0), max(hit.video.duration - length, 0.0))
    return start, min(start + length, hit.video.duration)


def _moments(name: str, queries: Sequence[Query], spans: Sequence[Span]) -> Scored:
    ious = np.array([overlap(query.moment, span) for query, span in zip(queries, spans, strict=True)])
    iou50, iou70 = (100 * float(np.mean(ious >= level)) for level in (0.5, 0.7))
    return Scored(name, None, None, float(ious.mean()), iou50, iou70, None, None)


def haystacks(
    queries: Sequence[Query], answers: Mapping[str, frozenset[str]], stores: Sequence[VideoStore], folder: Path
) -> tuple[VideoStore, list[Query]]:
    """One video of 2 h for each query: 5 s of its moment among features of videos that answer none of the queries.

    `answers`: for each text all videos of the corpus with a shot that is as it says, captioned or not.
    """
    rng, header = np.random.default_rng(0), stores[0].header
    kept = [query for query in queries if query.moment[1] - query.moment[0] >= PLANTED]
    right = frozenset().union(*(answers[query.text] for query in kept))
    where = {video: store for store in stores for video in store.video_ids}
    hay = [video for video in where if Path(video).stem not in right]
    rows, size = round(HOURS * 3600 * header.rate), round(PLANTED * header.rate)
    (folder / "videos").mkdir(parents=True)
    write_header(folder, header)
    planted = []
    for number, query in enumerate(kept):
        parts: list[np.ndarray] = []
        while sum(map(len, parts)) < rows:
            parts += [where[hay[i]].read(hay[i]) for i in rng.permutation(len(hay))]
        film = np.concatenate(parts)[:rows]
        middle = round(sum(query.moment) / 2 * header.rate)
        place = int(rng.integers(0, rows - size))
        needle = where[query.video].read(query.video)
        first = min(max(middle - size // 2, 0), len(needle) - size)
        film[place : place + size] = needle[first : first + size]
        seconds = rows / header.rate
        entry = VideoEntry(f"{number}.mp4", "", 0, 0, f"{number:064}", seconds, rows, 64, 64, "features")
        write_entry(folder, header, entry, film)
        span = (place / header.rate, (place + size) / header.rate)
        planted.append(Query(query.text, entry.id, span, seconds, frozenset({entry.id})))
    return VideoStore(folder), planted


def table(title: str, rows: Sequence[Scored]) -> None:
    places = {"r1": 1, "r10": 1, "iou": 3, "iou50": 1, "iou70": 1, "found50": 1, "found70": 1, "cover": 1}
    lines = []
    for row in rows:
        values = [(getattr(row, name), n) for name, n in places.items()]
        lines.append([row.name, *("" if value is None else f"{value:.{n}f}" for value, n in values)])
    show(
        title, ["", "R@1", "R@10", "mean IoU", "IoU .5", "IoU .7", "found .5", "found .7", "covers the highest"], lines
    )


def hit_rate(queries: Sequence[Query], results: Sequence[SearchResult]) -> list[str]:
    """How often the moment of the right film touches what was planted, and how often that film is first."""
    own = hits_of_own_videos(queries, results)
    touch = np.array([overlap(query.moment, (hit.start, hit.end)) > 0 for query, hit in zip(queries, own, strict=True)])
    top = np.array([result.hits[0].video_id == query.video for query, result in zip(queries, results, strict=True)])
    first, touched, both = top.mean(), touch.mean(), (top & touch).mean()
    length = np.mean([hit.end - hit.start for hit in own])
    return [*(f"{100 * share:.1f}" for share in (first, touched, both)), f"{length:.0f}"]


def main() -> None:
    args = parse_options(
        __doc__,
        quick=option(False, "the tiny corpus and two epochs"),
        run=option(None, "run of prvr train or prvr demo on the same corpus", type=Path),
        work=option(None, "folder for files, features and indexes; default: a temporary one", type=Path),
        needles=option(100, "films of 2 h; 0: the first table alone"),
        device=option("cpu", "to train on", choices=["cpu", "cuda"]),
    )
    with tempfile.TemporaryDirectory() as name:
        run(args, args.work or Path(name))


def run(args: argparse.Namespace, work: Path) -> None:
    corpus = write_corpus(work, "tiny" if args.quick else "demo")
    stores = features_from_files(corpus, work, others=args.run is None or args.needles > 0)
    model = args.run
    if model is None:
        captioned(corpus, stores.values(), work)
        quick = {"train.epochs": 2, "train.batch_size": 12} if args.quick else {}
        where = {"data.root": str(work), "data.collection": "films", "data.cache_dir": str(work / "cache")}
        model = work / "run"
        train(load_config("hybrid-toy", quick | where), output=model, device=args.device, progress=terminal_bar)
    queries, train_split = queries_of(corpus), open_corpus(work, corpus.name).split("train")
    length = float(np.mean([m.end - m.start for c in train_split.captions for m in [train_split.moments[c.id]]]))
    texts = [query.text for query in queries]
    trained = searched(work / "index", str(model), stores["test"], texts)
    alone = searched(work / "index-zero-shot", "zero-shot", stores["test"], texts)
    chance, instant, whole = controls(queries, trained, length, len(stores["test"].video_ids))
    rows = [chance, score("zero-shot", queries, alone), score("this model", queries, trained), instant, whole]
    title = f"{len(queries)} queries, {len(stores['test'].video_ids)} videos, mean moment {length:.1f} s"
    table(title, rows)

    if not args.needles:
        write_figures(args, {"title": title, "rows": [asdict(row) for row in rows]})
        return
    step = max(1, len(queries) // (6 if args.quick else args.needles))
    relevance = read_relevance(corpus.text_file("relevance"))
    answers = {caption.text: relevance[caption.id] for caption in corpus.split("test").captions}
    films, planted = haystacks(queries[::step], answers, [stores["test"], stores["others"]], work / "store-films")
    needles = {}
    for who, source in (("this model", str(model)), ("zero-shot", "zero-shot")):
        for how, options in WINDOWS.items():
            found = searched(work / f"films-{who}-{how}", source, films, [one.text for one in planted], **options)
            needles[f"{who}, {how}"] = hit_rate(planted, found)
    needles["chance"] = [f"{100 / len(planted):.1f}", "", "", ""]
    show(
        f"{PLANTED:g} s in {HOURS:g} h, {len(planted)} films, {PLANTED / HOURS / 36:.2f} % of the time",
        ["", "film first (%)", "moment touches (%)", "both (%)", "length (s)"],
        [[name, *cells] for name, cells in needles.items()],
    )
    write_figures(args, {"title": title, "rows": [asdict(row) for row in rows], "planted": needles})


if __name__ == "__main__":
    main()
