"""Which model a name stands for."""

from pathlib import Path
from typing import Any

from prvr.encoders import FeatureSpec, TextFeaturizer, open_featurizer
from prvr_search.vectors.joint import JointModel, MomentModel
from prvr_search.vectors.model import TRAINING_FREE, UNTRAINED, SearchModel


def open_model(
    name: str | Path, encoder: FeatureSpec, device: Any = "cpu", text: TextFeaturizer | None = None
) -> SearchModel:
    """The model that a name stands for, for features of an encoder.

    Args:
        name: a run of `prvr train` (its best epoch), a folder of `save_pretrained`, or `toy-world`, which ships with
            prvr; `zero-shot`: the encoder alone, the cosine of the sentence with the frame or mean of frames that it
            fits best; or `training-free`: with the moment that it fits best, see `prvr.segments`.
            Where a retriever compares words with frames, or joins a kernel path with blocks, its clips, or the path,
            find 200 videos, whose order is that of its whole score.
        encoder: what the features are.
        device: the torch device.
        text: what reads queries; default: the text side of the encoder.

    Raises:
        DataError: there is no such model, or it does not read these features or these texts.
        prvr.InputError: it is a pipeline with stages, which `prvr evaluate` runs.
        prvr.MissingExtraError: transformers is needed and not installed.

    Examples:
        >>> model = open_model("runs/hybrid-1", library.features().spec)  # doctest: +SKIP
        >>> model.encode_texts(["a person opens the fridge"]).shape  # doctest: +SKIP
        (1, 384)
    """
    if (kind := str(name)) in UNTRAINED:
        joint = JointModel(encoder, text or open_featurizer(encoder.encoder, device), device)
        return MomentModel(joint) if kind == TRAINING_FREE else joint
    from prvr_search.vectors.trained import open_trained  # here, since its parts take longer to import than all others

    return open_trained(name, encoder, device, text)
