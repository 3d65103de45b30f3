"""Corpora whose encoders are known: which they are, captions as sentences of their joint space, and writing both."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TypeVar

import numpy as np
from jaxtyping import Float32
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from prvr.config import Registry
from prvr.data.corpus import Corpus
from prvr.data.features import FeatureReader
from prvr.data.layout import Caption, TextData, write_layout
from prvr.encoders import Identity, TextFeaturizer, VideoFeatures
from prvr.errors import DataError
from prvr.reading import parse_record, short

SENTENCES = "sentences.safetensors"
Progress = Callable[[int, int], None]
_T = TypeVar("_T")


@dataclass(frozen=True)
class CorpusEncoders:
    """The encoders of the features of a corpus; `corpus.json` holds them under `encoders`.

    Args:
        frames: encoder of frames.
        text: encoder of captions; a model reads queries of this one only.
        rate: frames per second.
        dim, word_dim: widths of frames and words.
        joint_dim: how many of the first columns of frames can be compared with sentences; 0 if none can.
    """

    frames: Identity
    text: Identity
    rate: float
    dim: int
    word_dim: int
    joint_dim: int

    @classmethod
    def of(cls, store: VideoFeatures, text: TextFeaturizer, joint: TextFeaturizer | None) -> "CorpusEncoders":
        """Those of the features of a store, with captions of `text` and sentences of `joint`, if there are any."""
        joint_dim = 0 if joint is None else store.joint_dim
        return cls(store.encoder, text.identity, store.rate, store.dim, text.word_dim, joint_dim)


@dataclass(frozen=True)
class DrawnCollection:
    """A collection that a program draws: no data have to be on disk.

    Args:
        generator: what its corpora name as `generator` in `corpus.json`.
        open: opens the corpus in a cache folder, and draws it first if it is not there; the second argument is called
            with (videos drawn, videos in all).
        encoders: gives the encoders of the features; draws nothing.
        frames: takes a corpus, a split and a number; gives a function from a video, a start and an end in seconds to
            at most so many frames of that moment, in order.
    """

    generator: str
    open: Callable[[Path, Progress | None], Corpus]
    encoders: Callable[[], CorpusEncoders]
    frames: Callable[[Corpus, str, int], Callable[[str, float, float], np.ndarray]]


DRAWN_COLLECTIONS: Registry[DrawnCollection] = Registry("collection")
"""The collections that are drawn, by name."""


def joint_side(features: FeatureReader, text: TextFeaturizer) -> TextFeaturizer | None:
    """`text`, if its sentences can be compared with the frames."""
    if not isinstance(features, VideoFeatures) or not features.joint_dim or not text.joint_dim:
        return None
    return text if text.identity.weights == features.encoder.weights else None


def corpus_encoders(corpus: Corpus) -> CorpusEncoders | None:
    """The encoders that a corpus names; None where it names none, as the public ones.

    Raises:
        DataError: `corpus.json` cannot be read, or it is a drawn corpus of another version.
    """
    path, about = corpus.folder / "corpus.json", corpus.about
    if "encoders" in about:
        return parse_record(CorpusEncoders, about["encoders"], f"{path}: encoders")
    if "encoder" not in about:
        return None
    # a drawn corpus names the weights alone
    encoders_of = {
        encoders.frames.weights: encoders for encoders in (entry.part.encoders() for entry in DRAWN_COLLECTIONS)
    }
    weights = about["encoder"]
    if not isinstance(weights, str) or weights not in encoders_of:
        expected = " or ".join(encoders_of) or "none, as nothing here draws a corpus"
        raise DataError(
            f"{path}: features of the encoder {short(weights)}, expected {expected}. "
            "Make a toy corpus of this version: prvr data make."
        )
    return encoders_of[weights]


def write_encoded(
    folder: Path,
    texts: TextData,
    videos: Iterable[tuple[str, np.ndarray]],
    queries: Iterable[tuple[str, np.ndarray, np.ndarray | None]],
    about: Mapping[str, object],
    files: Mapping[str, str],
    progress: Progress | None,
) -> None:
    """Writes a corpus with the sentences of its captions, whole or not at all.

    Args:
        folder, texts, videos, about: as for `prvr.data.write_layout`.
        queries: the id of each caption, its features, and its sentence where there is a joint space.
        files: further text files, by name.
        progress: called with (captions and videos done, in all).

    Raises:
        DataError: the folder's name has other characters than letters, digits, `-`, `_` and `.`; or as `write_layout`.
    """
    if not all(c.isalnum() or c in "-_." for c in folder.name) or folder.name.startswith("."):
        raise DataError(f"name {folder.name!r}: expected letters, digits, '-', '_' and '.', for example 'videos'.")
    captions = [caption for lines in texts.captions.values() for caption in lines]
    done = count(1)
    total = len(captions) + len({caption.video_id for caption in captions})
    sentences: dict[str, np.ndarray] = {}

    def reported(items: Iterable[_T]) -> Iterator[_T]:
        for item in items:
            yield item
            if progress is not None:
                progress(next(done), total)

    def words() -> Iterator[tuple[str, np.ndarray]]:
        for caption_id, rows, sentence in reported(queries):
            if sentence is not None:
                sentences[caption_id] = sentence
            yield caption_id, rows

    def extras(new: Path) -> None:
        for name, text in files.items():
            (new / name).write_text(text, encoding="utf-8", newline="\n")
        if sentences:
            write_sentences(new, texts.captions, sentences)

    rows = ((video, np.asarray(matrix, np.float32)) for video, matrix in videos)
    write_layout(folder, texts, videos=reported(rows), queries=words(), about=about, extras=extras)


def write_sentences(
    folder: Path, captions: Mapping[str, Sequence[Caption]], sentences: Mapping[str, Float32[np.ndarray, " d"]]
) -> None:
    """Writes the sentence of every caption, by split, with a hash of the captions."""
    rows = {split: np.stack([sentences[caption.id] for caption in records]) for split, records in captions.items()}
    save_file(rows, folder / SENTENCES, {split: _hash(records) for split, records in captions.items()})


def read_sentences(corpus: Corpus, split: str) -> Float32[np.ndarray, "q d"] | None:
    """The unit vectors of the captions of a split, in file order; None where the corpus holds none.

    Raises:
        DataError: the file is damaged, or the captions have changed since.
    """
    path = corpus.folder / SENTENCES
    if not path.is_file():
        return None
    try:
        with safe_open(path, "np") as file:
            rows = file.get_tensor(split)
            digest = (file.metadata() or {}).get(split)
    except (OSError, SafetensorError, TypeError) as error:  # TypeError: a type that numpy lacks
        raise DataError(f"{path}: cannot be read ({error}). Make the corpus again.") from error
    captions = corpus.split(split).captions
    if digest != _hash(captions) or rows.ndim != 2 or len(rows) != len(captions) or not np.isfinite(rows).all():
        raise DataError(f"{path}: the captions of {split} are no longer those it was made of. Make the corpus again.")
    return rows


def _hash(captions: Sequence[Caption]) -> str:
    text = "".join(f"{caption.id} {caption.text}\n" for caption in captions)
    return hashlib.sha256(text.encode()).hexdigest()
