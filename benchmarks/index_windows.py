"""A moment of 5 s in a film of 2 h: is the film found, and is the moment, with and without windows?

    python benchmarks/index_windows.py RUN [--films 20] [--seed 0] [--cache-dir DIR]

RUN was trained on an embedded corpus, which is in the cache or is made there. A film is made of the features of
training videos, drawn one after the other; into one place, drawn too, 5 s of a test video are put, out of the moment
that a caption describes. Each caption is a query among all films. R@1: its film is first. Moment: the best moment of
its film overlaps the 5 s. Zero-shot (the encoder alone) and chance stand beside the model. Other parts of a film
may answer a caption as well: nobody has looked.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

from prvr.config import load_config
from prvr.data import open_features
from prvr.data.synthetic.world import FPS
from prvr.search import VideoIndex, open_model
from prvr.training.splits import embedded_corpus
from prvr.video import StoreHeader, VideoEntry, VideoStore, open_encoder
from prvr.video.store import write_entry, write_header

SECONDS, HOURS = 5, 2
ROWS, LENGTH = round(SECONDS * FPS), round(HOURS * 3600 * FPS)


def films(
    corpus, count: int, rng: np.random.Generator, folder: Path
) -> tuple[VideoStore, dict[str, tuple[str, float]]]:
    """A store of films; for each its caption and where its 5 s begin."""
    encoder = open_encoder("embedded")
    header = StoreHeader(encoder.identity, FPS, encoder.dim, encoder.joint_dim)
    test = corpus.split("test")
    known = [(c, test.moments[c.id]) for c in test.captions if c.id in test.moments]
    known = [(c, m) for c, m in known if m.end - m.start >= SECONDS]
    chosen = rng.choice(len(known), count, replace=False)
    (folder / "videos").mkdir(parents=True)
    write_header(folder, header)
    planted = {}
    with open_features(corpus.feature_folder) as features:
        train = corpus.split("train").video_ids
        for number, which in enumerate(chosen):
            caption, moment = known[which]
            parts, rows = [], 0
            while rows < LENGTH:
                parts.append(features.read(train[rng.integers(len(train))]))
                rows += len(parts[-1])
            film = np.concatenate(parts)[:LENGTH].astype(np.float32)
            middle = round((moment.start + moment.end) / 2 * FPS)
            source = features.read(caption.video_id)
            first = min(max(0, middle - ROWS // 2), len(source) - ROWS)
            at = int(rng.integers(LENGTH - ROWS))
            film[at : at + ROWS] = source[first : first + ROWS]
            name = f"film{number:03}"
            entry = VideoEntry(name, f"/{name}", 1, 0, f"{number:064}", LENGTH / FPS, LENGTH, 64, 64, "none")
            write_entry(folder, header, entry, film)
            planted[name] = (caption.text, at / FPS)
    return VideoStore(folder), planted


def main() -> None:
    parser = argparse.ArgumentParser(description="a moment of 5 s in a film of 2 h, with and without windows")
    parser.add_argument("run", type=Path)
    parser.add_argument("--films", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache-dir", help="where the embedded corpus is, or is made; default: the user's cache")
    args = parser.parse_args()
    config = load_config(str(args.run / "config.yaml"), {"data.cache_dir": args.cache_dir})
    rng = np.random.default_rng(args.seed)
    with tempfile.TemporaryDirectory() as name:
        store, planted = films(embedded_corpus(config), args.films, rng, Path(name) / "store")
        print(
            f"{args.films} films of {HOURS} h, {SECONDS} s planted in each; seed {args.seed}; "
            f"chance R@1 {1 / args.films:.2f}"
        )
        for what in (str(args.run), "zero-shot"):
            model = open_model(what, store.header)
            for cut, options in {"120 s windows": {}, "whole films": {"window": None, "stride": None}}.items():
                with VideoIndex.create(
                    Path(name) / f"{model.identity.kind}-{cut}", model, store.header, **options
                ) as index:
                    index.add(store)
                    results = index.search_many([text for text, _ in planted.values()], args.films)
                first = np.mean([r.hits[0].video_id == film for r, film in zip(results, planted, strict=True)])
                own = [next(h for h in r.hits if h.video_id == film) for r, film in zip(results, planted, strict=True)]
                moment = np.mean(
                    [h.start < at + SECONDS and at < h.end for h, (_, at) in zip(own, planted.values(), strict=True)]
                )
                length = np.mean([h.end - h.start for h in own])
                line = f"R@1 {first:.2f}  moment {moment:.2f} (mean length {length:.0f} s)"
                print(f"{model.identity.kind:10} {cut:14} {line}", flush=True)


if __name__ == "__main__":
    main()
