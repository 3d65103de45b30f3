"""How confident a hit is: its score beside the best scores of sentences that answer nothing in any collection.

An index keeps a bank of unrelated sentences, such as "an astronaut polishes a harpsichord inside a volcano", and for
each of them its best score in every video. The confidence of a hit is one minus the share of the bank whose best score
over the index is as high as that of the hit: of the nonsense queries, 5 % find something with a confidence of 0.95 or
more.
"""

import hashlib
import json
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
from jaxtyping import Float, Float16, Float32

from prvr.data.atomic import user_cache
from prvr.encoders.own import is_own
from prvr.errors import DataError, InputError
from prvr_search.backends import read_signed, write_signed
from prvr_search.model import TAUGHT, SearchModel
from prvr_search.ranking import window_scores
from prvr_search.snapshot import RowBlock
from prvr_search.vectors import unit, unpack_rows

logger = logging.getLogger(__name__)
_WORDS = 32
"""Number of subjects, of actions and of places."""
_COSINES = 1 << 24  # held at a time
_AT_ONCE = 32  # sentences
_EVERY = 15.0  # seconds between two notes on how far it is

_SUBJECTS = """an astronaut|a pharaoh|a glassblower|a submarine captain|a fencer|a beekeeper|a samurai|a surgeon|
a falconer|a welder|a hypnotist|a lighthouse keeper|a cosmonaut|a matador|a puppeteer|a locksmith|a gladiator|
an alchemist|a ventriloquist|a stonemason|a druid|a kangaroo|a walrus|a flamingo|an armadillo|a mermaid|a gargoyle|
a pelican|a centaur|an android|a chimpanzee|a sphinx"""
_ACTIONS = """polishes a harpsichord|auctions a meteorite|tattoos a cello|shears an alpaca|translates hieroglyphs|
defuses a torpedo|varnishes a gondola|weighs plutonium|milks a yak|engraves a gravestone|restores a fresco|
dissects a squid|forges a passport|tunes an accordion|inspects a reactor|harvests saffron|brews absinthe|
embalms a crocodile|repairs a typewriter|calibrates a seismograph|smuggles truffles|excavates a mammoth|
crowns an emperor|shoes a camel|distils turpentine|upholsters a throne|solders a radio telescope|
trains a falcon|bottles a hurricane|counts ballots|refuels a zeppelin|signs a peace treaty"""
_PLACES = """inside a volcano|beneath the polar ice|in a catacomb|in a monastery|at a stock exchange|in a coal mine|
on an oil platform|in a cathedral crypt|at a royal funeral|in a wind tunnel|aboard a galleon|in a courtroom|
behind a glacier|in a mangrove swamp|on a space station|in a salt desert|at the opera|in a medieval dungeon|
beside a geyser|in a foundry|on a coral reef|at a coronation|in a planetarium|under a viaduct|
in a parliament|on a Mongolian steppe|in a morgue|at a rocket launch|in an observatory|
inside a pyramid|in a shipyard|on an iceberg"""


def unrelated_sentences(draw: int = 0) -> tuple[str, ...]:
    """1024 sentences that describe what no collection of videos is expected to show.

    A sentence is one of 32 subjects, one of 32 actions and one of 32 places. In every draw each pair of them stands
    exactly once (a Latin square), so that draws differ far less than random ones; the 32 draws share no sentence. An
    index keeps the first draw as its bank, and the others tell how well its confidences are calibrated.

    Args:
        draw: the number of the draw, from 0 to 31.

    Raises:
        ValueError: there is no such draw.

    Examples:
        >>> unrelated_sentences()[0]
        'an astronaut polishes a harpsichord inside a volcano'
        >>> len({sentence for draw in range(32) for sentence in unrelated_sentences(draw)})
        32768
    """
    if not 0 <= draw < _WORDS:
        raise InputError(f"draw={draw}: expected 0 to {_WORDS - 1}")
    subjects, actions, places = ([*map(str.strip, words.split("|"))] for words in (_SUBJECTS, _ACTIONS, _PLACES))
    return tuple(
        f"{subject} {action} {places[(i + j + draw) % _WORDS]}"
        for i, subject in enumerate(subjects)
        for j, action in enumerate(actions)
    )


def bank_vectors(model: SearchModel) -> Float32[np.ndarray, "s e"] | None:
    """The queries of the bank, as a model reads them; None if it cannot.

    They are encoded once and kept in the user's cache, for all indexes of a model that reads texts in the same way.

    Args:
        model: the model of an index.
    """
    shapes = [(_WORDS**2, width) for width in (model.dim, 2 * model.dim)]

    def read(file: BinaryIO) -> np.ndarray:
        rows = np.load(file, allow_pickle=False)
        if rows.dtype != np.float32 or rows.shape not in shapes or not np.isfinite(rows).all():
            raise ValueError(f"{rows.dtype} of shape {rows.shape}, expected finite float32 of shape {shapes[0]}")
        return rows

    path = _bank_file(model)
    stored = read_signed(path, read)
    rows = _encoded_bank(model) if stored is None else stored
    if stored is None and rows is not None:
        with suppress(DataError):  # the disk is full
            write_signed(path, partial(np.save, arr=rows, allow_pickle=False))
    return rows


def _bank_file(model: SearchModel) -> Path:
    """The file of the bank's vectors: named by all that they depend on."""
    text = asdict(model.identity.text)
    if not is_own(text["name"]):
        text.pop("name")  # it may lie in two places; weights of others' code are named by hand
    is_taught = model.identity.kind == TAUGHT  # only its frames differ from those of zero-shot
    weights = model.identity.frames.weights if is_taught else model.identity.weights
    body = json.dumps([1, weights, text, unrelated_sentences()], sort_keys=True)
    return user_cache() / "sentences" / f"{hashlib.sha256(body.encode()).hexdigest()}.npy"


def _encoded_bank(model: SearchModel) -> Float32[np.ndarray, "s e"] | None:
    sentences = unrelated_sentences()
    parts = []
    next_note = time.monotonic() + 2
    for first in range(0, len(sentences), _AT_ONCE):
        if time.monotonic() > next_note:
            logger.info("confidences: %d of %d sentences encoded, once for this text encoder", first, len(sentences))
            next_note = time.monotonic() + _EVERY
        try:
            parts.append(model.encode_texts(sentences[first : first + _AT_ONCE]))
        except InputError:  # it reads shorter texts than these
            return None
    rows = np.concatenate(parts)
    return unit(rows).astype(np.float32) if np.isfinite(rows).all() else None


def bank_scores(
    model: SearchModel,
    bank: Float32[np.ndarray, "s e"],
    clips: Sequence[Float16[np.ndarray, "c d"]],
    frames: Sequence[Float16[np.ndarray, "_ d"]],
) -> Float32[np.ndarray, "w s"]:
    """The scores of the first stage of every sentence of the bank with some windows, from the rows that are stored.

    Args:
        model: the model of the index.
        bank: `(s, e)` queries.
        clips, frames: the packed rows of each window, for at least one window.
    """
    offsets = np.concatenate([[0], np.cumsum([len(rows) for rows in frames])])
    coarse = unpack_rows(np.stack(clips).reshape(-1, model.dim)).reshape(len(clips), -1, model.dim)
    block = RowBlock(np.arange(len(clips)), coarse, unpack_rows(np.concatenate(frames)), offsets)
    step = max(1, _COSINES // max(1, len(block.frames)))
    parts = [window_scores(model, bank[first : first + step], block) for first in range(0, len(bank), step)]
    return np.ascontiguousarray(np.concatenate(parts).T)


def confidence(score: float, best: Float[np.ndarray, " s"] | None) -> float | None:
    """One minus the share of the bank whose best score is as high as a score.

    Args:
        score: a score of the first stage.
        best: `(s)` the best score of each sentence of the bank over the index; None if the index has no bank.

    Returns:
        From 0 to 1; None if there is no bank.

    Examples:
        >>> confidence(0.5, np.array([0.1, 0.2, 0.3, 0.6]))
        0.75
    """
    return None if best is None else 1 - float(np.mean(best >= score))


def score_to_pass(best: Float[np.ndarray, " s"] | None, sure: float) -> float | None:
    """The score that a hit has to surpass for a confidence.

    Args:
        best: `(s)` as in `confidence`.
        sure: the confidence, from 0 to below 1.

    Returns:
        None if there is no bank.

    Examples:
        >>> score_to_pass(np.array([0.1, 0.2, 0.3, 0.6]), 0.75)
        0.3
    """
    if best is None:
        return None
    place = len(best) - 1 - int((1 - sure) * len(best) + 1e-9)
    return float(np.partition(best, place)[place])
