"""Word features without a download: hashed character n-grams, the same for every machine and any typed word."""

import hashlib
import re
from functools import lru_cache

import numpy as np
from jaxtyping import Float

WORD_DIM = 64


def embed_text(text: str) -> Float[np.ndarray, "w 64"]:
    """Features of the words of a text: what a model trained on the embedded corpus reads.

    A word is the sum of a vector of its own and of the mean vector of its 3- to 5-letter parts (its ends marked), each
    drawn by a hash, as in fastText (Bojanowski et al., 2017) but untrained; so "circles" lies near "circle". There is
    no meaning in it: what words have to do with pictures is learned.

    Args:
        text: any text; case and punctuation are ignored.

    Returns:
        (w 64) float32, one row of unit norm per word.

    Raises:
        ValueError: the text has no word.

    Example:
        >>> a, b, c = embed_text("circle circles hexagon")
        >>> float(a @ b) > 0.3 > float(a @ c)
        True
    """
    words = re.findall(r"\w+", text.lower())
    if not words:
        raise ValueError(f"embed_text: no word in {text!r}")
    return np.stack([_word(word) for word in words])


@lru_cache(maxsize=4096)
def _word(word: str) -> np.ndarray:
    marked = f"<{word}>"
    parts = [marked[i : i + n] for n in (3, 4, 5) for i in range(len(marked) - n + 1)]
    total = _hashed(word) + np.mean([_hashed(part) for part in parts], axis=0) * np.sqrt(len(parts))
    return (total / np.linalg.norm(total)).astype(np.float32)


def _hashed(key: str) -> np.ndarray:
    """A vector whose 64 entries are the bytes of a 64-byte digest, centred, of unit variance."""
    digest = hashlib.blake2b(key.encode(), digest_size=WORD_DIM).digest()
    return (np.frombuffer(digest, np.uint8).astype(np.float64) - 127.5) / 73.9
