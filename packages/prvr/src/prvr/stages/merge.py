"""Placing the best few of each row of a score matrix anew."""

from collections.abc import Callable
from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor

from prvr.errors import InputError

__all__ = ["add_top_k", "expect_top_k", "placed"]


def placed(
    scores: Float[Tensor, "q v"],
    chosen: Int[Tensor, "q k"],
    probabilities: Float[Tensor, "q k"],
    weight: float,
    combine: Literal["add", "alone"] = "add",
) -> Float[Tensor, "q v"]:
    """A copy of the scores in which the chosen candidates stand where their probabilities put them.

    Args:
        scores: higher is better.
        chosen: the columns with the k highest scores of each row, in descending order.
        probabilities: of the chosen.
        weight: of the probabilities.
        combine: "add": weight times the probability is added to the score; "alone": it is added to the highest score of
            the row instead, so that the retriever's order of the chosen does not count.

    Example:
        >>> import torch
        >>> scores, chosen, p = torch.tensor([[0.1, 0.3, 0.2]]), torch.tensor([[1, 2]]), torch.tensor([[0.5, 0.5]])
        >>> placed(scores, chosen, p, 1.0), placed(scores, chosen, p, 1.0, "alone")
        (tensor([[0.1000, 0.8000, 0.7000]]), tensor([[0.1000, 0.8000, 0.8000]]))
    """
    base = scores.gather(1, chosen)
    if combine == "alone":
        base = base[:, :1].expand_as(base)
    return scores.scatter(1, chosen, base + weight * probabilities.to(base))


def expect_top_k(top_k: int, gallery: int) -> None:
    """Refuse more candidates than there are.

    Raises:
        ValueError: out of range.
    """
    if not 1 <= top_k <= gallery:
        raise InputError(f"top_k: got {top_k}, expected 1 to {gallery}, the size of the gallery")


def add_top_k(
    scores: Float[Tensor, "q v"],
    probabilities: Callable[[slice, Tensor], Tensor],
    top_k: int,
    weight: float,
    initial: Tensor | None,
    batch_size: int,
    combine: Literal["add", "alone"] = "add",
) -> Float[Tensor, "q v"]:
    """A copy of the scores with `weight` times a probability added to the `top_k` highest of each row.

    Args:
        scores: higher is better.
        probabilities: (rows, columns `(r, k)` in descending order of score) -> `(r, k)`.
        top_k: k.
        weight: of the probabilities.
        initial: `(q, k)` or None, for its shape.
        batch_size: rows at a time.
        combine: see `placed`.

    Raises:
        ValueError: a number out of range, or `initial` of another shape.

    Example:
        >>> import torch
        >>> scores, second = torch.tensor([[0.1, 0.3, 0.2]]), torch.tensor([[0.0, 1.0]])
        >>> add_top_k(scores, lambda rows, columns: second, top_k=2, weight=0.5, initial=None, batch_size=1)
        tensor([[0.1000, 0.3000, 0.7000]])
    """
    queries, gallery = scores.shape
    expect_top_k(top_k, gallery)
    if batch_size < 1:
        raise InputError(f"batch_size: got {batch_size}, expected at least 1")
    if not 0 <= weight < float("inf"):
        raise InputError(f"weight: got {weight}, expected a finite number of at least 0")
    if initial is not None and initial.shape != (queries, top_k):
        raise InputError(
            f"initial: got shape {tuple(initial.shape)}, expected {(queries, top_k)}, one number for each candidate"
        )
    combined = scores.clone()
    for first in range(0, queries, batch_size):
        rows = slice(first, min(first + batch_size, queries))
        chosen = scores[rows].topk(top_k, dim=1).indices
        combined[rows] = placed(scores[rows], chosen, probabilities(rows, chosen), weight, combine)
    return combined
