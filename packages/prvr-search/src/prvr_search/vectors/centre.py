"""What sentences have in common, whatever they say: the mean of sentences about all sorts of things.

Subtracting a share of it from a sentence leaves more of what tells one video from another.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from prvr.data.atomic import user_cache
from prvr.encoders import Identity
from prvr.encoders.own import is_own
from prvr.errors import DataError, InputError
from prvr_search.store.proof import read_proven, write_cached
from prvr_search.vectors.rows import unit

SHARE = 0.4
"""How much of the mean is subtracted, see `benchmarks/studies/films.md`."""

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
SENTENCES = tuple(
    " ".join(words)
    for words in zip(*([*map(str.strip, part.split("|"))] for part in (_SUBJECTS, _ACTIONS, _PLACES)), strict=True)
)
"""32 sentences in which no subject, action or place stands twice."""


def mean_sentence(
    encode: Callable[[Sequence[str]], Float32[np.ndarray, "t d"]], frames: Identity, text: Identity, dim: int
) -> Float32[np.ndarray, " d"]:
    """The mean of the unit vectors of `SENTENCES`, encoded once and kept in the user's cache.

    Args:
        encode: the vectors of sentences.
        frames, text: the two sides of the encoder.
        dim: width of the vectors, d.

    Returns:
        Zeros if the encoder cannot read sentences of this length, or gives numbers that are not finite.
    """

    path = _file(frames, text)
    with suppress(OSError, DataError, ValueError):
        mean = np.frombuffer(read_proven(path)[0], "<f4").astype(np.float32)
        if mean.shape == (dim,) and np.isfinite(mean).all():
            return mean
    try:
        mean = unit(encode(SENTENCES)).mean(0).astype(np.float32)
    except InputError:  # it reads shorter texts than these
        mean = np.full(dim, np.nan, np.float32)
    if not np.isfinite(mean).all():
        return np.zeros(dim, np.float32)
    write_cached(path, [mean.astype("<f4").tobytes()])
    return mean


def _file(frames: Identity, text: Identity) -> Path:
    """The file of the mean: named by all that it depends on."""
    about = asdict(text)
    if not is_own(text.name):
        about.pop("name")  # it may lie in two places; weights of others' code are named by hand
    body = json.dumps([frames.weights, about, SENTENCES], sort_keys=True)
    return user_cache() / "sentences" / f"{hashlib.sha256(body.encode()).hexdigest()}.mean"
