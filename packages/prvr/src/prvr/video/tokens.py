"""Texts to numbers of tokens."""

from typing import Any

from prvr.errors import InputError


def token_ids(tokenizer: Any, text: str, most: int) -> list[int]:
    """The tokens of a text with those that begin and end it.

    Args:
        tokenizer: of transformers.
        text: with at least one token of its own.
        most: how many the model reads.

    Raises:
        ValueError: the text is empty, or too long.
    """
    if not text.strip():
        raise InputError(f"no word in {text[:40]!r}. Describe what is to be seen, for example 'a dog catches a ball'.")
    ids = list(tokenizer(text, truncation=False, verbose=False)["input_ids"])
    if len(ids) > most:
        raise InputError(
            f"{len(ids)} tokens in {text[:40]!r}..., the model reads at most {most}. Describe one moment briefly."
        )
    return ids
