"""A pipeline over a store of features: what its stages read is stored beside the vectors of its first stage."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32

from prvr.data.hashes import HASHES, digest, hash_file, write_hashes
from prvr.encoders import FeatureSpec, TextFeaturizer, open_featurizer
from prvr.errors import DataError, InputError
from prvr.models import Retriever, blocks_alone, clips_alone, is_clips_of, path_alone
from prvr.stages import Pipeline, RetrieverSettings, RetrieverStage, Stage
from prvr.systems import System, open_system
from prvr.types import Features, JointRows
from prvr_search.ranking.rescoring import Rescorer
from prvr_search.ranking.snapshot import Snapshot
from prvr_search.vectors.joint import JointEncoder
from prvr_search.vectors.model import RowSet, SearchModel, WindowVectors
from prvr_search.vectors.trained import TrainedModel, WindowEncoder, open_trained, text_encoder

CANDIDATES = 200
"""Videos that clips find for the words of a retriever to re-rank, see `prvr_search.open_model`."""


def open_pipeline(
    name: str | Path,
    encoder: FeatureSpec,
    device: Any,
    text: TextFeaturizer | None,
    stages: Sequence[Mapping[str, Any]],
) -> SearchModel:
    """The model that a run, a folder of a model or a pipeline stands for; arguments as of `prvr_search.open_model`."""
    system = _with_one_vector(open_system(name, stages, device=device))
    text = text or open_featurizer(text_encoder(system, encoder), device)
    first = open_trained(system, encoder, text, device)
    return PipelineModel(first, system.pipeline, encoder, text) if system.pipeline.stages else first


def _with_one_vector(system: System) -> System:
    """A system whose first stage has one vector of a query for clips, and one for frames, as an index needs it.

    Raises:
        InputError: a stage reads the first stage, or re-scores everything.
    """
    first, stages = system.pipeline.first, system.pipeline.stages
    if not isinstance(first, Retriever):
        return system
    keep = system.config.data.keep_last_frame if system.config else True
    if first.path is not None and first.has_blocks:
        # (1 - gate) path + gate blocks, divided by 1 - gate.
        gate, found, reads = float(first.path.gate), path_alone(first), "joins a linear path with blocks"
        first = blocks_alone(first)
        settings = RetrieverSettings(CANDIDATES, gate / (1 - gate), keep_last_frame=keep) if gate < 1 else None
        if settings is None:
            return _with_one_vector(replace(system, pipeline=Pipeline(first, stages)))
        how, instead = "its path, which its blocks re-rank", "without model.start=linear"
        added = [RetrieverStage(first, settings)] if gate else []
    elif first.config.frame_query != "words":
        return system
    else:
        found, reads = clips_alone(first), "compares words with frames"
        how, instead = "its clips, which its words re-rank", "with model.frame_query=pooled or pooled_words"
        added = [RetrieverStage(first, RetrieverSettings(CANDIDATES, combine="replace", keep_last_frame=keep))]
    unfit = [stage.kind for stage in stages if stage.encoder is None or stage.top_k is None]
    if unfit:
        raise InputError(
            f"{system.folder}: {reads}, so an index finds {CANDIDATES} videos by {how}. A stage of kind "
            f"{unfit[0]} reads the first stage or re-scores everything: leave it out, give it a top_k, or use a "
            f"retriever {instead}"
        )
    return replace(system, pipeline=Pipeline(found, [*added, *stages]))


def set_name(stage: int, rows: str) -> str:
    """The name under which an index keeps the rows of a stage.

    Examples:
        >>> set_name(1, "frames")
        'stage-1-frames'
    """
    return f"stage-{stage}-{rows}"


class PipelineModel:
    """A first stage whose vectors are searched, and stages that re-score what was found.

    Args:
        first: the first stage.
        pipeline: a pipeline with the same first stage.
        encoder: what the features of the frames are.
        text: what reads queries.

    Raises:
        DataError: a stage does not read these features or texts.
    """

    def __init__(
        self,
        first: TrainedModel,
        pipeline: Pipeline,
        encoder: FeatureSpec,
        text: TextFeaturizer,
    ) -> None:
        self.first, self.pipeline = first, pipeline
        self.dim, self.clips = first.dim, first.clips
        self.clip_weight, self.frame_weight = first.clip_weight, first.frame_weight
        self.frames_by_clip, self.frame_means = first.frames_by_clip, first.frame_means
        self.encoders = [_encoder(stage, encoder, text, first.windows.device) for stage in pipeline.stages]
        self._sets: list[dict[str, tuple[str, RowSet]]] = []  # of each stage: the name in the index of what it reads
        for number, (stage, one) in enumerate(zip(pipeline.stages, self.encoders, strict=True), 1):
            if one is None:
                self._sets.append({rows: (rows, RowSet(first.dim, lengths=True)) for rows in sorted(stage.rows)})
            else:
                shared = (
                    {"clips"}
                    if None not in self.encoders and _gives_clips_of(first, one) and not first.stored
                    else set()
                )
                named = ((name if name in shared else set_name(number, name), rows) for name, rows in one.sets.items())
                self._sets.append(dict(zip(one.sets, named, strict=True)))
        self.stored: Mapping[str, RowSet] = {
            **first.stored,
            **dict(pair for sets in self._sets for pair in sets.values()),
        }
        name = f"{first.identity.name}, {' + '.join(stage.kind for stage in pipeline.stages)}"
        weights = fingerprint_of(first.identity.weights, pipeline)
        self.identity = replace(first.identity, kind="pipeline", name=name, weights=weights)

    def encode_windows(self, windows: Sequence[Float32[np.ndarray, "_ f"]]) -> list[WindowVectors]:
        """Vectors of the first stage, with the rows that the stages read."""
        stored: list[dict[str, np.ndarray]] = [{} for _ in windows]
        for sets, one in zip(self._sets, self.encoders, strict=True):
            if one is not None:
                for found, rows in zip(stored, one.encode_windows(windows), strict=True):
                    found.update({sets[kind][0]: some for kind, some in rows.items()})
        if stored and "clips" in stored[0]:  # encoded already, by a stage whose clips they are
            none = np.empty((0, self.dim), np.float32)
            return [WindowVectors(found["clips"], none, 0, found) for found in stored]
        vectors = self.first.encode_windows(windows)
        return [one._replace(stored={**one.stored, **found}) for one, found in zip(vectors, stored, strict=True)]

    def encode_texts(self, texts: Sequence[str]) -> Float32[np.ndarray, "q e"]:
        """The unit vectors of queries, for the first stage."""
        return self.first.encode_texts(texts)

    def encode_for_stages(self, text: str) -> list[Any]:
        """The embedding of a query as each stage reads it."""
        return [self.first.windows.encode_text(text) if one is None else one.encode_text(text) for one in self.encoders]

    def rescorer(self, snapshot: Snapshot) -> Rescorer:
        """The stages over one state of an index."""
        sets = [{kind: (name, rows.lengths) for kind, (name, rows) in one.items()} for one in self._sets]
        return Rescorer(self.pipeline, sets, self.encode_for_stages, snapshot)


class RetrieverEncoder:
    """The retriever of a stage, with the inputs that it has in evaluation.

    Args:
        stage: the stage with the retriever.
        encoder: what the features of the frames are.
        text: what reads queries.
        device: the torch device.

    Raises:
        DataError: it does not read these features or these texts.
    """

    def __init__(
        self, stage: Stage, inputs: Features, encoder: FeatureSpec, text: TextFeaturizer, device: torch.device
    ) -> None:
        retriever: Any = stage.encoder
        config = retriever.config
        widths = {"frames": (config.video_dim, encoder.dim), "words": (config.query_dim, text.word_dim)}
        for what, (wanted, found) in widths.items():
            if wanted != found:
                raise DataError(
                    f"stage {stage.kind}: reads {what} of width {wanted}, the features have {found}. Pass a retriever "
                    "that was trained on features of this encoder."
                )
        self.windows = WindowEncoder(retriever, inputs.keep_last_frame, text, device)
        (shape,) = self.encode_windows([np.zeros((1, encoder.dim), np.float32)])
        self.sets = {name: RowSet(rows.shape[-1], lengths=True) for name, rows in shape.items()}

    def encode_windows(self, windows: Sequence[np.ndarray]) -> list[dict[str, np.ndarray]]:
        """The valid rows of each window."""
        return [
            {name: rows for name, rows in (("clips", one.clips), ("frames", one.frames)) if rows is not None}
            for one in self.windows.encode_windows(windows)
        ]

    def encode_text(self, text: str) -> Any:
        """The query as the retriever gives it."""
        return self.windows.encode_text(text)


def _gives_clips_of(first: TrainedModel, one: RetrieverEncoder | JointEncoder) -> bool:
    """Whether the first stage is the clip branch of a stage's retriever and reads the same: it has no other rows."""
    if not isinstance(one, RetrieverEncoder):
        return False
    theirs, its = first.windows, one.windows
    return theirs.keep_last == its.keep_last and is_clips_of(theirs.retriever, its.retriever)


def _encoder(
    stage: Stage, encoder: FeatureSpec, text: TextFeaturizer, device: torch.device
) -> RetrieverEncoder | JointEncoder | None:
    """What a stage reads of windows and of queries; None where it reads what the first stage gives."""
    match stage.inputs:
        case Features() as inputs:
            return RetrieverEncoder(stage, inputs, encoder, text, device)
        case JointRows() as inputs:
            return JointEncoder(encoder, text, inputs)
    return None


def fingerprint_of(first: str, pipeline: Pipeline) -> str:
    """sha256 of the first stage, and of the settings and the files of all stages.

    Args:
        first: the sha256 of the first stage.
        pipeline: the pipeline with the stages.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pipeline.write_stages(folder)
        write_hashes(folder)
        return digest({"first": first, "stages": hash_file(folder / HASHES)})
