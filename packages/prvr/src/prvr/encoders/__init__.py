"""Encoders of frames and texts, by name: which families there are, and how one is opened; and the features they make.

What an encoder offers is in `prvr.encoders.interface`; encoders that others wrote are opened by `prvr.encoders.own`. A
family registers itself in `ENCODERS`; nothing else has to know of it.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, TypeVar

from prvr.config import Registry
from prvr.encoders.entries import FeatureSpec, VideoEntry, VideoFeatures
from prvr.encoders.hub import (
    DEFAULT_ENCODER,
    DownloadNeeded,
    HubUnreachable,
    download_size,
    has_both_sides,
    import_transformers,
    local_models,
    locate,
    read_config,
)
from prvr.encoders.interface import (
    ClipEncoder,
    ClipWindow,
    Encoder,
    FrameEncoder,
    Identity,
    TextFeaturizer,
    VideoEncoder,
    check_joint,
    encode_pictures,
)
from prvr.encoders.own import is_own, open_frames, open_text, own_class
from prvr.errors import DataError

__all__ = [
    "DEFAULT_ENCODER",
    "ENCODERS",
    "OTHER",
    "ClipEncoder",
    "ClipWindow",
    "DownloadNeeded",
    "Encoder",
    "EncoderFamily",
    "FeatureSpec",
    "FrameEncoder",
    "HubUnreachable",
    "Identity",
    "TextFeaturizer",
    "VideoEncoder",
    "VideoEntry",
    "VideoFeatures",
    "check_joint",
    "choose_encoder",
    "download_size",
    "encode_pictures",
    "open_encoder",
    "open_featurizer",
]

_T = TypeVar("_T")
OTHER, SENTENCE_TRANSFORMERS = "transformers", "sentence-transformers"


@dataclass(frozen=True)
class EncoderFamily:
    """A family of models that `--encoder` and `--text` accept.

    Args:
        text: opens the text side of a model, from its name or folder and a device of torch; None where it has none.
        frames: opens the encoder of frames or clips in the same way; None where the family has none.
        bundled: whether it is one model that comes with prvr, named as the family is.
        prefixed: whether its models are named FAMILY:MODEL, because MODEL alone is of another family.
    """

    text: Callable[[str, Any], TextFeaturizer] | None = None
    frames: Callable[[str, Any], VideoEncoder] | None = None
    bundled: bool = False
    prefixed: bool = False


ENCODERS: Registry[EncoderFamily] = Registry("encoder")
"""The families by name: of a bundled model, the prefix of names, or the `model_type` in the `config.json` of a model of
transformers."""


def open_encoder(
    name: str | Identity, device: Any = "cpu", *, download: bool = False, tried: Collection[Identity] = ()
) -> VideoEncoder:
    """Opens an encoder of frames or clips.

    Args:
        name: `toy`, a folder of `save_pretrained`, or a name on the Hugging Face hub
            (`openai/clip-vit-base-patch32`, `google/siglip-base-patch16-224`); one of these names of a CLIP after
            `pixels:`, for the pictures that it reads; the short name of an encoder that an installed package brings; or
            `MODULE:CLASS`, a class that is imported and called. What a file says about an encoder is an `Identity`, and
            no module is imported for one.
        device: torch device of the model.
        download: let the model be downloaded from the Hugging Face hub if it is not on this computer.
        tried: a `MODULE:CLASS` that is one of these is not tried again on two pictures.

    Raises:
        prvr.encoders.DownloadNeeded: it is not on this computer, and `download` is False.
        DataError: there is no such model, or it has no encoder of frames; or an `Identity` names a module.
        prvr.MissingExtraError: transformers is not installed.
    """
    return _opened(name, lambda family: family.frames, device, download, tried)


def open_featurizer(name: str | Identity, device: Any = "cpu", *, download: bool = False) -> TextFeaturizer:
    """Opens the text side of a model.

    Args:
        name: as in [open_encoder][prvr.encoders.open_encoder], or a RoBERTa (or BERT) of either place, which
            gives words only.
        device: torch device of the model.
        download: as in [open_encoder][prvr.encoders.open_encoder].

    Raises:
        prvr.encoders.DownloadNeeded: it is not on this computer, and `download` is False.
        DataError: there is no such model, or it has no text side; or an `Identity` names a module.
        prvr.MissingExtraError: transformers is not installed.
    """
    return _opened(name, lambda family: family.text, device, download)


def _opened(
    encoder: str | Identity,
    side: Callable[[EncoderFamily], Callable[[str, Any], _T] | None],
    device: Any,
    download: bool,
    tried: Collection[Identity] = (),
) -> _T:
    """One side of a model; that of a folder is named by its absolute path, so that it is found from everywhere."""
    name = encoder.name if isinstance(encoder, Identity) else encoder.strip()
    family, colon, model = name.partition(":")
    if not (colon and family in ENCODERS and ENCODERS[family].part.prefixed):
        family, colon, model = "", "", name
    bundled = model in ENCODERS and ENCODERS[model].part.bundled
    if not (family or bundled) and is_own(name):
        make = own_class(name, recorded=isinstance(encoder, Identity))
        make_side = side(EncoderFamily(text=partial(open_text, make), frames=partial(open_frames, make, tried=tried)))
        assert make_side is not None
        return make_side(name, device)
    folder = Path(model).expanduser()
    place = str(folder.resolve()) if folder.is_dir() and not bundled else model
    if not bundled:
        import_transformers()
        locate(place, download)
    kind = family or (model if bundled else str(read_config(place)["model_type"]))
    entry = kind if kind in ENCODERS else OTHER if has_both_sides(place) else ""
    if not entry and (locate(place) / "modules.json").is_file():
        entry = SENTENCE_TRANSFORMERS
    make_side = side(ENCODERS[entry].part) if entry else None
    if make_side is None:
        families = {entry.name: entry.part for entry in ENCODERS if entry.name != OTHER}
        names = [name for name, part in families.items() if not (part.bundled or part.prefixed) and side(part)]
        raise DataError(
            f"{place}: a model of type {kind!r}. Expected one of {', '.join(names)}, or another model of "
            "transformers with features of images and of texts."
        )
    return make_side(family + colon + place, device)


def choose_encoder() -> str:
    """The encoder of videos for which none is named.

    It is the CLIP or SigLIP of the Hugging Face hub's cache that was last used, or `DEFAULT_ENCODER` where there is
    none.
    """
    joint = (name for name, kind in local_models().items() if kind in ("clip", "siglip"))
    return next(joint, DEFAULT_ENCODER)


for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
