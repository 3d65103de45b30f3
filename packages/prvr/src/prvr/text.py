"""Embeddings of queries, with or without an embedding for each word."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from prvr.errors import InputError
from prvr.types import cat_padded, moved, tensors_of, with_tensors

__all__ = ["TextEmbedding", "Texts", "cat_texts", "sentences"]


@dataclass(frozen=True)
class TextEmbedding:
    """Embeddings of queries and of each of their words.

    It is indexed, split and moved like a `(q, d)` tensor of embeddings.

    Args:
        sentence: `(q, d)` one vector per query.
        words: `(q, w, d)` word embeddings.
        mask: `(q, w)` True = valid.
        weights: `(q, w)` weight of each word; those of the valid words of a query add up to 1.

    Examples:
        >>> text = TextEmbedding(torch.ones(3, 4), torch.ones(3, 5, 4), torch.ones(3, 5, dtype=torch.bool),
        ...     torch.full((3, 5), 0.2))
        >>> len(text), text[torch.tensor([2, 0])].words.shape, [len(part) for part in text.split(2)]
        (3, torch.Size([2, 5, 4]), [2, 1])
    """

    sentence: Float[Tensor, "q d"]
    words: Float[Tensor, "q w d"]
    mask: Bool[Tensor, "q w"]
    weights: Float[Tensor, "q w"]

    def __len__(self) -> int:
        return len(self.sentence)

    def __getitem__(self, rows: slice | Int[Tensor, " n"]) -> "TextEmbedding":
        return with_tensors(self, {name: tensor[rows] for name, tensor in tensors_of(self).items()})

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self.sentence.device

    def split(self, size: int) -> "list[TextEmbedding]":
        """Parts of `size` queries; the last may be smaller."""
        return [self[start : start + size] for start in range(0, len(self), size)]

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "TextEmbedding":
        """Copy on `device`, floating tensors in `dtype`."""
        return moved(self, device, dtype)


Texts = Tensor | TextEmbedding
"""Embeddings of queries: `(q, d)`, or a `TextEmbedding` that keeps the words."""


def cat_texts(parts: Sequence[Texts]) -> Texts:
    """Join embeddings along queries; words are padded to the longest part.

    Raises:
        ValueError: some are `TextEmbedding`s and some are tensors.

    Examples:
        >>> cat_texts([torch.zeros(2, 4), torch.zeros(1, 4)]).shape
        torch.Size([3, 4])
    """
    plain = [part for part in parts if isinstance(part, Tensor)]
    kept = [part for part in parts if isinstance(part, TextEmbedding)]
    if plain and kept:
        raise InputError(f"{len(plain)} of {len(parts)} texts are `(q, d)`, the others keep their words: use one kind")
    if not kept:
        return torch.cat(plain)
    return TextEmbedding(*(cat_padded([getattr(part, f.name) for part in kept]) for f in fields(TextEmbedding)))


def sentences(text: Texts) -> Float[Tensor, "q d"]:
    """One vector per query.

    Examples:
        >>> sentences(torch.zeros(2, 4)).shape
        torch.Size([2, 4])
    """
    return text.sentence if isinstance(text, TextEmbedding) else text
