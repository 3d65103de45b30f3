"""Words by a language model, as the public features have them (RoBERTa): no space in common with frames."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float32

from prvr.errors import InputError
from prvr.video.encoders import Identity
from prvr.video.pretrained import explained, hash_model, hash_tokenizer, load_model, load_tokenizer, read_config
from prvr.video.tokens import token_ids

WORD_MODELS = ("roberta", "xlm-roberta", "mpnet", "bert", "distilbert")
_COUNT_FROM_PAD = WORD_MODELS[:3]  # the first token has the position after the number of the token that fills up


class WordModel:
    """Hidden states of the last layer, one row for each token of the text, those that begin and end it included.

    Args:
        name: on the hub, for example `FacebookAI/roberta-large`, or a folder.
        device: of torch.

    Raises:
        DataError: there is no such model.
        prvr.MissingExtraError: transformers is not installed.
    """

    def __init__(self, name: str, device: Any = "cpu") -> None:
        self._device = torch.device(device)
        self._model, self._tokenizer = load_model(name, self._device), load_tokenizer(name)
        config: Any = self._model.config
        found = read_config(name)
        with explained(name):
            kept = config.pad_token_id + 1 if found["model_type"] in _COUNT_FROM_PAD else 0
            self._most = int(config.max_position_embeddings) - kept
            self.words("a")
        cut = hash_tokenizer(self._tokenizer)
        weights = hash_model(self._model, found)
        self.identity = Identity(name, weights, f"tokens {cut[:16]}, at most {self._most}")
        self.word_dim, self.joint_dim = int(config.hidden_size), 0

    def words(self, text: str) -> Float32[np.ndarray, "w e"]:
        """What a retriever reads of a query."""
        ids = token_ids(self._tokenizer, text, self._most)
        with torch.inference_mode():
            found = self._model(input_ids=torch.tensor([ids], device=self._device))
            return found.last_hidden_state[0].float().cpu().numpy()

    def sentence(self, text: str) -> Float32[np.ndarray, " d"]:
        """There is none.

        Raises:
            ValueError: always.
        """
        raise InputError(
            f"{self.identity.name} has no space in common with frames: no vector of a text can be compared with one. "
            "Zero-shot search needs the text side of the encoder of the frames (CLIP, SigLIP, embedded)."
        )
