"""Retrieval without training: the joint encoder of the embedded world alone."""

import json
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from prvr.data import Corpus, DataError, load_encoder
from prvr.data.synthetic.encoder import DIM

__all__ = ["zero_shot_scores"]


def zero_shot_scores(corpus: Corpus, split: str, texts: Sequence[str] | None = None) -> Float[Tensor, "q v"]:
    """The cosine of a sentence with the frame of each video that it fits best.

    `max_i cos(t_q, f_vi)`, over all frames of a video as they are stored, not sampled. The encoder has seen single
    frames and words for looks only: words for actions mean nothing to it, and it does not know what comes after what.

    Args:
        corpus: an embedded corpus, made with the encoder of this version.
        split: ``train``, ``val``, ``test``.
        texts: any sentences; default: the captions of the split.

    Returns:
        `(q, v)` in [-1, 1], sentences by videos in the order of the packed split: `prvr.evaluation.report_from_scores`
        takes it as it is.

    Raises:
        prvr.data.DataError: the corpus has no such split, or its features are not of this encoder.
        ValueError: a text without a word, or with too many.
    """
    encoder = load_encoder()
    _check_encoder(corpus, encoder.sha256)
    content = corpus.split(split)
    sentences = [caption.text for caption in content.captions] if texts is None else texts
    text = torch.stack([torch.from_numpy(encoder.encode_text(sentence)) for sentence in sentences])
    with corpus.open_features() as features:
        frames = (torch.from_numpy(features.read(video)[:, :DIM]) for video in content.video_ids)
        return torch.stack([(text @ some.T).amax(1) for some in frames], 1)


def _check_encoder(corpus: Corpus, expected: str) -> None:
    path = corpus.folder / "corpus.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["encoder"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: does not say which encoder its features are of ({error!r}). {_MEND}") from error
    if found != expected:
        raise DataError(f"{path}: features of the encoder {found}, expected {expected}. {_MEND}")


_MEND = "Zero-shot retrieval needs an embedded corpus of this version: make one with `prvr data make`."
