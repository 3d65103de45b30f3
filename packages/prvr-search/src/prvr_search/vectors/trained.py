"""A trained retriever over a store of features, with the inputs that it has in evaluation."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float32

from prvr.config import Config, ModelConfig, config_to_dict
from prvr.corpora.corpus_encoders import DRAWN_COLLECTIONS, corpus_encoders
from prvr.data.corpus import open_corpus
from prvr.data.packing import PackSettings
from prvr.data.sampling import pad, segment_mean
from prvr.encoders import FeatureSpec, Identity, TextFeaturizer
from prvr.encoders.hub import hash_model
from prvr.errors import DataError
from prvr.evaluation.encode import evaluation_mode
from prvr.models import AnyRetriever, Retriever
from prvr.systems import System
from prvr_search.vectors.model import CLIP_TIMES, ModelIdentity, RowSet, WindowVectors
from prvr_search.vectors.rows import query_rows, unit

_BATCH, _TEXTS = 32, 128  # windows and queries encoded at a time
_CLIPS = 32  # for candidates, where the model has none
_SEED = 0  # any number: no retriever draws in evaluation, its registers start from fixed numbers


class WindowRows(NamedTuple):
    """What a retriever gives for a window, padding left out; None where it has no such rows."""

    clips: Float32[np.ndarray, "c d"] | None
    frames: Float32[np.ndarray, "l d"] | None
    sampled: int
    """Frames that were sampled from the window."""
    registers: Float32[np.ndarray, "n d"] | None
    clip_spans: Float32[np.ndarray, "c 2"] | None


class WindowEncoder:
    """A retriever of any kind over windows of features and sentences, with the inputs that it has in evaluation.

    Args:
        retriever: a retriever in any mode; it is put into evaluation mode for every call.
        keep_last: `data.keep_last_frame` of the run: the last frame counts in the last segment mean.
        text: what reads queries.
        device: the torch device.
    """

    def __init__(self, retriever: AnyRetriever, keep_last: bool, text: TextFeaturizer, device: Any = "cpu") -> None:
        if retriever.config.stream is not None:
            raise DataError(
                f"this model reads the stream {retriever.config.stream.feature!r} beside frames, which no library "
                "of videos has: search without model.stream"
            )
        self.retriever, self.keep_last, self.text, self.device = retriever, keep_last, text, torch.device(device)
        self._settings = PackSettings.of(retriever.config, keep_last)
        self._repeats = getattr(retriever.config, "clip_construction", None) == "merged"
        self._lock = threading.Lock()  # modes of modules and the random state are not of one thread

    def encode_windows(self, windows: Sequence[Float32[np.ndarray, "_ f"]]) -> list[WindowRows]:
        """Clips and frames of each window, as `prvr.evaluation.encode.encode_split` makes those of a video."""
        encoded: list[WindowRows] = []
        with self._lock, evaluation_mode(self.retriever, self.device, _SEED):
            for first in range(0, len(windows), _BATCH):
                encoded += self._encode(windows[first : first + _BATCH])
        return encoded

    def encode_text(self, text: str) -> Any:
        """The query as the retriever gives it, its words cut off where the retriever's data were."""
        return self.encode_texts([text])[0]

    def encode_texts(self, texts: Sequence[str]) -> list[Any]:
        """Queries as the retriever gives them, a batch at a time."""
        queries = []
        for first in range(0, len(texts), _TEXTS):
            words = [self._settings.query(self.text.words(text)) for text in texts[first : first + _TEXTS]]
            padded, mask = pad([torch.from_numpy(rows).float() for rows in words])
            with self._lock, evaluation_mode(self.retriever, self.device, _SEED):
                queries.append(self.retriever.encode_text(padded.to(self.device), mask.to(self.device)))
        return queries

    def _encode(self, windows: Sequence[np.ndarray]) -> list[WindowRows]:
        sampled = [self._settings.video(rows) for rows in windows]
        clips = torch.from_numpy(np.stack([clips for clips, _ in sampled]))
        frames, mask = pad([torch.from_numpy(frames) for _, frames in sampled])
        clips, frames, mask = (x.to(self.device) for x in (clips, frames, mask))
        video = self.retriever.encode_video(clips, frames, mask).to("cpu", torch.float32)
        encoded = []
        for row, (_, fine) in enumerate(sampled):
            parts = (video.clips, video.frames, video.registers, video.clip_spans)
            coarse, tokens, registers, spans = (None if part is None else part[row].numpy() for part in parts)
            if tokens is not None and video.frame_mask is not None:
                tokens = tokens[video.frame_mask[row].numpy()]
            steps = len(tokens) if tokens is not None and self._repeats else len(fine)
            encoded.append(WindowRows(coarse, tokens, steps, registers, spans))
        return encoded


class TrainedModel:
    """A retriever whose vectors are those that evaluation compares.

    Args:
        windows: the retriever, with what prepares its inputs.
        identity: what tells the model from any other.
    """

    def __init__(self, windows: WindowEncoder, identity: ModelIdentity) -> None:
        self.windows, self.identity = windows, identity
        retriever: Any = windows.retriever
        config = retriever.config
        weights = {"both": (config.clip_weight, config.frame_weight), "clips": (1.0, 0.0)}
        self.clip_weight, self.frame_weight = weights.get(config.branches, (0.0, 1.0))
        self.frame_means = False
        self.frames_by_clip, has_clips = retriever.frame_pool.by_clip, config.branches in ("both", "clips")
        self.dim, self.clips = config.width, retriever.clip_rows.rows if has_clips else _CLIPS
        has_spans = has_clips and retriever.clip_rows.has_spans
        self.stored: Mapping[str, RowSet] = {CLIP_TIMES: RowSet(1, lengths=True)} if has_spans else {}

    def encode_windows(self, windows: Sequence[Float32[np.ndarray, "_ f"]]) -> list[WindowVectors]:
        """Clips and frames of each window, registers beside them; means of frames as clips where there are none."""
        vectors = []
        for clips, frames, sampled, registers, spans in self.windows.encode_windows(windows):
            tokens = np.empty((0, self.dim), np.float32) if frames is None else frames
            coarse = segment_mean(unit(tokens), self.clips) if clips is None else clips
            stored = {} if registers is None else {"registers": registers}
            if spans is not None:
                stored[CLIP_TIMES] = spans.T.reshape(-1, 1)
            steps = 0 if self.frames_by_clip else min(sampled, len(tokens))
            vectors.append(WindowVectors(coarse, tokens, steps, stored))
        return vectors

    def encode_texts(self, texts: Sequence[str]) -> Float32[np.ndarray, "q e"]:
        """The unit vectors of queries; two in one row, if the retriever has one for frames."""
        return np.concatenate([query_rows(query) for query in self.windows.encode_texts(texts)])


def text_encoder(system: System, encoder: FeatureSpec) -> Identity:
    """What reads queries for a system: the text encoder of its training captions, if its corpus says which."""
    trained_on = None if system.config is None else _encoders(system.config)
    return trained_on[1] if trained_on else encoder.encoder


def open_trained(system: System, encoder: FeatureSpec, text: TextFeaturizer, device: Any = "cpu") -> TrainedModel:
    """The first stage of a system, for features of an encoder.

    Raises:
        DataError: it does not read these features or these texts, or has no single vector for a query.
    """
    run, retriever, name = system.config, system.pipeline.first, str(system.folder)
    keep_last, trained_on = (True, None) if run is None else (run.data.keep_last_frame, _encoders(run))
    if trained_on is not None and trained_on[0] != encoder.encoder:
        raise DataError(
            f"{name}: was trained on features of {trained_on[0]}, these are of {encoder.encoder}. Pass a model "
            "that was trained on features of this encoder, or zero-shot."
        )
    if trained_on is not None and trained_on[1] != text.identity:
        raise DataError(
            f"{name}: was trained on words of {trained_on[1]}, queries would be read by {text.identity}. Pass the "
            "text model of its captions."
        )
    if not isinstance(retriever, Retriever):
        raise DataError(
            f"{name}: its model is of kind {retriever.config.kind!r}; an index holds one vector for a query, and "
            "compares it with clips and frames. Pass a retriever of the other kind (hybrid-*, hlformer-*, dreamprvr-*, "
            f"gmmformer-*), with this one as a stage: prvr pipeline OTHER --stage retriever:{name} --output FOLDER"
        )
    config = retriever.config
    if config.video_dim != encoder.dim:
        raise DataError(
            f"{name}: reads frames of width {config.video_dim}, those of {encoder.encoder} have {encoder.dim}. Pass a "
            "model that was trained on features of this encoder."
        )
    if config.query_dim != text.word_dim:
        raise DataError(
            f"{name}: reads words of width {config.query_dim}, {text.identity} gives {text.word_dim}. Pass the text "
            "model that its training captions were encoded with."
        )
    windows = WindowEncoder(retriever, keep_last, text, device)
    identity = ModelIdentity("trained", name, _fingerprint(retriever, keep_last), encoder.encoder, text.identity)
    return TrainedModel(windows, identity)


def _encoders(config: Config) -> tuple[Identity, Identity] | None:
    """What the features of a run's frames and words are of; None where its corpus does not say, or is gone."""
    root, name = config.data.root, config.data.collection
    if root is None:
        encoders = DRAWN_COLLECTIONS[name].part.encoders() if name in DRAWN_COLLECTIONS else None
    elif (Path(root).expanduser() / name / "corpus.json").is_file():
        encoders = corpus_encoders(open_corpus(root, name, feature=config.data.feature))
    else:
        encoders = None
    return None if encoders is None else (encoders.frames, encoders.text)


def _fingerprint(retriever: AnyRetriever, keep_last: bool) -> str:
    """sha256 of all that the vectors depend on, in whatever files it lies: of tensors as they are computed with.

    Only what differs from the defaults of the configuration counts, so that a field added later changes nothing.
    """
    config = retriever.config
    values = config_to_dict(config)
    defaults = config_to_dict(ModelConfig(video_dim=config.video_dim, query_dim=config.query_dim))
    blocks = [_beyond(block, defaults["blocks"][0]) for block in values["blocks"]]
    return hash_model(
        retriever, {"model": _beyond(values, defaults) | {"blocks": blocks}, "feeding": {"keep_last": keep_last}}
    )


def _beyond(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """What differs, also inside of objects."""
    return {
        key: _beyond(value, defaults[key]) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if key not in defaults or value != defaults[key]
    }
