"""Which candidates a re-ranker is trained on: the right one and those that the retriever takes for it."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from prvr.errors import InputError

__all__ = ["hard_candidates"]


def hard_candidates(
    scores: Float[Tensor, "q v"],
    positives: Bool[Tensor, "q v"],
    num: int,
    generator: torch.Generator | None = None,
) -> tuple[Int[Tensor, "q n"], Bool[Tensor, "q n"]]:
    """One right candidate of each row and its `num - 1` highest-scored wrong ones, for `CandidateReranker.loss`.

    That the right one stands first gives nothing away: the network knows no order.

    Args:
        scores: `(q, v)` of the retriever as it is now.
        positives: `(q, v)` which are right, at least one per row; where there are several, one is drawn.
        num: n.
        generator: source of the draws, on the device of the scores; None = the global one.

    Returns:
        Columns `(q, n)`, the right one first, and which of them is right.

    Raises:
        ValueError: a row without a right candidate or with too few wrong ones.

    Example:
        >>> scores, own = torch.tensor([[0.9, 0.1, 0.5], [0.2, 0.3, 0.1]]), torch.eye(2, 3, dtype=torch.bool)
        >>> hard_candidates(scores, own, num=2)[0].tolist()
        [[0, 2], [1, 0]]
    """
    wrong = int((~positives).sum(1).min())
    if not 1 <= num <= wrong + 1:
        raise InputError(f"num: got {num}, expected 1 to {wrong + 1}: a row has no more than {wrong} wrong candidates")
    found = positives.any(1)
    if not bool(found.all()):
        raise InputError(f"positives: row {int(found.int().argmin())} has no right candidate: leave it out")
    draw = torch.rand(scores.shape, device=scores.device, generator=generator).masked_fill(~positives, -1.0)
    hardest = scores.masked_fill(positives, -torch.inf).topk(num - 1, dim=1).indices
    columns = torch.cat([draw.argmax(1, keepdim=True), hardest], 1)
    return columns, positives.gather(1, columns)
