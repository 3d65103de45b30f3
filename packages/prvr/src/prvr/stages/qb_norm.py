"""QB-Norm: scores of videos that answer everything are taken down, by how they answer a bank of other queries."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from prvr.errors import InputError

__all__ = ["QueryBank", "qb_norm"]


@dataclass(frozen=True)
class QueryBank:
    """What QB-Norm needs to know of a bank: two numbers per video, however many queries it has.

    Banks of the same gallery add up with `+`, so that their scores need not be held whole.

    Attributes:
        log_mass: `(v,)` log sum_b exp(beta P_bv).
        active: `(v,)` True for videos that some query of the bank ranks among its `top_k` highest.
        beta: inverse temperature.
    """

    log_mass: Float[Tensor, " v"]
    active: Bool[Tensor, " v"]
    beta: float

    @classmethod
    def of(cls, bank: Float[Tensor, "b v"], beta: float = 20.0, top_k: int = 1) -> "QueryBank":
        """The bank of some queries' scores.

        Args:
            bank: `(b, v)` P, scores of queries that are not those of the test (training texts) with the gallery.
            beta: inverse temperature.
            top_k: how many videos of each query are active.

        Raises:
            ValueError: no query, NaN, a `top_k` out of range or a beta that is not positive.
        """
        if len(bank) == 0:
            raise InputError("bank: got no query, expected at least one (training texts)")
        if not 1 <= top_k <= bank.shape[1]:
            raise InputError(f"top_k: got {top_k}, expected 1 to {bank.shape[1]}, the size of the gallery")
        if not 0 < beta < float("inf"):
            raise InputError(f"beta: got {beta}, expected a positive number")
        if bool(bank.isnan().any()):
            raise InputError(f"bank: scores are NaN in row {int(bank.isnan().any(1).int().argmax())}; leave it out")
        active = torch.zeros(bank.shape[1], dtype=torch.bool, device=bank.device)
        active[bank.topk(top_k, dim=1).indices.flatten()] = True
        return cls((beta * bank).logsumexp(0), active, beta)

    def __add__(self, other: "QueryBank") -> "QueryBank":
        if self.beta != other.beta or len(self.active) != len(other.active):
            raise InputError(
                f"banks of {len(self.active)} and {len(other.active)} videos with beta {self.beta} and {other.beta}: "
                "both must be equal"
            )
        return QueryBank(torch.logaddexp(self.log_mass, other.log_mass), self.active | other.active, self.beta)

    def normalise(self, scores: Float[Tensor, "q v"]) -> Float[Tensor, "q v"]:
        """The dynamic inverted softmax of scores with the same gallery; see `qb_norm`.

        Raises:
            ValueError: a gallery of another size.
        """
        if scores.shape[1] != len(self.active):
            raise InputError(f"scores have {scores.shape[1]} columns, the bank {len(self.active)}: must be one gallery")
        hub = self.active[scores.argmax(1)]
        return torch.where(hub[:, None], scores - self.log_mass.to(scores) / self.beta, scores)


def qb_norm(
    scores: Float[Tensor, "q v"], bank: Float[Tensor, "b v"], beta: float = 20.0, top_k: int = 1
) -> Float[Tensor, "q v"]:
    r"""The dynamic inverted softmax (QB-Norm: Bogolin et al., CVPR 2022), for any retriever.

    A query whose best video is also the best of some query of the bank is ranked by
    $\exp(\beta S_{qv}) / \sum_b \exp(\beta P_{bv})$; all others keep their scores. Here the logarithm of that over
    beta is returned, $S_{qv} - \frac1\beta \log \sum_b \exp(\beta P_{bv})$: the same order, without overflow or ties
    from underflow, and in the units of S. Rows are to be compared within themselves: a row that is normalised and one
    that is not are of different scales. For the other direction hand in both matrices the other way round,
    `qb_norm(scores.mT, bank_of_videos)` with the scores of training videos with the texts of the gallery.

    Args:
        scores: `(q, v)` S.
        bank: `(b, v)` P, scores of other queries (training texts, never those of the test) with the same gallery.
        beta: inverse temperature; 20 suits cosines.
        top_k: how many videos of each query of the bank count as its best.

    Raises:
        ValueError: see `QueryBank.of`, or galleries of different sizes.

    Example:
        >>> bank = torch.tensor([[0.9, 0.1, 0.1], [0.9, 0.1, 0.2]])  # the first video answers everything
        >>> qb_norm(torch.tensor([[0.6, 0.5, 0.1], [0.1, 0.5, 0.2]]), bank).argmax(1).tolist()
        [1, 1]
    """
    return QueryBank.of(bank, beta, top_k).normalise(scores)
