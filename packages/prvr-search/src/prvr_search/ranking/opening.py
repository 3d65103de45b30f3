"""Which model a name stands for."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prvr.encoders import FeatureSpec, TextFeaturizer, open_featurizer
from prvr.errors import InputError
from prvr_search.vectors.joint import JointModel, MomentModel
from prvr_search.vectors.model import TRAINING_FREE, UNTRAINED, SearchModel


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
            the cosine of the sentence with the frame or mean of frames that it fits best; or `training-free`: with the
            moment that it fits best, see `prvr.segments`. Or a pipeline, see `prvr.systems.open_system`.
            Of a retriever with `frame_query: words` the clips are searched, and its score with words and frames
            replaces that of the best 200.
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
    from prvr_search.ranking.pipeline import (
        open_pipeline,  # here, since its parts take longer to import than all others
    )

    return open_pipeline(name, encoder, device, text, stages)
