"""How much a packed store saves: one pass over a corpus from HDF5, item by item, against one from the packed store.

    python benchmarks/loader.py [--videos 200] [--width 1024] [--passes 3]

Both give the same items and batches. HDF5 holds float64, as the public converter writes it, and is read, sampled and
normalised for each item, as the released data sets do. Prints ratios of warm passes (the comparison reads every file).
"""

import argparse
import itertools
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch

from prvr.data import (
    Caption,
    Corpus,
    VideoDataset,
    VideoItem,
    collate,
    make_loader,
    open_corpus,
    pack,
    sample_video,
    write_layout,
)
from prvr.data.rows import normalise_rows
from prvr.types import Batch


def make_corpus(root: Path, videos: int, width: int) -> Corpus:
    rng = np.random.default_rng(0)
    names = [f"v{i:05d}" for i in range(videos)]
    captions = [Caption(f"{name}#enc#{k}", name, "a text") for name in names for k in range(5)]
    write_layout(
        root,
        "bench",
        captions={"train": captions},
        videos=((name, rng.standard_normal((rng.integers(20, 160), width))) for name in names),
        queries=((c.id, rng.standard_normal((rng.integers(6, 30), 768))) for c in captions),
        formats=("hdf5",),
    )
    return open_corpus(root, "bench")


def items_from_hdf5(corpus: Corpus) -> Iterator[VideoItem]:
    by_video: dict[str, list[str]] = {}
    for caption in corpus.split("train").captions:
        by_video.setdefault(caption.video_id, []).append(caption.id)
    with corpus.open_features() as videos, corpus.open_queries() as queries:
        for name, ids in by_video.items():
            clips, frames = map(torch.from_numpy, sample_video(videos.read(name)))
            words = tuple(torch.from_numpy(normalise_rows(queries.read(i))[:30]) for i in ids)
            yield VideoItem(name, clips, frames, words, tuple(ids), (frozenset({name}),) * len(ids))


def batches_from_hdf5(corpus: Corpus, size: int) -> Iterator[Batch]:
    items = items_from_hdf5(corpus)
    while part := list(itertools.islice(items, size)):
        yield collate(part)


def seconds(batches: Iterable[object]) -> float:
    start = time.perf_counter()
    for _ in batches:
        pass
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--videos", type=int, default=200)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--passes", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        corpus = make_corpus(Path(folder), args.videos, args.width)
        start = time.perf_counter()
        with pack(corpus, "train", cache_dir=folder) as packed:
            packing = time.perf_counter() - start
            loader = make_loader(packed, args.batch_size, shuffle=False)
            for ours, theirs in zip(loader, batches_from_hdf5(corpus, args.batch_size), strict=True):
                torch.testing.assert_close(ours.frames, theirs.frames)
                torch.testing.assert_close(ours.words, theirs.words)
            # in turn, so that whatever else the machine does meets all of them
            times = [
                (
                    seconds(items_from_hdf5(corpus)),
                    seconds(VideoDataset(packed)[i] for i in range(len(packed))),
                    seconds(batches_from_hdf5(corpus, args.batch_size)),
                    seconds(loader),
                    seconds(packed.video_batches(64)),
                )
                for _ in range(args.passes)
            ]
        slow_items, fast_items, slow, fast, gallery = (min(column) for column in zip(*times, strict=True))
        print(f"{args.videos} videos, width {args.width}, batches of {args.batch_size}, equal in content")
        print(f"items,   HDF5 / packed:            {slow_items / fast_items:.1f}")
        print(f"batches, HDF5 / packed:            {slow / fast:.1f}")
        print(f"packing once / a pass over HDF5:   {packing / slow:.1f}")
        print(f"a training pass / a gallery pass:  {fast / gallery:.1f}")


if __name__ == "__main__":
    main()
