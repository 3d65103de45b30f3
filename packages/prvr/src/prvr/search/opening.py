"""Which model a name stands for."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from prvr.errors import InputError
from prvr.models import Retriever, clips_alone
from prvr.search.joint import JointModel, MomentModel
from prvr.search.model import TRAINING_FREE, UNTRAINED, SearchModel
from prvr.search.pipeline import PipelineModel
from prvr.search.trained import open_trained, text_encoder
from prvr.stages import Pipeline, RetrieverSettings, RetrieverStage
from prvr.systems import System, open_system
from prvr.video import FeatureSpec, TextFeaturizer, open_featurizer

CANDIDATES = 200
"""Videos that clips find for the words of a retriever to re-rank, see `open_model`."""


def open_model(
    name: str | Path,
    encoder: FeatureSpec,
    device: Any = "cpu",
    text: TextFeaturizer | None = None,
    stages: Sequence[Mapping[str, Any]] = (),
) -> SearchModel:
    """The model that a name stands for, for features of an encoder.

    Args:
        name: a run of `prvr train` (its best epoch), a folder of `save_pretrained`, or `zero-shot`: the encoder alone,
            the cosine of the sentence with the frame that it fits best; or `training-free`: with the moment that it
            fits best, see `prvr.segments`. Or a pipeline, see `prvr.systems.open_system`.
            Of a retriever with `frame_query: words` the clips are searched, and its score with words and frames
            replaces that of the best `CANDIDATES`.
        encoder: what the features are.
        device: the torch device.
        text: what reads queries; default: the text side of the encoder.
        stages: put after those that the name stands for, see `prvr.systems.open_system`.

    Raises:
        DataError: there is no such model, or it does not read these features or these texts.
        prvr.InputError: stages that cannot be used.
        prvr.MissingExtraError: transformers is needed and not installed.

    Examples:
        >>> model = open_model("runs/hybrid-1", library.features().spec)  # doctest: +SKIP
        >>> model.encode_texts(["a person opens the fridge"]).shape  # doctest: +SKIP
        (1, 384)
    """
    if (kind := str(name)) in UNTRAINED:
        if stages:
            stage = kind.replace("-", "_")
            raise InputError(f"{kind} alone has no stages. Pass a trained model, and {stage} as its stage.")
        joint = JointModel(encoder, text or open_featurizer(encoder.encoder, device), device)
        return MomentModel(joint) if kind == TRAINING_FREE else joint
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
    if not isinstance(first, Retriever) or first.frame_query is None or first.frame_query.pools:
        return system
    unfit = [stage.kind for stage in stages if stage.encoder is None or stage.top_k is None]
    if unfit:
        raise InputError(
            f"{system.folder}: compares words with frames, so an index finds {CANDIDATES} videos by its clips, which "
            f"its words re-rank. A stage of kind {unfit[0]} reads the first stage or re-scores everything: leave it "
            "out, give it a top_k, or use a retriever with model.frame_query=pooled or pooled_words"
        )
    keep = system.config.data.keep_last_frame if system.config else True
    settings = RetrieverSettings(top_k=CANDIDATES, combine="replace", keep_last_frame=keep)
    return replace(system, pipeline=Pipeline(clips_alone(first), [RetrieverStage(first, settings), *stages]))
