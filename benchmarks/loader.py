"""How much a packed split saves: one pass over a corpus from HDF5, item by item, against one from the packed split.

    python benchmarks/loader.py [--videos 200] [--width 1024] [--passes 3]

Both give the same items and batches. HDF5 holds float64, as the public converter writes it, and is read, sampled and
normalised for each item, as the released data sets do. Prints ratios of warm passes (the comparison reads every file).
"""

import itertools
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from _harness import Contender, Spread, Tasks, compare, environment, parse_options, seconds, show, write_figures
from prvr.data import (
    Caption,
    Corpus,
    TextData,
    make_loader,
    open_corpus,
    pack,
    sample_video,
    write_layout,
)
from prvr.data.sampling import normalise_rows, pad
from prvr.types import Batch


def noise_corpus(
    root: Path, lengths: Sequence[int], captions: int, words: tuple[int, int], dims: tuple[int, int]
) -> Corpus:
    """A training split "noise" of random features in HDF5.

    Args:
        root: folder to write into.
        lengths: the number of frames of each video.
        captions: the number of captions of each video.
        words: the least and the greatest number of words in a caption.
        dims: the widths of a frame's and of a word's features.
    """
    rng = np.random.default_rng(0)
    names = [f"video{i:05d}" for i in range(len(lengths))]
    texts = [Caption(f"{name}#enc#{k}", name, "noise") for name in names for k in range(captions)]
    write_layout(
        root / "noise",
        TextData({"train": texts}),
        videos=((n, rng.standard_normal((length, dims[0]))) for n, length in zip(names, lengths, strict=True)),
        queries=((c.id, rng.standard_normal((rng.integers(*words, endpoint=True), dims[1]))) for c in texts),
    )
    return open_corpus(root, "noise")


Item = tuple[str, torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]
"""A video: its id, clips, frames, and the words of each of its captions."""


def items_from_hdf5(corpus: Corpus) -> Iterator[Item]:
    by_video: dict[str, list[str]] = {}
    for caption in corpus.split("train").captions:
        by_video.setdefault(caption.video_id, []).append(caption.id)
    with corpus.open_features() as videos, corpus.open_queries() as queries:
        for name, ids in by_video.items():
            clips, frames = map(torch.from_numpy, sample_video(videos.read(name)))
            yield name, clips, frames, {i: torch.from_numpy(normalise_rows(queries.read(i))[:30]).float() for i in ids}


def batches_from_hdf5(corpus: Corpus, size: int) -> Iterator[Batch]:
    items = items_from_hdf5(corpus)
    while part := list(itertools.islice(items, size)):
        ids, clips, frames, captions = zip(*part, strict=True)
        padded, frame_mask = pad(frames)
        words, word_mask = pad([words for some in captions for words in some.values()])
        owner = torch.arange(len(part)).repeat_interleave(torch.tensor([len(some) for some in captions]))
        names = tuple(name for some in captions for name in some)
        yield Batch(torch.stack(clips), padded, frame_mask, words, word_mask, owner, None, ids, names)


def tasks(root: str, packed: bool, size: int) -> Tasks:
    """Passes over the corpus: its items, its batches, and its gallery, which is packed only."""
    corpus = open_corpus(root, "noise")
    if not packed:
        return {
            "items": lambda: deque(items_from_hdf5(corpus), 0),
            "batches": lambda: deque(batches_from_hdf5(corpus, size), 0),
        }
    store = pack(corpus, "train", cache_dir=root)
    loader = make_loader(store, size, shuffle=False)
    return {
        "items": lambda: deque(
            ((store.video(i), store.padded_queries(store.queries_of(i))) for i in range(len(store))), 0
        ),
        "batches": lambda: deque(loader, 0),
        "gallery": lambda: deque(store.video_batches(64), 0),
    }


def main() -> None:
    args = parse_options(__doc__, videos=200, width=1024, batch_size=32, passes=3)
    print(environment())
    with tempfile.TemporaryDirectory() as folder:
        lengths = np.random.default_rng(args.seed).integers(20, 160, args.videos)
        corpus = noise_corpus(Path(folder), lengths.tolist(), 5, (6, 29), (args.width, 768))
        packed, packing = seconds(lambda: pack(corpus, "train", cache_dir=folder))
        loader = make_loader(packed, args.batch_size, shuffle=False)
        for ours, theirs in zip(loader, batches_from_hdf5(corpus, args.batch_size), strict=True):
            torch.testing.assert_close(ours.frames, theirs.frames)
            torch.testing.assert_close(ours.words, theirs.words)
        packed.close()
        sides = [Contender(way, tasks, (folder, way == "packed", args.batch_size)) for way in ("HDF5", "packed")]
        found = compare(sides, rounds=args.passes, threads=args.threads)
    passes = found.values("batches", "HDF5")
    gallery = zip(found.values("batches", "packed"), found.values("gallery", "packed"), strict=True)
    rows = [
        ["items, HDF5 / packed", found.ratio("items", "HDF5", "packed")],
        ["batches, HDF5 / packed", found.ratio("batches", "HDF5", "packed")],
        ["packing once / a pass over HDF5", Spread.of([packing / one for one in passes])],
        ["a training pass / a gallery pass", Spread.of([a / b for a, b in gallery])],
    ]
    title = f"{args.videos} videos, width {args.width}, batches of {args.batch_size}, equal in content"
    show(title, ["time", "median (lowest-highest)"], rows)
    write_figures(args, found.figures())


if __name__ == "__main__":
    main()
