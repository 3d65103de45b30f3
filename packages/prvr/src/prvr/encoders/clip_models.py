"""Models that take clips: X-CLIP (Ni et al., 2022) of `transformers`, and those of `sentence-transformers`.

A row of X-CLIP is compared with a sentence by their cosine, without what the model would add to the sentence for each
video. Models of `sentence-transformers`, such as Qwen3-VL-Embedding, bring what they do with frames and sentences; most
need torchvision for that.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, UInt8

from prvr.encoders import ENCODERS, SENTENCE_TRANSFORMERS, EncoderFamily, Identity
from prvr.encoders.hub import SMALL, explained, hash_model, locate, read_config, read_json
from prvr.encoders.interface import ClipWindow, encode_pictures
from prvr.encoders.transformer_models import BLACK, JointText, JointVision, RowByRow, pooled_rows
from prvr.errors import DataError, InputError, require

_SIDE = 384  # pixels of a square that holds a picture: 144 tokens of Qwen3-VL for two frames
_QUIET: Any = {"show_progress_bar": False}


class JointClips(JointVision):
    """Clips in the joint space of a model, of as many frames as it was trained with.

    Args:
        name: a folder, or a name on the hub.
        device: a torch device.

    Raises:
        DataError: there is no such model, its preprocessing cannot run, or it gives no finite row for a clip.
        prvr.MissingExtraError: transformers is not installed.
    """

    def __init__(self, name: str, device: Any = "cpu") -> None:
        super().__init__(name, device)
        self.window = _window(read_config(name))
        self.dim = self.joint_dim = self._model.config.projection_dim
        _try(self)

    def encode(self, clips: np.ndarray, times: Float32[np.ndarray, "n t"]) -> Float32[np.ndarray, "n e"]:
        """Projected embeddings of clips."""
        inputs = self.pictures.inputs(clips.reshape(-1, clips.shape[2]), self._device)
        videos = {name: x.reshape(*clips.shape[:2], *x.shape[-3:]) for name, x in inputs.items()}
        with torch.inference_mode():
            return pooled_rows(self._model.get_video_features(**videos), len(clips)).float().cpu().numpy()


class SentenceModel(RowByRow):
    """Both sides of a model of `sentence-transformers` that takes videos: documents are clips, queries are sentences.

    Args:
        name: a folder, or a name on the hub, also after `sentence-transformers:`.
        device: a torch device.

    Raises:
        DataError: there is no such model, it takes no videos or no texts, or it gives no finite row for a clip.
        prvr.MissingExtraError: sentence-transformers is not installed.
    """

    def __init__(self, name: str, device: Any = "cpu") -> None:
        library: Any = require("sentence_transformers", "prvr[encoders]", "models of sentence-transformers")
        place = name.removeprefix(f"{SENTENCE_TRANSFORMERS}:")
        folder, options = locate(place), {"use_safetensors": True, "dtype": torch.float32}
        with explained(name):
            self._model = library.SentenceTransformer(
                str(folder), device=str(device), local_files_only=True, trust_remote_code=False, model_kwargs=options
            ).eval()
        kinds = self._model.modalities
        if not {"text", "video"} <= {*kinds}:
            raise DataError(
                f"{name}: takes {', '.join(map(str, kinds))}, expected text and video. Choose another model."
            )
        files = sorted(path for path in folder.rglob("*") if path.suffix in SMALL and path.is_file())
        about = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]
        config = read_json(place, "config.json")
        weights, self.window = hash_model(self._model, config), _window(config)
        self.identity = Identity(name, weights, f"files {about}, within {_SIDE} x {_SIDE} pixels")
        with explained(name):
            self.dim = self.joint_dim = self.word_dim = self.sentences(["a"]).shape[1]
        _try(self)

    def prepare(self, pixels: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "s s 3"]:
        """The whole picture in a black square."""
        from PIL import Image, ImageOps

        return np.asarray(ImageOps.pad(Image.fromarray(pixels), (_SIDE, _SIDE), Image.Resampling.BICUBIC))

    def encode(
        self, clips: UInt8[np.ndarray, "n t s s 3"], times: Float32[np.ndarray, "n t"]
    ) -> Float32[np.ndarray, "n e"]:
        """The embeddings of clips as documents, which the model is told the times of."""
        steps = np.maximum(times[:, -1] - times[:, 0], 1e-3) / max(1, times.shape[1] - 1)
        documents = []
        for clip, step in zip(clips, steps.tolist(), strict=True):
            numbers = range(len(clip))
            about = {"fps": 1 / step, "total_num_frames": len(clip), "duration": len(clip) * step}
            documents.append({"array": clip, "video_metadata": about | {"frames_indices": [*numbers]}})
        every = {"video": {"do_sample_frames": False}}
        return np.asarray(self._model.encode_document(documents, processing_kwargs=every, **_QUIET), np.float32)

    def sentences(self, texts: Sequence[str]) -> Float32[np.ndarray, "t d"]:
        """The unit vectors of texts as queries."""
        for text in texts:
            if not text.strip():
                raise InputError("no word in a text. Describe what is to be seen, for example 'a dog catches a ball'.")
        return np.asarray(self._model.encode_query([*texts], normalize_embeddings=True, **_QUIET), np.float32)

    def sentence(self, text: str) -> Float32[np.ndarray, " d"]:
        """The unit vector of a text as a query."""
        return self.sentences([text])[0]

    def words(self, text: str) -> Float32[np.ndarray, "1 d"]:
        """The sentence, as one row."""
        return self.sentences([text])


def _window(config: dict[str, Any]) -> ClipWindow:
    """Two seconds with the frames that a model needs, if it says so."""
    vision = config.get("vision_config")
    return ClipWindow(frames=vision.get("num_frames", 8) if isinstance(vision, dict) else 8)


def _try(encoder: JointClips | SentenceModel) -> None:
    """Refuses an encoder that gives no row for a black clip."""
    name = encoder.identity.name
    with explained(name):
        rows = encode_pictures(encoder, [BLACK])
    if rows.shape != (1, encoder.dim) or not np.isfinite(rows).all():
        raise DataError(f"{name}: gives NaN, infinity or no row for a black clip. Choose another model.")


for _kind, _family, _title in (
    ("xclip", EncoderFamily(text=JointText, frames=JointClips), "X-CLIP, by clips"),
    (
        SENTENCE_TRANSFORMERS,
        EncoderFamily(text=SentenceModel, frames=SentenceModel, prefixed=True),
        "a model of sentence-transformers that takes videos, by clips; without the prefix if no other row has its type",
    ),
):
    ENCODERS.register(_kind, _family, _title)
