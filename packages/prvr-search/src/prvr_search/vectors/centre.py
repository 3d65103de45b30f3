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
from prvr_search.vectors.model import unit

SHARE = 0.4
"""How much of the mean is subtracted, see `benchmarks/studies/films.md`."""

SENTENCES = tuple(
    """an astronaut polishes a harpsichord inside a volcano
a pharaoh auctions a meteorite beneath the polar ice
a glassblower tattoos a cello in a catacomb
a submarine captain shears an alpaca in a monastery
a fencer translates hieroglyphs at a stock exchange
a beekeeper defuses a torpedo in a coal mine
a samurai varnishes a gondola on an oil platform
a surgeon weighs plutonium in a cathedral crypt
a falconer milks a yak at a royal funeral
a welder engraves a gravestone in a wind tunnel
a hypnotist restores a fresco aboard a galleon
a lighthouse keeper dissects a squid in a courtroom
a cosmonaut forges a passport behind a glacier
a matador tunes an accordion in a mangrove swamp
a puppeteer inspects a reactor on a space station
a locksmith harvests saffron in a salt desert
a gladiator brews absinthe at the opera
an alchemist embalms a crocodile in a medieval dungeon
a ventriloquist repairs a typewriter beside a geyser
a stonemason calibrates a seismograph in a foundry
a druid smuggles truffles on a coral reef
a kangaroo excavates a mammoth at a coronation
a walrus crowns an emperor in a planetarium
a flamingo shoes a camel under a viaduct
an armadillo distils turpentine in a parliament
a mermaid upholsters a throne on a Mongolian steppe
a gargoyle solders a radio telescope in a morgue
a pelican trains a falcon at a rocket launch
a centaur bottles a hurricane in an observatory
an android counts ballots inside a pyramid
a chimpanzee refuels a zeppelin in a shipyard
a sphinx signs a peace treaty on an iceberg""".splitlines()
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
