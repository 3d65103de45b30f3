"""Adding something to the best few of each row of a score matrix."""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

__all__ = ["add_top_k"]


def add_top_k(
    scores: Float[Tensor, "q v"],
    probabilities: Callable[[slice, Tensor], Tensor],
    top_k: int,
    weight: float,
    initial: Tensor | None,
    batch_size: int,
) -> Float[Tensor, "q v"]:
    """A copy of the scores with `weight` times a probability added to the `top_k` highest of each row.

    Args:
        scores: higher is better.
        probabilities: (rows, columns `(r, k)` in descending order of score) -> `(r, k)`.
        top_k: k.
        weight: of the probabilities.
        initial: `(q, k)` or None, for its shape.
        batch_size: rows at a time.

    Raises:
        ValueError: a number out of range, or `initial` of another shape.

    Example:
        >>> import torch
        >>> scores, second = torch.tensor([[0.1, 0.3, 0.2]]), torch.tensor([[0.0, 1.0]])
        >>> add_top_k(scores, lambda rows, columns: second, top_k=2, weight=0.5, initial=None, batch_size=1)
        tensor([[0.1000, 0.3000, 0.7000]])
    """
    queries, gallery = scores.shape
    if not 1 <= top_k <= gallery:
        raise ValueError(f"top_k: got {top_k}, expected 1 to {gallery}, the size of the gallery")
    if batch_size < 1:
        raise ValueError(f"batch_size: got {batch_size}, expected at least 1")
    if not 0 <= weight < float("inf"):
        raise ValueError(f"weight: got {weight}, expected a finite number of at least 0")
    if initial is not None and initial.shape != (queries, top_k):
        raise ValueError(
            f"initial: got shape {tuple(initial.shape)}, expected {(queries, top_k)}, one number for each candidate"
        )
    combined = scores.clone()
    for first in range(0, queries, batch_size):
        rows = slice(first, min(first + batch_size, queries))
        chosen = scores[rows].topk(top_k, dim=1).indices
        added = weight * probabilities(rows, chosen).to(combined)
        combined[rows] = combined[rows].scatter_add(1, chosen, added)
    return combined
