"""Features of words by a language model, as in the public feature files (RoBERTa); frames have no such features."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float32

from prvr.errors import InputError
from prvr.video.encoders import ENCODERS, EncoderFamily, Identity
from prvr.video.hub import (
    explained,
    hash_model,
    hash_tokenizer,
    load_model,
    load_tokenizer,
    most_tokens,
    read_config,
    token_ids,
)


class WordModel:
    """Hidden states of the last layer: one row for each token of a text, its first and last special tokens included.

    Args:
        name: on the hub, for example `FacebookAI/roberta-large`, or a folder.
        device: a torch device.

    Raises:
        DataError: there is no such model.
        prvr.MissingExtraError: transformers is not installed.
    """

    def __init__(self, name: str, device: Any = "cpu") -> None:
        self._device = torch.device(device)
        self._model, self._tokenizer = load_model(name, self._device), load_tokenizer(name)
        config: Any = self._model.config
        model_config = read_config(name)
        with explained(name):
            self._most = most_tokens(config)
            self.words("a")
        cut = hash_tokenizer(self._tokenizer)
        weights = hash_model(self._model, model_config)
        self.identity = Identity(name, weights, f"tokens {cut[:16]}, at most {self._most}")
        self.word_dim, self.joint_dim = int(config.hidden_size), 0

    def words(self, text: str) -> Float32[np.ndarray, "w e"]:
        """The hidden states of the tokens of a text."""
        ids = token_ids(self._tokenizer, text, self._most)
        with torch.inference_mode():
            output = self._model(input_ids=torch.tensor([ids], device=self._device))
            return output.last_hidden_state[0].float().cpu().numpy()

    def sentence(self, text: str) -> Float32[np.ndarray, " d"]:
        """Raises: a language model has no joint space with frames.

        Raises:
            ValueError: always.
        """
        raise InputError(
            f"{self.identity.name} has no space in common with frames: no vector of a text can be compared with one. "
            "Zero-shot search needs the text side of the encoder of the frames (CLIP, SigLIP, toy)."
        )


for _kind, _title in (
    ("roberta", "RoBERTa"),
    ("xlm-roberta", "XLM-RoBERTa"),
    ("mpnet", "MPNet"),
    ("bert", "BERT"),
    ("distilbert", "DistilBERT"),
):
    ENCODERS.register(_kind, EncoderFamily(text=WordModel), _title)
