"""Confidence of hits on the toy world: false alarms of nonsense queries, and how often the first hit is right.

    python benchmarks/confidence.py              # the test videos of the demo corpus, without training: under a minute
    python benchmarks/confidence.py --model RUN  # by a model that was trained on this corpus
    python benchmarks/confidence.py --quick      # the tiny corpus: that it runs, not how well

Nonsense queries are the sentences of the grammar of the bank that the bank does not have, and sentences of other words.
A false alarm at a nominal rate of 5 % is a nonsense query whose first hit has a confidence of 0.95 or more. Of the
captions of the test videos it is counted how often the first hit is a video that the caption describes.
"""

import tempfile
from itertools import product
from pathlib import Path

import numpy as np

from _harness import option, parse_options, show, write_figures
from prvr.data import write_corpus
from prvr.search import VideoIndex, open_model
from prvr.search.confidence import confidence, unrelated_sentences
from prvr.search.ranking import video_scores
from prvr.video import StoreHeader, VideoEntry, VideoStore, open_encoder
from prvr.video.store import write_entry, write_header

RATES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
EDGES = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99, 1.0)
"""Of the bins of confidence; the last bin is that of a confidence of 1."""
WHO = ("my tax adviser", "a ferret", "the choir", "two plumbers", "an opera critic", "a hedgehog", "the jury", "nobody")
WHAT = ("eats dumplings", "cancels the subscription", "knits", "reads Proust", "argues about cheese", "snores", "votes",
        "parks a lorry")  # fmt: skip
WHERE = ("in Lisbon", "on Thursday", "near the dentist", "during the eclipse", "at a petrol station", "by candlelight",
         "without shoes", "in the attic")  # fmt: skip


def indexed(folder: Path, size: str, model: str = "zero-shot") -> tuple[VideoIndex, list[tuple[str, frozenset[str]]]]:
    """An index of the test videos of a corpus, and its test captions with the videos that each describes."""
    corpus = write_corpus(folder, size)
    split, encoder = corpus.split("test"), open_encoder("toy")
    header = StoreHeader(encoder.identity, 2.0, encoder.dim, encoder.joint_dim)
    (folder / "store" / "videos").mkdir(parents=True)
    write_header(folder / "store", header)
    with corpus.open_features() as features:
        for number, video in enumerate(split.video_ids):
            rows = features.read(video)
            seconds = len(rows) / header.rate
            entry = VideoEntry(video, video, 0, 0, f"{number:064}", seconds, len(rows), 64, 64, "features")
            write_entry(folder / "store", header, entry, rows)
    index = VideoIndex.create(folder / "index", open_model(model, header), header)
    index.add(VideoStore(folder / "store"))
    return index, [(caption.text, frozenset(split.relevant(caption))) for caption in split.captions]


def first_hits(index: VideoIndex, texts: list[str]) -> tuple[np.ndarray, list[str]]:
    """The confidence of the first hit of each text, and its video."""
    text = np.stack([index.model.encode_text(one) for one in texts])
    scores = video_scores(index.source, text, None)
    sure = [confidence(score, index.source.bank_best) for score in scores.max(1).tolist()]
    return np.array(sure), [index.video_ids[number] for number in scores.argmax(1)]


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


def main() -> None:
    args = parse_options(
        __doc__,
        quick=option(False, "the tiny corpus"),
        model=option("zero-shot", "zero-shot, or a run of prvr train on the demo corpus"),
        draws=option(8, "draws of 1024 nonsense sentences each"),
    )
    draws = range(1, 1 + args.draws)
    nonsense = {
        "the grammar of the bank": [sentence for draw in draws for sentence in unrelated_sentences(draw)],
        "other words": [" ".join(words) for words in product(WHO, WHAT, WHERE)],
    }
    with tempfile.TemporaryDirectory() as name:
        index, captions = indexed(Path(name), "tiny" if args.quick else "demo", args.model)
        with index:
            alarms = {}
            for kind, texts in nonsense.items():
                sure, _ = first_hits(index, texts)
                alarms[kind] = {rate: float(np.mean(sure >= 1 - rate)) for rate in RATES}
            sure, videos = first_hits(index, [text for text, _ in captions])
        right = np.array([video in relevant for video, (_, relevant) in zip(videos, captions, strict=True)])
        count = len(index.video_ids)
    show(
        f"first hits with a confidence of 1 - rate or more (%), {count} videos",
        ["rate (%)", *(f"{100 * rate:g}" for rate in RATES)],
        [
            *([f"{len(nonsense[kind]):,} of {kind}", *map(percent, found.values())] for kind, found in alarms.items()),
            [f"{len(captions):,} captions", *(percent(float(np.mean(sure >= 1 - rate))) for rate in RATES)],
        ],
    )
    bins = []
    for low, high in zip(EDGES, [*EDGES[1:], np.inf], strict=True):
        inside = (sure >= low) & (sure < high)
        what = f"{low:g} to below {high:g}" if high < np.inf else "1"
        rate = percent(float(right[inside].mean())) if inside.any() else ""
        bins.append([what, percent(float(inside.mean())), rate])
    bins.append(["all", "100.0", percent(float(right.mean()))])
    show("captions by the confidence of their first hit", ["confidence", "captions (%)", "first is right (%)"], bins)
    write_figures(args, {"videos": count, "alarms": alarms, "bins": bins})


if __name__ == "__main__":
    main()
