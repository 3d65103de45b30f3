"""A pipeline evaluated and searched: the same recalls from `prvr evaluate` and from an index of all test videos.

    prvr train --preset hybrid-toy --output hybrid
    torchrun --nproc_per_node 2 -m prvr.cli train --retriever hybrid --output reranker --device cpu
    python benchmarks/pipeline.py --system reranker
    python benchmarks/pipeline.py --system reranker --videos 10000 100000

Features of the test videos go into a store and from there into indexes: of float32 vectors and whole videos, which must
rank as evaluation does, and of float16, int8 and windows, whose difference is printed. The second table has the
milliseconds per query after each stage, and what of it this stage takes, beside those of a plain product of the query
with all stored vectors; texts are encoded beforehand.

With `--videos`, searches among so many instead: the test videos, and videos spliced from shots of training videos.
`plain` multiplies a query with every stored vector that the score of the first stage reads; the others are whole
searches for the ten best videos, by the first stage alone and by all stages. Every contender runs in a process of its
own, and they take turns. recall@10 is the share of the ten best that every stage finds when it scores every video;
recalls are of the first --full queries. --folder keeps the indexes and uses them again.
"""

import argparse
import json
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from copy import copy
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from _gallery import gallery_videos, header_of, write_gallery
from _harness import (
    Comparison,
    Contender,
    Tasks,
    alone,
    compare,
    memory,
    memory_of,
    option,
    parse_options,
    percentiles,
    returned,
    seconds,
    show,
    write_figures,
)
from prvr.data.corpus import Corpus
from prvr.errors import InputError
from prvr.evaluation import EvaluationConfig, evaluate
from prvr.pipeline import open_system
from prvr.search import SearchModel, VideoIndex, open_model
from prvr.search.manifest import Manifest, counts_file
from prvr.search.pipeline import PipelineModel
from prvr.search.rescoring import Rescorer
from prvr.search.snapshot import Snapshot
from prvr.search.vectors import Dtype, pack_rows
from prvr.stages import Pipeline, RetrieverStage, ZeroShotStage
from prvr.training import open_split
from prvr.training.data import run_corpus
from prvr.video import VideoStore
from prvr.video.store import write_entry, write_header

RECALLS = (1, 5, 10)
K = 10
INDEXES = {
    "float32, whole videos": {"dtype": "float32", "window": None, "stride": None},
    "float16, whole videos": {"dtype": "float16", "window": None, "stride": None},
    "int8, whole videos": {"dtype": "int8", "window": None, "stride": None},
    "float32, windows of 20 s": {"dtype": "float32", "window": 20.0, "stride": 10.0},
}


def store_of(folder: Path, corpus: Corpus, split: str) -> VideoStore:
    """The features of a split's videos, as `prvr extract` would have written them."""
    header = header_of(corpus)
    (folder / "videos").mkdir(parents=True)
    write_header(folder, header)
    for entry, rows in gallery_videos(corpus, split, len(corpus.split(split).video_ids)):
        write_entry(folder, header, entry, rows)
    return VideoStore(folder)


def plain_product(source: Snapshot) -> Callable[[np.ndarray], None]:
    """Multiplies a query with all vectors that the score of the first stage reads, as they are stored."""
    about, rows = source.manifest, source.rows_of_videos(None)
    parts = {"clips": (about.clip_weight, slice(about.dim)), "frames": (about.frame_weight, slice(-about.dim, None))}
    stored = [
        (torch.from_numpy(packed.values), part)
        for name, (weight, part) in parts.items()
        if weight
        for packed in source.packed(name, rows)
    ]

    def multiply(query: np.ndarray) -> None:
        for vectors, part in stored:
            torch.from_numpy(pack_rows(query[None, part], about.dtype).values) @ vectors.mT

    return multiply


def costs(index: VideoIndex, queries: Sequence[str]) -> list[tuple[str, float, float]]:
    """Milliseconds per query of the first stage and after each further one, and the share of the last; by medians."""
    source = index.source
    whole = index.model.rescorer(source)
    if whole is None:
        return []
    first, stages = whole.pipeline.first, whole.pipeline.stages
    texts = {query: whole.encode(query) for query in queries}
    vectors = [index.encode(query) for query in queries]
    product_of = plain_product(source)

    def plain(_: str, text: np.ndarray) -> None:
        product_of(text)

    def after(number: int) -> Callable[[str, np.ndarray], object]:
        some = Rescorer(Pipeline(first, stages[:number]), whole.sets[:number], texts.__getitem__, source)
        return lambda query, text: some.rank(query, text, None, max(RECALLS))

    ways = {"a plain product": plain, "first stage": after(0)}
    ways |= {f"{i}: {stage.kind}": after(i) for i, stage in enumerate(stages, 1)}
    found = []
    for name, way in ways.items():
        way(queries[0], vectors[0])
        times = [1000 * seconds(partial(way, q, v))[1] for q, v in zip(queries, vectors, strict=True)]
        median = statistics.median(times)
        found.append((name, median, median - found[-1][1] if len(found) > 1 else median))
    return found


def recalls(ranks: np.ndarray) -> list[float]:
    return [100 * float((ranks <= k).mean()) for k in RECALLS]


def scoring_all(model: SearchModel) -> SearchModel:
    """The model with stages that score every video; one that compares candidates keeps how many it takes."""
    if not isinstance(model, PipelineModel):
        return model
    stages = [copy(stage) for stage in model.pipeline.stages]
    for stage in stages:
        if isinstance(stage, RetrieverStage | ZeroShotStage):
            stage.settings = replace(stage.settings, top_k="all")
    found = copy(model)
    found.pipeline = Pipeline(model.pipeline.first, stages)
    return found


def written(folder: Path, args: argparse.Namespace, videos: int, dtype: Dtype) -> dict[str, Any]:
    """Writes a large gallery with its queries; returns what is known of it."""
    config = open_system(args.system).config
    if config is None:
        raise InputError(f"{args.system}: no config.yaml says which data it reads. Name the run that trained it.")
    corpus, split = run_corpus(config), config.data.eval_split
    header = header_of(corpus)
    model, test = open_model(args.system, header), corpus.split(split)
    scoring_all(model)  # refused before anything is written
    given = gallery_videos(corpus, split, videos, args.seed)
    manifest = write_gallery(folder / "index", model, header, given, videos, dtype, 1e9 * args.gigabytes)
    chosen = np.unique(np.linspace(0, len(test.captions) - 1, args.queries).round().astype(int))
    asked = [(test.captions[i].text, sorted(test.relevant(test.captions[i]))) for i in chosen]
    (folder / "queries.json").write_text(json.dumps(asked))
    stages = list(model.pipeline.describe()) if isinstance(model, PipelineModel) else []
    return {"videos": videos, "dtype": dtype, "stages": stages, "bytes": bytes_of(manifest), "peak": memory()}


def bytes_of(manifest: Manifest) -> dict[str, float]:
    """Bytes per video of an index, by set of rows."""
    found, videos = Counter[str](), sum(record.videos for record in manifest.segments)
    for file, stamp in (pair for record in manifest.segments for pair in record.files.items()):
        sets = [one for one in manifest.row_sets if file.startswith((f"{one}.", f"{one}_")) or file == counts_file(one)]
        found[sets[0] if sets else "tables"] += stamp.size
    return {name: size / videos for name, size in found.items()}


def plain(folder: Path) -> Tasks:
    """The product of each query with all rows as they are stored: what is left if nothing else costs anything."""
    index = VideoIndex.open(folder / "index")
    multiply, texts = plain_product(index.source), [index.encode(text) for text, _ in queries_of(folder)]
    return {"search": lambda: timed_each(texts, multiply)[1]}


def searched(folder: Path, stages: bool, backend: str) -> Tasks:
    """Whole searches, with all stages or by the first one alone; texts are encoded beforehand."""
    model: Any = VideoIndex.open(folder / "index").model
    if isinstance(model, PipelineModel) and not stages:
        model = model.first
    texts = [text for text, _ in queries_of(folder)]
    for name in ("encode_text", "encode_for_stages"):
        if encode := getattr(model, name, None):
            setattr(model, name, {text: encode(text) for text in texts}.__getitem__)
    index = VideoIndex(folder / "index", model=model, backend=backend)
    index.search(texts[0], K)

    def search() -> dict[str, float]:
        found, measured = timed_each(texts, lambda text: [hit.video_id for hit in index.search(text, K).hits])
        return measured | judged(folder, found)

    return {"search": search}


def full_score(folder: Path, queries: int) -> dict[str, Any]:
    """The ten best videos of the first queries where every stage scores every video, and the memory that takes."""
    model = scoring_all(VideoIndex.open(folder / "index").model)
    index = VideoIndex(folder / "index", model=model, backend="exact")
    found = [[hit.video_id for hit in index.search(text, K).hits] for text, _ in queries_of(folder)[:queries]]
    return {"found": found, "peak": memory()}


def timed_each(queries: Iterable[Any], run: Callable[[Any], Any]) -> tuple[list[Any], dict[str, float]]:
    """What a function returns for each query, with the times and the memory that it takes."""
    found, times = zip(*(seconds(partial(run, query)) for query in queries), strict=True)
    return list(found), percentiles(times) | memory_of("self")


def queries_of(folder: Path) -> list[tuple[str, list[str]]]:
    """The queries of a gallery, each with the videos that answer it."""
    return json.loads((folder / "queries.json").read_text())


def judged(folder: Path, found: Sequence[Sequence[str]]) -> dict[str, float]:
    """The share of the ten best videos that were found for the first queries, and R@1 and R@10 of these, in percent."""
    best = json.loads((folder / "full.json").read_text())["found"]
    same, hits = [], []
    for ids, full, (_, answers) in zip(found, best, queries_of(folder), strict=False):
        same.append(len({*ids} & {*full}) / len(full))
        hits.append([100.0 * any(video in answers for video in ids[:k]) for k in (1, K)])
    return {"recall@10": float(np.mean(same)), **dict(zip(("R@1", "R@10"), np.mean(hits, 0).tolist(), strict=True))}


def made_once(path: Path, make: Callable[..., Any], *given: Any, threads: int) -> Any:
    """What a function returns in a process of its own, kept in a file."""
    if not path.exists():
        path.write_text(json.dumps(alone(make, *given, threads=threads)))
    return json.loads(path.read_text())


def large(args: argparse.Namespace) -> None:
    """Searches in galleries of `--videos` videos, one gallery after the other."""
    measured = []
    for videos, dtype in product(args.videos, args.dtypes):
        with tempfile.TemporaryDirectory(prefix="prvr-pipeline-") as made:
            folder = (args.folder or Path(made)) / f"{videos}-{dtype}"
            about = made_once(folder / "about.json", written, folder, args, videos, dtype, threads=args.threads)
            full = made_once(folder / "full.json", full_score, folder, args.full, threads=args.threads)
            contenders = [Contender("plain", plain, (folder,))]
            backends = ("exact", "faiss") if find_spec("faiss") else ("exact",)
            for stages, backend in product((False, True) if about["stages"] else (False,), backends):
                name = f"{'all stages' if stages else 'first stage'}, {backend}"
                contenders.append(Contender(name, searched, (folder, stages, backend)))
            found = compare(contenders, rounds=args.rounds, measure=returned, threads=args.threads).figures()
            found["search"]["full score"] = [judged(folder, full["found"]) | {"VmHWM": full["peak"]}]
        measured.append({"about": about, "measured": found})
        write_figures(args, measured)
    table(measured)


def table(measured: Sequence[dict[str, Any]]) -> None:
    """Ratios to the plain product in the same rounds, recalls, memory, and the bytes of each set of rows."""
    recalls, memories = {"recall@10": 3, "R@1": 1, "R@10": 1}, ("VmHWM", "RssAnon")
    rows, sizes = [], []
    for one in measured:
        about, found = one["about"], Comparison(one["measured"])
        gallery = f"{about['videos']:,}, {about['dtype']}"
        for name, rounds in found.measured["search"].items():
            ratios = [found.ratio("search", name, "plain", p) if p in rounds[0] else "" for p in ("p50", "p95")]
            right = [f"{rounds[0][what]:.{places}f}" if what in rounds[0] else "" for what, places in recalls.items()]
            taken = [f"{rounds[-1][what] / 2**20:,.0f}" if what in rounds[-1] else "" for what in memories]
            rows.append([gallery, name, *ratios, *right, *taken])
        each = about["bytes"] | {"all": sum(about["bytes"].values())}
        sizes += [[gallery, name, f"{size:,.0f}"] for name, size in each.items()]
        rows.append([gallery, "writing the index", *[""] * 5, f"{about['peak'] / 2**20:,.0f}", ""])
    head = ["gallery", "contender", "p50 / plain", "p95 / plain", *recalls, "peak MB, mapped files included"]
    show("searches", [*head, "MB of its own"], rows)
    show("the index", ["gallery", "rows", "bytes per video"], sizes)


def evaluated(args: argparse.Namespace) -> None:
    system = open_system(args.system)
    rows, spent, config, beyond = [], [], system.config, max(RECALLS) + 1
    with closing(open_split(config, config.data.eval_split)) as split, tempfile.TemporaryDirectory() as made:
        report = evaluate(system.pipeline, split, EvaluationConfig(bootstrap=0))
        rows.append(("prvr evaluate", recalls(report.ranks), 0))
        store = store_of(Path(made) / "store", split.source.corpus, split.source.split)
        relevant = [{split.video_ids[video] for video in videos} for videos in split.relevant]
        for number, (name, how) in enumerate(INDEXES.items()):
            model = open_model(args.system, store.header)
            with VideoIndex.create(Path(made) / f"index-{number}", model, store.header, **how) as index:
                index.add(store)
                results = index.search_many(split.captions, max(RECALLS))
                if name == "float16, whole videos":
                    spent = costs(index, split.captions[:50])
            ranks = np.array(
                [
                    next((rank for rank, hit in enumerate(result.hits, 1) if hit.video_id in videos), beyond)
                    for result, videos in zip(results, relevant, strict=True)
                ]
            )
            rows.append((f"index, {name}", recalls(ranks), int((ranks != report.ranks.clip(max=beyond)).sum())))
    head = ("", *(f"R@{k}" for k in RECALLS), "queries of another rank")
    shown = [(name, *(f"{value:.2f}" for value in found), str(other)) for name, found, other in rows]
    show(f"{report.split}: {', '.join(report.stages)}", head, shown)
    head = ("float16, milliseconds", "per query", "of this stage")
    show("cost of each stage", head, [(name, f"{total:.2f}", f"{own:.2f}") for name, total, own in spent])
    write_figures(args, [{"way": name, "recalls": found, "other ranks": other} for name, found, other in rows])


def main() -> None:
    args = parse_options(
        __doc__,
        system=option(None, "a run, a pipeline's folder or its YAML file", required=True),
        videos=option([], "sizes of large galleries to search", type=int),
        dtypes=option(["float16"], "of their indexes", choices=["float16", "float32", "int8"]),
        queries=option(100, "captions of the test split to search for, evenly spread"),
        full=option(100, "how many of these are scored with every video by every stage"),
        rounds=3,
        gigabytes=option(15.0, "the most disk that an index may take"),
        folder=option(None, "kept; the indexes in it are used again", type=Path),
    )
    large(args) if args.videos else evaluated(args)


if __name__ == "__main__":
    main()
