"""A small encoder of images and texts into one joint space, for the toy world; its weights are in the package.

It was trained on single frames of this world and sentences about how things look (`scripts/train_encoder.py`), on no
action, no sequence of frames and no video of a corpus. On natural footage its embeddings are meaningless.
"""

import copy
import hashlib
import re
from collections.abc import Sequence
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from safetensors.torch import load
from torch import Tensor, nn

from prvr.encoders import ENCODERS, EncoderFamily, Identity
from prvr.errors import DataError, InputError
from prvr.reading import read_bytes, read_object, short
from prvr.toy.world import FRAME

TOY = "toy"
DIM, WORD_DIM = 256, 48
"""Width of the joint space, and of what a retriever reads of a word."""
MAX_WORDS = 64
BUCKETS = 1024
OWN = 2  # vectors that a word has for itself
WEIGHTS, ABOUT = "encoder.safetensors", "encoder.json"
MOTION = 2.5  # changes are smaller than the embeddings themselves
_BATCH = 64


class JointEncoder(nn.Module):
    """Embeds frames and texts in one 256-dimensional space.

    Five convolutions map a frame to 4 x 4 cells, which are projected together, so that positions are preserved. A word
    is the sum of hashed vectors of its own and the mean of those of its 3- to 5-letter parts, as in fastText
    (Bojanowski et al., 2017): any word has a vector, and words with similar spelling have similar vectors. A text is
    the sum of its words.

    Attributes:
        sha256: of the weights that were loaded; empty if there are none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sha256 = ""
        sizes = ((3, 24, 5, 2), (24, 48, 3, 2), (48, 96, 3, 2), (96, 128, 3, 1), (128, 96, 3, 2))
        layers = [(nn.Conv2d(*size, size[2] // 2), nn.ReLU()) for size in sizes]
        self.trunk = nn.Sequential(*chain(*layers), nn.Conv2d(96, 32, 1))
        self.place = nn.Linear(32 * 4 * 4, DIM)
        self.tokens = nn.Parameter(torch.randn(BUCKETS, WORD_DIM))
        self.meaning = nn.Linear(WORD_DIM, DIM, bias=False)

    def forward(self, frames: UInt8[Tensor, "n 64 64 3"]) -> Float[Tensor, "n 256"]:
        """Embeddings of frames, not normalised."""
        return self.place(self.trunk(self.scaled(frames)).flatten(1))

    def scaled(self, frames: UInt8[Tensor, "n 64 64 3"]) -> Float[Tensor, "n 3 64 64"]:
        """Pixels as the convolutions take them, from -1 to 1."""
        return frames.permute(0, 3, 1, 2).to(self.place.weight.dtype) / 127.5 - 1.0

    def embed_words(self, words: list[str]) -> Float[Tensor, "w 256"]:
        """Embeddings of words, not normalised: the longer the embedding, the more the word counts in its text."""
        own, parts, _ = self._look_up(words)
        return self.meaning(own + parts)

    def _look_up(self, words: list[str]) -> tuple[Tensor, Tensor, Tensor]:
        """The sum of a word's own vectors, the mean of those of its parts, and the number of parts."""
        own, parts = zip(*map(_buckets, words), strict=True)
        counts = torch.tensor([*map(len, parts)])
        starts = counts.cumsum(0) - counts
        mean = F.embedding_bag(torch.tensor([*chain(*parts)]), self.tokens, starts, mode="mean")
        return self.tokens[torch.tensor(own)].sum(1), mean, counts[:, None]

    @cached_property
    def _whitening(self) -> tuple[Tensor, Tensor]:
        """The mean of the trained vectors, and the inverse square root of their covariance."""
        table = self.tokens.detach().double()
        values, vectors = torch.linalg.eigh(torch.cov(table.mT))
        return table.mean(0), (vectors / values.sqrt()) @ vectors.mT

    def encode_frames(self, frames: UInt8[np.ndarray, "n 64 64 3"]) -> Float[np.ndarray, "n 256"]:
        """Unit vectors of frames, (n 256) float32.

        Args:
            frames: (n 64 64 3) uint8, red green blue.

        Raises:
            ValueError: another shape or type.
        """
        if frames.dtype != np.uint8 or frames.shape[1:] != (FRAME, FRAME, 3):
            raise InputError(
                f"encode_frames: expected (n, {FRAME}, {FRAME}, 3) uint8, got {frames.shape} {frames.dtype}. "
                "Scale frames first, and give red, green, blue from 0 to 255."
            )
        parts = torch.from_numpy(np.ascontiguousarray(frames)).split(_BATCH)
        with torch.inference_mode():
            vectors = [F.normalize(self(part.to(self.tokens.device)), dim=-1) for part in parts]
        return torch.cat(vectors).cpu().numpy()

    def encode_words(self, text: str) -> Float[np.ndarray, "w 48"]:
        """Unit vectors of the words of a text, (w 48) float32: what a retriever reads.

        They come from the hashed vectors, whitened by their covariance, and not from the joint space, where appearance
        dominates and masks action words. The n parts of a word count as n independent vectors would, `sqrt(n)` times
        their mean.

        Args:
            text: any text of 1-64 words; case and punctuation are ignored.

        Raises:
            ValueError: no word, or too many.
        """
        centre, whiten = self._whitening
        with torch.inference_mode():
            own, parts, counts = (part.double() for part in self._look_up(split_words(text)))
            sums = own - OWN * centre + counts.sqrt() * (parts - centre)
            return F.normalize(sums @ whiten, dim=-1).float().numpy()

    def encode_text(self, text: str) -> Float[np.ndarray, "256"]:
        """The unit vector of a text, (256,) float32; its cosine with a frame says how well they fit.

        Raises:
            ValueError: as [encode_words][prvr.toy.encoder.JointEncoder.encode_words].
        """
        return self.encode_texts([text])[0]

    def encode_texts(self, texts: Sequence[str]) -> Float[np.ndarray, "t 256"]:
        """The unit vectors of at least one text; each word is embedded once.

        Raises:
            ValueError: as [encode_words][prvr.toy.encoder.JointEncoder.encode_words].
        """
        lines = [split_words(text) for text in texts]
        words, places = np.unique(np.concatenate(lines), return_inverse=True)
        counts = torch.tensor([*map(len, lines)])
        with torch.inference_mode():
            vectors, starts = self.embed_words(words.tolist()), counts.cumsum(0) - counts
            return F.normalize(F.embedding_bag(torch.from_numpy(places), vectors, starts, mode="sum"), dim=-1).numpy()


def split_words(text: str) -> list[str]:
    """The words of a text in lower case.

    Raises:
        ValueError: no word, or more than 64.
    """
    words = re.findall(r"\w+", text.lower())
    if not words:
        raise InputError(f"no word in {text[:40]!r}. Describe what you are looking for, such as 'a red circle rises'.")
    if len(words) > MAX_WORDS:
        raise InputError(
            f"{len(words)} words in {text[:40]!r}..., at most {MAX_WORDS} are allowed. Describe one moment briefly."
        )
    return words


@cache
def load_encoder(folder: Path = Path(__file__).parent) -> JointEncoder:
    """The encoder that ships with the package, ready to use; it is read once.

    Args:
        folder: where `encoder.safetensors` and `encoder.json` are.

    Raises:
        FileNotFoundError: a file is missing.
        DataError: the weights are not those whose hash `encoder.json` names.
    """
    expected = read_object(folder / ABOUT, _MEND).get("sha256")
    data = read_bytes(folder / WEIGHTS)
    sha256 = hashlib.sha256(data).hexdigest()
    if sha256 != expected:
        raise DataError(f"{folder / WEIGHTS}: its sha256 is {sha256}, expected {short(expected)}. {_MEND}")
    encoder = JointEncoder()
    encoder.load_state_dict(load(data))
    encoder.sha256 = sha256
    return encoder.eval().requires_grad_(False)


_MEND = "Install prvr again, or make both files with scripts/train_encoder.py."


@cache
def _buckets(word: str) -> tuple[list[int], list[int]]:
    """Rows of the table: `OWN` for the word itself, so that few words share both, and one per part."""
    marked = f"<{word}>"
    parts = [marked[i : i + n] for n in (3, 4, 5) for i in range(len(marked) - n + 1)] or [marked]
    return _hashed(word, OWN), [bucket for part in parts for bucket in _hashed(part, 1)]


def _hashed(text: str, count: int) -> list[int]:
    digest = hashlib.blake2b(text.encode(), digest_size=4 * count).digest()
    return (np.frombuffer(digest, ">u4") % BUCKETS).tolist()


def with_motion(rows: Float[np.ndarray, "n 256"]) -> Float[np.ndarray, "n 512"]:
    """Joint embeddings of the frames of a video, each with how it changes around it: what a retriever reads.

    The second half is the difference between the frames after and before, times 2.5, at most of length 1 (a cut), 0 at
    both ends. Public features hold motion too (I3D beside ResNet): attention alone hardly learns before from after.
    """
    motion = np.zeros_like(rows)
    motion[1:-1] = MOTION * (rows[2:] - rows[:-2])
    motion /= np.maximum(np.linalg.norm(motion, axis=1, keepdims=True), 1.0)
    return np.concatenate([rows, motion], 1)


class ToyEncoder:
    """Frames of any size as the toy corpora have them: 256 columns of the joint space, then 256 of how they change.

    A frame that is not square is squeezed; pixels are averaged over the area that becomes one.

    Args:
        name: it has but this one.
        device: a torch device.
    """

    dim, joint_dim = 2 * DIM, DIM

    def __init__(self, name: str = TOY, device: Any = "cpu") -> None:
        model = copy.deepcopy(load_encoder()).to(device)  # the one that is loaded is shared
        self.identity = Identity(
            TOY, model.sha256, f"{FRAME} x {FRAME} by area; joint {DIM}, change times {MOTION:g} {DIM}"
        )
        self.encode, self.finish = model.encode_frames, with_motion

    def prepare(self, pixels: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "64 64 3"]:
        """The mean of each of 64 x 64 areas, halves rounded up."""
        planes = torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1).float()
        return (F.adaptive_avg_pool2d(planes, FRAME) + 0.5).byte().permute(1, 2, 0).numpy()


class ToyText:
    """Words and sentences of the toy world.

    Args:
        name, device: as every encoder takes them; this one is the same with all.
    """

    word_dim, joint_dim = WORD_DIM, DIM

    def __init__(self, name: str = TOY, device: Any = "cpu") -> None:
        model = load_encoder()
        self.identity = Identity(TOY, model.sha256, f"words in lower case, at most {MAX_WORDS}")
        self.words, self.sentence, self.sentences = model.encode_words, model.encode_text, model.encode_texts


ENCODERS.register(
    TOY,
    EncoderFamily(text=ToyText, frames=ToyEncoder, bundled=True),
    "the encoder of the toy world",
)
