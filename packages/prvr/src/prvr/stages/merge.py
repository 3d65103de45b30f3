"""Choosing the best candidates of each row of a score matrix, and putting their new scores in."""

from jaxtyping import Float, Int
from torch import Tensor

from prvr.errors import InputError


def expect_top_k(top_k: int, gallery: int) -> None:
    """Refuse more candidates than there are.

    Raises:
        InputError: `top_k` is out of range.
    """
    if not 1 <= top_k <= gallery:
        raise InputError(f"top_k: got {top_k}, expected 1 to {gallery}, the size of the gallery")


def best_columns(scores: Float[Tensor, "r n"], top_k: int) -> Int[Tensor, "r k"]:
    """The columns with the highest scores of each row, best first; of equal scores the smaller column comes first.

    Args:
        scores: higher is better.
        top_k: how many.

    Raises:
        InputError: `top_k` is out of range.

    Examples:
        >>> import torch
        >>> best_columns(torch.tensor([[0.5, 0.9, 0.5, 0.5]]), 3).tolist()
        [[1, 0, 2]]
    """
    expect_top_k(top_k, scores.shape[1])
    found = scores.topk(top_k, dim=1)
    # torch.topk takes any of equal scores: only rows with a tie at the border, or within, are sorted as a whole.
    last = found.values[:, -1:]
    tied = (scores == last).sum(1) > (found.values == last).sum(1)
    columns = found.indices.sort(dim=1).values
    order = scores.gather(1, columns).argsort(dim=1, descending=True, stable=True)
    columns = columns.gather(1, order)
    if bool(tied.any()):
        columns[tied] = scores[tied].argsort(dim=1, descending=True, stable=True)[:, :top_k]
    return columns


def merge_top_k(
    scores: Float[Tensor, "r n"], columns: Int[Tensor, "r k"], new: Float[Tensor, "r k"]
) -> Float[Tensor, "r n"]:
    """A copy of the scores with new ones for the candidates, which stay ahead of all others.

    Where a new score would fall to or below that of a column that was not re-scored, all new scores of the row are
    raised by one constant, so that the order among the candidates is that of their new scores and all others keep
    theirs. So recall beyond k is defined.

    Args:
        scores: higher is better.
        columns: as `best_columns` gives them.
        new: scores of these columns.

    Examples:
        >>> import torch
        >>> scores, best = torch.tensor([[0.1, 0.3, 0.2]]), torch.tensor([[1, 2]])
        >>> merge_top_k(scores, best, torch.tensor([[0.8, 0.9]]))
        tensor([[0.1000, 0.8000, 0.9000]])
        >>> merge_top_k(scores, best, torch.tensor([[-0.5, 0.0]])).argsort(descending=True)
        tensor([[2, 1, 0]])
    """
    if columns.shape[1] == scores.shape[1]:
        return scores.scatter(1, columns, new.to(scores))
    new = new.to(scores)
    rest = scores.scatter(1, columns, -float("inf")).amax(1, keepdim=True)
    gap = rest - new.amin(1, keepdim=True)
    below = (gap > 0) | ((gap == 0) & (scores.gather(1, columns).amin(1, keepdim=True) > rest))
    return scores.scatter(1, columns, new + (gap + 1).where(below, 0))
