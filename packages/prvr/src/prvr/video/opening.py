"""Which encoder a name stands for. Those of transformers are imported when they are asked for."""

from typing import Any

from prvr.video.encoders import EMBEDDED, FrameEncoder, TextFeaturizer

__all__ = ["open_encoder", "open_featurizer"]


def open_encoder(name: str, device: Any = "cpu") -> FrameEncoder:
    """The encoder of frames that a name stands for.

    Args:
        name: `embedded`, a folder of `save_pretrained`, or a name on the Hugging Face hub
            (`openai/clip-vit-base-patch32`, `google/siglip-base-patch16-224`).
        device: of torch.

    Raises:
        DataError: no such model, or not a CLIP or SigLIP.
        prvr.MissingExtraError: transformers is not installed.
    """
    if name == EMBEDDED:
        from prvr.video.embedded import EmbeddedEncoder

        return EmbeddedEncoder(device)
    from prvr.video.clip import ClipEncoder, load_clip

    return ClipEncoder(load_clip(name, device))


def open_featurizer(name: str, device: Any = "cpu") -> TextFeaturizer:
    """The text side that a name stands for.

    Args:
        name: as in [open_encoder][prvr.video.opening.open_encoder]: the model's own text side; or a RoBERTa (or BERT)
            of either place, which gives words only.
        device: of torch.

    Raises:
        DataError: no such model, or one without a text side.
        prvr.MissingExtraError: transformers is not installed.
    """
    if name == EMBEDDED:
        from prvr.video.embedded import EmbeddedText

        return EmbeddedText()
    from prvr.video.pretrained import read_config
    from prvr.video.words import WORD_MODELS, WordModel

    if read_config(name).get("model_type") in WORD_MODELS:
        return WordModel(name, device)
    from prvr.video.clip import ClipText, load_clip

    return ClipText(load_clip(name, device))
