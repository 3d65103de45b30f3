"""Models of `transformers`: joint encoders of frames and texts, language models, and what a CLIP reads.

Joint encoders are CLIP (Radford et al., 2021), SigLIP (Zhai et al., 2023), and others like them. Language models, such
as RoBERTa, have features of words alone, as in the public feature files. `pixels:CLIP` gives the pictures and token
numbers that a CLIP reads, for a retriever that trains the CLIP along. Two CLIPs that prepare pictures alike, or have
one tokenizer, give the same.
"""

import hashlib
import json
import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32, UInt8
from torch import Tensor

from prvr.encoders import ENCODERS, OTHER, EncoderFamily, Identity
from prvr.encoders.hub import explained, hash_model, import_transformers, load_model, locate, read_config, read_json
from prvr.errors import DataError, InputError

_PADDED = ("siglip", "siglip2")  # trained on lower-case texts padded to one length, without a mask
_COUNT_FROM_PAD = ("roberta", "xlm-roberta", "mpnet", "altclip_text_model")  # positions follow the padding token's id
_PIXELS = "pixels:"
BLACK = np.zeros((64, 64, 3), np.uint8)
"""A picture on which encoders are tried."""
_LARGEST = 4096  # pixels of a side that any model takes
_LONGEST = 64  # times the shorter side: longer pictures are cropped first, since only the middle counts


class PictureProcessor:
    """The image processor of a model. A prepared picture is one row that holds all tensors the model reads.

    Most models read the pixels alone. SigLIP 2 for pictures of any shape reads patches, their mask and their number in
    each direction. Pictures are prepared on the CPU with Pillow, which gives the same on every computer.

    Args:
        name: the model, a folder or a name on the hub.

    Attributes:
        description: changes whenever the file of the image processor does.

    Raises:
        DataError: the model has no image processor, or one that cannot run.
    """

    def __init__(self, name: str) -> None:
        values = read_json(name, "preprocessor_config.json") or read_json(name, "processor_config.json")
        values = values.get("image_processor", values)
        self.description = f"image processor {_hash(values)[:16]}"
        with explained(name):
            sizes = [values.get(key) or 0 for key in ("size", "crop_size", "pad_size", "max_num_patches")]
            if max(max(size.values()) if isinstance(size, dict) else size for size in sizes) > _LARGEST:
                raise DataError(f"{name}: pictures of more than {_LARGEST} pixels a side. Choose another model.")
            self._processor = import_transformers().AutoImageProcessor.from_pretrained(
                locate(name), backend="pil", trust_remote_code=False
            )
            tensors = self._tensors(BLACK)
            self._parts = {key: (value.shape, value.dtype) for key, value in tensors.items()}

    def prepare(self, pixels: UInt8[np.ndarray, "h w 3"]) -> Float32[np.ndarray, " n"]:
        """The tensors of a picture, one after the other."""
        most = _LONGEST * min(pixels.shape[:2])  # of a very long, thin picture the whole would fill the memory
        top, left = (max(0, side - most) // 2 for side in pixels.shape[:2])
        tensors = self._tensors(pixels[top : top + most, left : left + most])
        return np.concatenate([value.astype(np.float32).ravel() for value in tensors.values()])

    def inputs(self, frames: Float32[np.ndarray, "n _"], device: torch.device) -> dict[str, Tensor]:
        """The tensors of prepared pictures, by the names of the model's arguments."""
        tensors, first = dict[str, Tensor](), 0
        for name, (shape, dtype) in self._parts.items():
            last = first + math.prod(shape)
            part = frames[:, first:last].astype(dtype).reshape(-1, *shape)
            tensors[name], first = torch.from_numpy(part).to(device), last
        return tensors

    def _tensors(self, pixels: UInt8[np.ndarray, "h w 3"]) -> dict[str, np.ndarray]:
        output = self._processor(images=pixels, input_data_format="channels_last", return_tensors="np")
        return {name: np.asarray(output[name])[0] for name in self._processor.model_input_names}


class TextTokens:
    """The tokenizer of a model.

    Args:
        name: the model, a folder or a name on the hub.
        config: the configuration of its text side.

    Attributes:
        tokenizer: that of transformers.
        most: how many tokens the model reads.
        description: changes whenever the tokens of any text do.

    Raises:
        DataError: the model has no tokenizer.
    """

    def __init__(self, name: str, config: Any) -> None:
        with explained(name):
            self.tokenizer = import_transformers().AutoTokenizer.from_pretrained(locate(name), trust_remote_code=False)
            reserved = config.pad_token_id + 1 if config.model_type in _COUNT_FROM_PAD else 0
            self.most = min(config.max_position_embeddings - reserved, self.tokenizer.model_max_length)
        if len(self.tokenizer) <= len(self.tokenizer.all_special_ids):  # what the library makes of missing files
            raise DataError(f"{name}: its tokenizer has no words. Copy the folder again, with the tokenizer's files.")
        self.description = f"tokens {self._hash()[:16]}, at most {self.most}"

    def ids(self, text: str) -> list[int]:
        """The tokens of a text with those that begin and end it.

        Raises:
            ValueError: the text is empty, or too long.
        """
        if not text.strip():
            raise InputError(
                f"no word in {text[:40]!r}. Describe what is to be seen, for example 'a dog catches a ball'."
            )
        ids = list(self.tokenizer(text, truncation=False, verbose=False)["input_ids"])
        if len(ids) > self.most:
            raise InputError(
                f"{len(ids)} tokens in {text[:40]!r}..., the model reads at most {self.most}. Describe one moment "
                "briefly."
            )
        return ids

    def _hash(self) -> str:
        """sha256 of how the tokenizer cuts, the same whatever it was used for before."""
        if getattr(self.tokenizer, "backend_tokenizer", None) is None:  # SigLIP's own, of SentencePiece
            words, ends = self.tokenizer.get_vocab(), self.tokenizer.special_tokens_map
            return _hash({"kind": type(self.tokenizer).__name__, "words": words, "ends": ends})
        state = json.loads(self.tokenizer.backend_tokenizer.to_str())
        for key in ("padding", "truncation"):  # set by calls
            state.pop(key, None)
        return _hash(state)


def _hash(values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


class RowByRow:
    """An encoder whose rows of a video are those of its frames."""

    def finish(self, rows: Float32[np.ndarray, "n e"]) -> Float32[np.ndarray, "n f"]:
        """As they are."""
        return rows


class JointVision(RowByRow):
    """A model of `transformers` with a joint space, and how it prepares pictures.

    Args:
        name: a folder, or a name on the hub.
        device: a torch device.
    """

    def __init__(self, name: str, device: Any = "cpu") -> None:
        self._device = torch.device(device)
        self.pictures = PictureProcessor(name)
        self._model: Any = load_model(name, self._device)
        self.identity = Identity(name, hash_model(self._model, read_config(name)), self.pictures.description)

    def prepare(self, pixels: UInt8[np.ndarray, "h w 3"]) -> np.ndarray:
        """The picture as the model's own image processor prepares it."""
        return self.pictures.prepare(pixels)


class JointFrames(JointVision):
    """Frames in the joint space, not normalised, as the public CLIP features are.

    Args:
        name: a folder, or a name on the hub.
        device: a torch device.

    Raises:
        DataError: there is no such model, its preprocessing cannot run, or it gives no finite row for a picture.
        prvr.MissingExtraError: transformers is not installed.
    """

    def __init__(self, name: str, device: Any = "cpu") -> None:
        super().__init__(name, device)
        with explained(name):
            trial = self.encode(self.prepare(BLACK)[None])
        if not np.isfinite(trial).all():
            raise DataError(f"{name}: gives NaN or infinity for a black picture. Choose another model.")
        self.dim = self.joint_dim = trial.shape[1]

    def encode(self, frames: np.ndarray) -> Float32[np.ndarray, "n e"]:
        """Projected image embeddings."""
        with torch.inference_mode():
            output = self._model.get_image_features(**self.pictures.inputs(frames, self._device))
            return pooled_rows(output, len(frames)).float().cpu().numpy()


class JointText:
    """Hidden states of the last layer as words, the projected embedding as sentence.

    A text goes through the model alone, so nothing is padded and no mask is needed, except in SigLIP, which was trained
    on texts of one length. In CLIP and SigLIP the row of a token that begins every text is left out: it is the same for
    all. In other models that token has read the whole text.

    Args:
        name: a folder, or a name on the hub.
        device: a torch device.

    Raises:
        DataError: there is no such model, its tokenizer is missing, or it gives no single row for a text.
        prvr.MissingExtraError: transformers is not installed.
    """

    def __init__(self, name: str, device: Any = "cpu") -> None:
        config = read_config(name)
        self._device, self._family = torch.device(device), config["model_type"]
        self._model: Any = load_model(name, self._device)
        with explained(name):
            self._tokens = TextTokens(name, self._model.config.text_config)
            words, sentence = self._run("a")
        self.identity = Identity(name, hash_model(self._model, config), self._tokens.description)
        self.word_dim, self.joint_dim = words.shape[1], sentence.shape[0]

    def words(self, text: str) -> Float32[np.ndarray, "w e"]:
        """Hidden states of the tokens, that of the end included: in CLIP it has read all others."""
        return self._run(text)[0]

    def sentence(self, text: str) -> Float32[np.ndarray, " d"]:
        """The unit vector of a text in the joint space."""
        return self._run(text)[1]

    def _run(self, text: str) -> tuple[Float32[np.ndarray, "w e"], Float32[np.ndarray, " d"]]:
        padded, tokenizer = self._family in _PADDED, self._tokens.tokenizer
        ids = self._tokens.ids(text.lower() if padded else text)
        first, count = 0, len(ids)
        if padded:
            padding = [tokenizer.pad_token_id] * (self._tokens.most - count)
            ids, first = (padding + ids, len(padding)) if tokenizer.padding_side == "left" else (ids + padding, 0)
        last = first + count
        if self._family in ("clip", "siglip") and ids[first] == tokenizer.bos_token_id:
            first += 1
        with torch.inference_mode():
            tokens = torch.tensor([ids], device=self._device)
            mask = None if padded else torch.ones_like(tokens)
            output = self._model.get_text_features(input_ids=tokens, attention_mask=mask)
            words = output.last_hidden_state[0, first:last].float().cpu().numpy()
            return words, F.normalize(pooled_rows(output, 1)[0].float(), dim=-1).cpu().numpy()


def pooled_rows(output: Any, count: int) -> Float[Tensor, "n d"]:
    """The rows of pictures or texts in the joint space.

    Raises:
        DataError: there is not one for each.
    """
    rows = output.pooler_output
    if rows.ndim != 2 or len(rows) != count:
        raise DataError(f"got shape {tuple(rows.shape)} for {count} pictures or texts, expected one row for each")
    return rows


class WordsAlone:
    """The text side of an encoder without a joint space."""

    joint_dim = 0
    identity: Identity

    def sentence(self, text: str) -> Float32[np.ndarray, " d"]:
        """Raises `prvr.InputError`: nothing of frames can be compared with texts."""
        raise InputError(
            f"{self.identity.name}: its texts have no space in common with frames. Zero-shot search needs the text "
            "side of the encoder of the frames, such as CLIP or SigLIP."
        )


class WordModel(WordsAlone):
    """Hidden states of the last layer: one row for each token of a text, its first and last special tokens included.

    Args:
        name: on the hub, for example `FacebookAI/roberta-large`, or a folder.
        device: a torch device.

    Raises:
        DataError: there is no such model.
        prvr.MissingExtraError: transformers is not installed.
    """

    def __init__(self, name: str, device: Any = "cpu") -> None:
        self._device, model_config = torch.device(device), read_config(name)
        self._model: Any = load_model(name, self._device)
        with explained(name):
            self._tokens = TextTokens(name, self._model.config)
            self.word_dim = self.words("a").shape[1]
        self.identity = Identity(name, hash_model(self._model, model_config), self._tokens.description)

    def words(self, text: str) -> Float32[np.ndarray, "w e"]:
        """The hidden states of the tokens of a text."""
        with torch.inference_mode():
            output = self._model(input_ids=torch.tensor([self._tokens.ids(text)], device=self._device))
            return output.last_hidden_state[0].float().cpu().numpy()


class PixelEncoder(RowByRow):
    """Frames as a CLIP takes them: prepared, normalised and flattened, colours first, `3 s s` columns.

    The CLIP is loaded once to check that it works.

    Args:
        name: `pixels:CLIP`.
    """

    joint_dim = 0

    def __init__(self, name: str) -> None:
        self._pictures = JointFrames(_clip_of(name)).pictures
        self.identity = Identity(name, _hash_text(self._pictures.description), self._pictures.description)
        self.dim = len(self.prepare(BLACK))

    def prepare(self, pixels: UInt8[np.ndarray, "h w 3"]) -> Float32[np.ndarray, " e"]:
        """Resized, cropped and normalised as the CLIP was trained."""
        return self._pictures.prepare(pixels)

    def encode(self, frames: Float32[np.ndarray, "n e"]) -> Float32[np.ndarray, "n e"]:
        """As they are."""
        return frames


class TokenNumbers(WordsAlone):
    """Texts as a CLIP takes them: rows of one column, the numbers of the tokens, with those that begin and end a text.

    Args:
        name: `pixels:CLIP`.
    """

    word_dim = 1

    def __init__(self, name: str) -> None:
        model = _clip_of(name)
        with explained(model):
            config: Any = import_transformers().CLIPConfig.from_dict(read_config(model))
        self._tokens = TextTokens(model, config.text_config)
        self.identity = Identity(name, _hash_text(self._tokens.description), self._tokens.description)

    def words(self, text: str) -> Float32[np.ndarray, "w 1"]:
        """The token numbers, which float32 holds exactly."""
        return np.array(self._tokens.ids(text), np.float32)[:, None]


def _clip_of(name: str) -> str:
    """The CLIP that `pixels:CLIP` names.

    Raises:
        DataError: there is none, or it is no CLIP.
    """
    model = name.removeprefix(_PIXELS)
    kind = read_config(model)["model_type"]
    if kind != "clip":
        raise DataError(f"{name}: a model of type {kind!r}, expected a CLIP.")
    return model


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


_JOINT = EncoderFamily(text=JointText, frames=JointFrames)
_WORDS = EncoderFamily(text=WordModel)
_READ = EncoderFamily(
    text=lambda name, device: TokenNumbers(name), frames=lambda name, device: PixelEncoder(name), prefixed=True
)
for _kind, _family, _title in (
    ("clip", _JOINT, "CLIP"),
    ("siglip", _JOINT, "SigLIP"),
    (OTHER, _JOINT, "any other model of transformers with features of images and of texts"),
    ("roberta", _WORDS, "RoBERTa"),
    ("xlm-roberta", _WORDS, "XLM-RoBERTa"),
    ("mpnet", _WORDS, "MPNet"),
    ("bert", _WORDS, "BERT"),
    ("distilbert", _WORDS, "DistilBERT"),
    ("pixels", _READ, "the pictures and token numbers that a CLIP reads"),
):
    ENCODERS.register(_kind, _family, _title)
