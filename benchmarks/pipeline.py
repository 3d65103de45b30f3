"""A pipeline evaluated and searched: the same recalls from `prvr evaluate` and from an index of all test videos.

    prvr train --preset hybrid-embedded --output hybrid
    torchrun --nproc_per_node 2 -m prvr.cli train --retriever hybrid --output reranker --device cpu
    python benchmarks/pipeline.py --system reranker

Features of the test videos go into a store and from there into indexes: of float32 vectors and whole videos, which must
rank as evaluation does, and of float16, int8 and windows, whose difference is printed. The second table has the
milliseconds per query after each stage, and what of it this stage takes, beside those of a plain product of the query
with all stored vectors; texts are encoded beforehand.
"""

import hashlib
import statistics
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import torch

from _harness import option, parse_options, seconds, show, write_figures
from prvr.corpora.encoders import corpus_encoders
from prvr.data.features import open_features
from prvr.evaluation import EvaluationConfig, evaluate
from prvr.pipeline import open_system
from prvr.search import VideoIndex, open_model
from prvr.search.rescoring import Rescorer
from prvr.stages import Pipeline
from prvr.training import open_split
from prvr.video import StoreHeader, VideoEntry, VideoStore
from prvr.video.store import write_entry, write_header

RECALLS = (1, 5, 10)
INDEXES = {
    "float32, whole videos": {"dtype": "float32", "window": None, "stride": None},
    "float16, whole videos": {"dtype": "float16", "window": None, "stride": None},
    "int8, whole videos": {"dtype": "int8", "window": None, "stride": None},
    "float32, windows of 20 s": {"dtype": "float32", "window": 20.0, "stride": 10.0},
}


def store_of(folder: Path, split, source) -> VideoStore:
    """The features of a split's videos, as `prvr extract` would have written them."""
    encoders = corpus_encoders(source.corpus)
    header = StoreHeader(encoders.frames, encoders.rate, encoders.dim, encoders.joint_dim)
    (folder / "videos").mkdir(parents=True)
    write_header(folder, header)
    with open_features(source.corpus.feature_folder) as features:
        for video in split.video_ids:
            rows = features.read(video).astype(np.float32)
            about = {"path": f"/videos/{video}", "size": 1, "mtime_ns": 0, "width": 64, "height": 48, "codec": "h264"}
            digest = hashlib.sha256(rows.tobytes()).hexdigest()
            length = len(rows) / header.rate
            entry = VideoEntry(id=video, sha256=digest, duration=length, frames=len(rows), **about)
            write_entry(folder, header, entry, rows)
    return VideoStore(folder)


def costs(index: VideoIndex, queries: Sequence[str]) -> list[tuple[str, float, float]]:
    """Milliseconds per query of the first stage and after each further one, and the share of the last; by medians."""
    source = index.source
    whole = index.model.rescorer(source)
    if whole is None:
        return []
    first, stages = whole.pipeline.first, whole.pipeline.stages
    texts = {query: whole.encode(query) for query in queries}
    vectors = [index.encode(query) for query in queries]
    everything = np.flatnonzero(source.owners >= 0)
    sets = [
        name for name, weight in (("clips", index.model.clip_weight), ("frames", index.model.frame_weight)) if weight
    ]

    def plain(_: str, text: np.ndarray) -> None:
        for packed in (packed for name in sets for packed in source.packed(name, everything)):
            stored = torch.from_numpy(packed.values)
            torch.from_numpy(text)[None].to(stored.dtype) @ stored.mT

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


def main() -> None:
    args = parse_options(__doc__, system=option(None, "a run, a pipeline's folder or its YAML file", required=True))
    system = open_system(args.system)
    rows, spent, config, beyond = [], [], system.config, max(RECALLS) + 1
    with closing(open_split(config, config.data.eval_split)) as split, tempfile.TemporaryDirectory() as made:
        report = evaluate(system.pipeline, split, EvaluationConfig(bootstrap=0))
        rows.append(("prvr evaluate", recalls(report.ranks), 0))
        store = store_of(Path(made) / "store", split, split.source)
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


if __name__ == "__main__":
    main()
