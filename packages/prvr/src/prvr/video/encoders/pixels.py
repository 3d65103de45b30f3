"""What a CLIP reads, not what it gives: pictures and token numbers, for a retriever that trains the CLIP along.

Named `pixels:CLIP`. Two CLIPs that prepare pictures alike, or have one tokenizer, give the same.
"""

import hashlib

import numpy as np
from jaxtyping import Float32, UInt8

from prvr.errors import DataError, InputError
from prvr.video.encoders import ENCODERS, EncoderFamily, Identity
from prvr.video.encoders.joint_models import JointFrames
from prvr.video.hub import (
    explained,
    hash_tokenizer,
    import_transformers,
    load_tokenizer,
    read_config,
    token_ids,
)

_PREFIX = "pixels:"


def _clip_of(name: str) -> str:
    """The CLIP that `pixels:CLIP` names.

    Raises:
        DataError: there is none, or it is no CLIP.
    """
    model = name.removeprefix(_PREFIX)
    kind = read_config(model)["model_type"]
    if kind != "clip":
        raise DataError(f"{name}: a model of type {kind!r}, expected a CLIP.")
    return model


def _identity(name: str, how: str) -> Identity:
    return Identity(name, hashlib.sha256(how.encode()).hexdigest(), how)


class PixelEncoder:
    """Frames as a CLIP takes them: prepared, normalised and flattened, colours first, `3 s s` columns.

    The CLIP is loaded once to check that it works.

    Args:
        name: `pixels:CLIP`.
    """

    joint_dim = 0

    def __init__(self, name: str) -> None:
        self._pictures = JointFrames(_clip_of(name)).pictures
        self.identity = _identity(name, self._pictures.description)
        self.dim = len(self.prepare(np.zeros((64, 64, 3), np.uint8)))

    def prepare(self, pixels: UInt8[np.ndarray, "h w 3"]) -> Float32[np.ndarray, " e"]:
        """Resized, cropped and normalised as the CLIP was trained."""
        return self._pictures.prepare(pixels)

    def encode(self, frames: Float32[np.ndarray, "n e"]) -> Float32[np.ndarray, "n e"]:
        """As they are."""
        return frames

    def finish(self, rows: Float32[np.ndarray, "n e"]) -> Float32[np.ndarray, "n f"]:
        """As they are."""
        return rows


class TokenNumbers:
    """Texts as a CLIP takes them: rows of one column, the numbers of the tokens, with those that begin and end a text.

    Args:
        name: `pixels:CLIP`.
    """

    word_dim, joint_dim = 1, 0

    def __init__(self, name: str) -> None:
        model = _clip_of(name)
        self._tokenizer = load_tokenizer(model)
        with explained(model):
            config = import_transformers().CLIPConfig.from_dict(read_config(model))
            self._most = int(config.text_config.max_position_embeddings)
        self.identity = _identity(name, f"tokens {hash_tokenizer(self._tokenizer)[:16]}, at most {self._most}")

    def words(self, text: str) -> Float32[np.ndarray, "w 1"]:
        """The token numbers, which float32 holds exactly."""
        return np.array(token_ids(self._tokenizer, text, self._most), np.float32)[:, None]

    def sentence(self, text: str) -> Float32[np.ndarray, " d"]:
        """Raises: numbers of tokens cannot be compared with pictures.

        Raises:
            ValueError: always.
        """
        raise InputError(
            f"{self.identity.name}: pictures and token numbers have no space in common. Zero-shot search needs "
            f"features: extract with {self.identity.name.removeprefix(_PREFIX)}."
        )


ENCODERS.register(
    "pixels",
    EncoderFamily(
        text=lambda name, device: TokenNumbers(name), frames=lambda name, device: PixelEncoder(name), prefixed=True
    ),
    "the pictures and token numbers that a CLIP reads",
)
