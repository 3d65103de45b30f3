"""A trained retriever over a store of features, with the inputs that it has in evaluation."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor

from prvr.config import config_to_dict, load_config
from prvr.data.packing import PackSettings
from prvr.data.sampling import pad, segment_mean
from prvr.encoders import FeatureSpec, TextFeaturizer, open_featurizer
from prvr.encoders.hub import hash_model
from prvr.errors import DataError, InputError
from prvr.evaluation.encode import evaluation_mode
from prvr.evaluation.transfer import encoders_of
from prvr.models import AnyRetriever, Indexed, Retriever, blocks_alone, load_pretrained, path_alone
from prvr.scoring import own_moments, ranked_spans, row_scores
from prvr.stages.pipelines import FIRST, Pipeline, read_stages
from prvr.systems import read_system
from prvr.types import TextEmbedding, Texts, VideoEmbedding, query_vectors
from prvr_search.store.features import Features
from prvr_search.vectors.model import (
    CLIP_TIMES,
    Encoded,
    ModelIdentity,
    Queries,
    Rows,
    RowSet,
    Spans,
    StoredRows,
    TimedScores,
    Vector,
    WindowVectors,
    unit,
)

_BATCH, _TEXTS = 32, 128  # windows and queries encoded at a time
_CLIPS = 32  # for candidates, where the model has none
_BLOCKS = "block-"  # begins the names of the rows of blocks, beside those of a kernel path
_SEED = 0  # any number: no retriever draws in evaluation, its registers start from fixed numbers


class TrainedModel:
    """A retriever whose vectors are those that evaluation compares.

    Args:
        retriever: in any mode; it is put into evaluation mode for every call.
        indexed: how an index finds videos with it.
        keep_last: `data.keep_last_frame` of the run: the last frame counts in the last segment mean.
        identity: what tells the model from any other.
        text: what reads queries.
        device: the torch device.
    """

    def __init__(
        self,
        retriever: AnyRetriever,
        indexed: Indexed,
        keep_last: bool,
        identity: ModelIdentity,
        text: TextFeaturizer,
        device: Any,
    ) -> None:
        self.identity, self._retriever, self._text, self._device = identity, retriever, text, torch.device(device)
        family, config = retriever if isinstance(retriever, Retriever) else None, retriever.config
        self._joined = _is_joined(retriever)
        self.clip_weight, self.frame_weight, self.frame_means = indexed.clip_weight, indexed.frame_weight, False
        self.dim, self.clips = (config.query_dim, _CLIPS) if self._joined else (config.width, indexed.clips or _CLIPS)
        self.frames_by_clip = family is not None and family.frame_pool.by_clip and not self._joined
        self.stored: Mapping[str, RowSet] = {CLIP_TIMES: RowSet(1, lengths=True)} if indexed.spans else {}
        # Frames that are repeated, to as many as there may be.
        self._repeated = family is not None and family.config.clip_construction == "merged"
        self._pairs = family is not None and family.config.frame_query != "words"
        self._declared = None if family is not None else (indexed.clips, indexed.frames)
        self._settings = PackSettings.of(config, keep_last)
        self._lock = threading.Lock()  # modes of modules and the random state are not of one thread

    @contextmanager
    def _evaluated(self) -> Iterator[None]:
        """Inside the `with` statement, the retriever is in evaluation mode, on its device, and of this thread."""
        with self._lock, evaluation_mode(self._retriever, self._device, _SEED):
            yield

    def encode_video(self, rows: Features, windows: Spans) -> Encoded:
        """Clips and frames of each window, as `prvr.evaluation.encode.encode_split` makes those of a video."""
        return windows, self._encoded([rows[slice(*span)] for span in windows])

    def _encoded(self, windows: Sequence[Features]) -> Iterator[WindowVectors]:
        for first in range(0, len(windows), _BATCH):
            sampled = [self._settings.video(rows) for rows in windows[first : first + _BATCH]]
            clips = torch.from_numpy(np.stack([clips for clips, _ in sampled]))
            frames, mask = pad([torch.from_numpy(frames) for _, frames in sampled])
            with self._evaluated():
                video = self._retriever.encode_video(*(x.to(self._device) for x in (clips, frames, mask)))
                video = video.to("cpu", torch.float32)
            yield from (self._vectors(video[row : row + 1], len(fine)) for row, (_, fine) in enumerate(sampled))

    def _vectors(self, video: VideoEmbedding, sampled: int) -> WindowVectors:
        """The vectors of one window; means of frames as clips where there are none."""
        stored = dict[str, np.ndarray]()
        if self._joined and video.path is not None:
            stored, video = {f"{_BLOCKS}{name}": rows for name, rows in rows_of(video).items()}, video.path
        rows = rows_of(video)
        count = len(rows.get("clips", ()))
        if self._declared not in (None, (count, "frames" in rows)):
            says = "`indexed` of {} says clips={}, frames={}".format(type(self._retriever).__name__, *self._declared)
            raise DataError(
                f"{says}, and its encode_video gives {count} clips and {'' if 'frames' in rows else 'no '}frames: "
                "correct `indexed`, or num_clips of its settings"
            )
        frames = rows.get("frames", np.empty((0, self.dim), np.float32))
        clips = rows["clips"] if "clips" in rows else segment_mean(unit(frames), self.clips)
        if video.clip_spans is not None:
            stored[CLIP_TIMES] = video.clip_spans[0].T.reshape(-1, 1).numpy()
        if self._repeated:
            sampled = len(frames)
        return WindowVectors(clips, frames, 0 if self.frames_by_clip else min(sampled, len(frames)), stored)

    def encode_texts(self, texts: Sequence[str]) -> Queries:
        """The unit vectors of queries; two in one row, if the retriever has one for frames."""
        return np.block(
            [[unit(part.float().cpu().numpy()) for part in self._compared(query)] for query in self._embed(texts)]
        )

    def _compared(self, query: Texts) -> list[Tensor]:
        """What clips and frames are compared with."""
        if isinstance(query, TextEmbedding):
            if self._joined and query.path is not None:
                return [query.path]
            if self._pairs:
                return [query.sentence, query.words[:, 0]]
        return [query_vectors(query)]

    def _embed(self, texts: Sequence[str]) -> list[Texts]:
        """Queries as the retriever gives them, a batch at a time, their words cut off where those of its data were."""
        queries = []
        for first in range(0, len(texts), _TEXTS):
            words = [self._settings.query(self._text.words(text)) for text in texts[first : first + _TEXTS]]
            padded, mask = pad([torch.from_numpy(rows).float() for rows in words])
            with self._evaluated():
                queries.append(self._retriever.encode_text(padded.to(self._device), mask.to(self._device)))
        return queries


class RescoredModel(TrainedModel):
    """A retriever of which a part finds videos, which its whole score then orders: a `Rescores`.

    Where a query has a vector for each word, clips find them; where a kernel path is joined with blocks, the path.
    """

    candidates = 200

    def __init__(self, retriever: AnyRetriever, indexed: Indexed, *others: Any) -> None:
        super().__init__(retriever, indexed, *others)
        self._blocks = _BLOCKS if self._joined else ""
        path = {"frames": RowSet(self.dim, lengths=True)} if self._joined else {}
        rows = RowSet(retriever.config.width, lengths=True)
        names = [name for name, has in (("clips", indexed.clips), ("frames", indexed.frames)) if has]
        self.stored = {**self.stored, **path, **{f"{self._blocks}{name}": rows for name in names}}

    def rescore(self, sentence: str, windows: StoredRows) -> Vector:
        """The score of the whole retriever."""
        (text,), video = self._embed([sentence]), self._joined_rows(windows)
        with self._evaluated():
            return self._retriever.score(text, video).total[0].cpu().numpy()

    def moments(self, sentence: str, windows: StoredRows) -> TimedScores | None:
        """Those that the retriever gives, else the scores of its rows; None beside a path, whose rows were searched."""
        if self._joined and not self._retriever.moment_heads:
            return None
        (text,), scores = self._embed([sentence]), []
        for window in windows:
            video = self._joined_rows([window])
            with self._evaluated():
                own = self._retriever.moments(text, video)
                rows = None if own is not None else row_scores(self._retriever, text, video)
                line, spans = rows or (self._retriever.score(text, video).total, None)
            if own is not None:
                lists = own_moments(*own, type(self._retriever).__name__)
            elif spans is not None:
                lists = ranked_spans(line.float().cpu(), spans.float().cpu())
            else:
                scores.append((line[0].float().cpu().numpy(), None))
                continue
            spans = torch.stack([lists.start, lists.stop], 2)
            scores.append((lists.score[lists.valid].float().numpy(), spans[lists.valid].float().numpy()))
        return scores

    def _joined_rows(self, windows: StoredRows) -> VideoEmbedding:
        """Windows as the retriever has encoded them."""
        rows = {name: pad([torch.from_numpy(window[name]) for window in windows]) for name in self.stored}
        clips, _ = rows.get(f"{self._blocks}clips", (None, None))
        frames, mask = rows.get(f"{self._blocks}frames", (None, None))
        path = VideoEmbedding(None, *rows["frames"]) if self._joined else None
        spans = None if CLIP_TIMES not in rows else rows[CLIP_TIMES][0].unflatten(1, (2, -1))[..., 0].mT
        return VideoEmbedding(clips, frames, mask, path=path, clip_spans=spans).to(self._device)


def _is_joined(retriever: AnyRetriever) -> bool:
    """Whether a kernel path and blocks make the score."""
    return isinstance(retriever, Retriever) and retriever.path is not None and retriever.has_blocks


def _indexed(retriever: AnyRetriever, name: str | Path) -> Indexed:
    """How an index finds videos with a retriever."""
    if not isinstance(retriever, Retriever):
        if (own := retriever.indexed) is None:
            raise DataError(
                f"{name}: its model is of kind {retriever.config.kind!r}, which does not say how an index finds videos "
                "with it. Set `indexed` of its class (prvr.models.Indexed), or evaluate this one with prvr evaluate "
                f"{name}."
            )
        return replace(own, whole=own.whole or bool(retriever.moment_heads))
    config, clips, joined = retriever.config, retriever.clip_rows, _is_joined(retriever)
    weights = {"both": (config.clip_weight, config.frame_weight), "clips": (1.0, 0.0)}.get(config.branches, (0.0, 1.0))
    if (words := config.frame_query == "words") or joined:
        weights = (0.0, 1.0) if joined else (1.0, 0.0)
    count, spans = (0, False) if retriever.clips is None else (clips.rows, clips.has_spans)
    whole = joined or words or bool(retriever.moment_heads)
    return Indexed(count, config.branches in ("both", "frames"), *weights, whole, spans and not joined)


def rows_of(video: VideoEmbedding) -> dict[str, Rows]:
    """The clips and the valid frames of one video, as far as it has them."""
    frames, rows = video.frames, {} if video.clips is None else {"clips": video.clips[0].numpy()}
    if frames is not None:
        rows["frames"] = (frames[0] if video.frame_mask is None else frames[video.frame_mask]).numpy()
    return rows


def open_trained(name: str | Path, encoder: FeatureSpec, device: Any, text: TextFeaturizer | None) -> TrainedModel:
    """The model of a run, or of a folder of `save_pretrained`; arguments and errors as of `prvr_search.open_model`."""
    files = read_system(name)
    weights, stages = files.first, files.stages
    if Pipeline.is_folder(weights):
        weights, stages = weights / FIRST, (*read_stages(weights), *stages)
    if stages:
        raise InputError(
            f"{name}: a pipeline with stages, and search takes a retriever. Evaluate it with prvr evaluate {name}, or "
            f"search with its first stage: --model {weights}"
        )
    retriever, run = load_pretrained(weights), None if files.config_file is None else load_config(files.config_file)
    config = retriever.config
    if config.stream is not None:
        raise DataError(
            f"{name}: this model reads the stream {config.stream.feature!r} beside frames, which no library "
            "of videos has: search without model.stream"
        )
    trained_on, keep_last = (None, True) if run is None else (encoders_of(run), run.data.keep_last_frame)
    text = text or open_featurizer(encoder.encoder if trained_on is None else trained_on.text, device)
    for what, found, width, before, wanted in (
        ("features", encoder.encoder, encoder.dim, trained_on and trained_on.frames, config.video_dim),
        ("words", text.identity, text.word_dim, trained_on and trained_on.text, config.query_dim),
    ):
        mend = "Pass a model that was trained with this encoder, or zero-shot."
        if before not in (None, found):
            raise DataError(f"{name}: was trained on {what} of {before}, these are of {found}. {mend}")
        if width != wanted:
            raise DataError(f"{name}: reads {what} of width {wanted}, those of {found} have {width}. {mend}")
    if isinstance(retriever, Retriever) and retriever.path is not None and retriever.has_blocks:
        alone = {0.0: path_alone, 1.0: blocks_alone}.get(float(retriever.path.gate))
        retriever = retriever if alone is None else alone(retriever)
    indexed = _indexed(retriever, name)
    model = RescoredModel if indexed.whole else TrainedModel
    sha256 = _fingerprint(retriever, indexed, keep_last)
    identity = ModelIdentity("trained", str(files.folder), sha256, encoder.encoder, text.identity)
    return model(retriever, indexed, keep_last, identity, text, device)


def _fingerprint(retriever: AnyRetriever, indexed: Indexed, keep_last: bool) -> str:
    """sha256 of all that the vectors depend on, in whatever files it lies: of tensors as they are computed with.

    Only what differs from the defaults of the configuration counts, so that a field added later changes nothing.
    """
    options: Any = {"mode": "json", "exclude_defaults": True, "serialize_as_any": True}
    facts = {
        "model": TypeAdapter(type(retriever.config)).dump_python(retriever.config, **options),
        "keep_last": keep_last,
    }
    if not isinstance(retriever, Retriever):
        facts["indexed"] = asdict(indexed)
    if retriever.moment_heads:
        facts["kept"] = {name: config_to_dict(loss.settings) for name, loss in retriever.moment_heads.items()}
    return hash_model(retriever, facts)
