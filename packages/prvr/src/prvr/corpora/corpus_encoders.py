"""The encoders that the features of a corpus are of, and its captions as sentences of their joint space."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float32
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from prvr.data.corpus import Corpus
from prvr.data.layout import Caption
from prvr.data.synthetic.encoder import DIM, WORD_DIM, load_encoder
from prvr.data.synthetic.world import FPS
from prvr.errors import DataError
from prvr.reading import parse_record, short
from prvr.video import Identity
from prvr.video.encoders.toy import ToyEncoder, ToyText

SENTENCES = "sentences.safetensors"


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


def corpus_encoders(corpus: Corpus) -> CorpusEncoders | None:
    """The encoders that a corpus names; None where it names none, as the public ones.

    Raises:
        DataError: `corpus.json` cannot be read, or the corpus is toy and of another version.
    """
    path, about = corpus.folder / "corpus.json", corpus.about
    if "encoders" in about:
        return parse_record(CorpusEncoders, about["encoders"], f"{path}: encoders")
    if "encoder" not in about:
        return None
    own = load_encoder().sha256
    if about["encoder"] != own:
        raise DataError(
            f"{path}: features of the encoder {short(about['encoder'])}, expected {own}. "
            "Make a toy corpus of this version: prvr data make."
        )
    return CorpusEncoders(ToyEncoder().identity, ToyText().identity, FPS, 2 * DIM, WORD_DIM, DIM)


def write_sentences(
    folder: Path, captions: Mapping[str, Sequence[Caption]], sentences: Mapping[str, Float32[np.ndarray, " d"]]
) -> None:
    """Writes the sentence of every caption, by split, with a hash of the captions."""
    rows = {split: np.stack([sentences[caption.id] for caption in some]) for split, some in captions.items()}
    save_file(rows, folder / SENTENCES, {split: _hash(some) for split, some in captions.items()})


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
            rows, digest = file.get_tensor(split), (file.metadata() or {}).get(split)
    except (OSError, SafetensorError, TypeError) as error:  # TypeError: a type that numpy lacks
        raise DataError(f"{path}: cannot be read ({error}). Make the corpus again.") from error
    captions = corpus.split(split).captions
    if digest != _hash(captions) or rows.ndim != 2 or len(rows) != len(captions) or not np.isfinite(rows).all():
        raise DataError(f"{path}: the captions of {split} are no longer those it was made of. Make the corpus again.")
    return rows


def _hash(captions: Sequence[Caption]) -> str:
    text = "".join(f"{caption.id} {caption.text}\n" for caption in captions)
    return hashlib.sha256(text.encode()).hexdigest()
