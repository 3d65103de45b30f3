"""The query-candidate attention denoising network, for candidates of either kind."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from regdiff.timestep import sincos_table

#: (decoded (b n), attention weights (b n)) -> the output (b n).
Finish = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class StepCodes:
    """Proj(k) of all K steps, `(K, d)` each, as query, key and value projections see it."""

    query: Float[Tensor, "k d"]
    key: Float[Tensor, "k d"]
    value: Float[Tensor, "k d"]


class PreparedPairs(NamedTuple):
    """All that the denoiser can know of queries and candidates before it knows x and the step.

    Attributes:
        queries: `(b, m, d)` projected queries, one for all candidates (m = 1) or one for each (m = n).
        keys: `(b, n, d)` projected candidates.
        candidates: `(b, n, d)` candidates as they are; their values are projected after the weighted mean.
        products: `(b, n)` of queries and keys.
        decoded: `(b, n, 2d)` the candidates' share of the decoder's first layer.
        codes: the codes of the steps.
    """

    queries: Float[Tensor, "b m d"]
    keys: Float[Tensor, "b n d"]
    candidates: Float[Tensor, "b n d"]
    products: Float[Tensor, "b n"]
    decoded: Float[Tensor, "b n h"]
    codes: StepCodes


def decoded_alone(decoded: Float[Tensor, "b n"], weights: Float[Tensor, "b n"]) -> Float[Tensor, "b n"]:
    """The output is what the decoder says (eq. 6 and the text below it)."""
    return decoded


class CandidateDenoiser(nn.Module):
    r"""Scores of n candidates for a query, given the noised distribution x over them (DiffusionRet, eq. 5 and 6).

    With te = Proj(k) the code of the step, q the query and c_n the candidates:
    p = Softmax_n(<W_q(q + te), W_k(c_n + te)> + x_n),  E = sum_n p_n W_v(c_n + te),  s_n = MLP([E; c_n]).
    The candidates have no order: permuting them and x permutes the output.

    What does not depend on x and the step is computed once by `prepare`, however many steps follow; the rest costs
    O(n d) per step instead of O(n d^2): linear maps are applied to the weighted mean alone, since the weights add up to
    one.

    Args:
        width: d.
        steps: K, the number of steps that have a code.
        merge: Applied to E; None = nothing.
        finish: Makes the output of decoded scores and attention weights.

    Examples:
        >>> import torch
        >>> denoiser = CandidateDenoiser(width=8, steps=10)
        >>> text, videos = torch.randn(2, 1, 8), torch.randn(2, 5, 8)
        >>> denoiser(torch.zeros(2, 5), torch.tensor([0, 9]), denoiser.prepare(text, videos)).shape
        torch.Size([2, 5])
    """

    time_table: Tensor

    def __init__(
        self, width: int, steps: int, *, merge: nn.Module | None = None, finish: Finish = decoded_alone
    ) -> None:
        super().__init__()
        self.width = width
        self.finish = finish
        self.register_buffer("time_table", sincos_table(steps, width).to(torch.get_default_dtype()), persistent=False)
        self.time_in = nn.Linear(width, width)
        self.time_out = nn.Linear(width, width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.merge = nn.Identity() if merge is None else merge
        self.decoder_in = nn.Linear(2 * width, 2 * width)
        self.decoder_out = nn.Linear(2 * width, 1)

    def prepare(self, queries: Float[Tensor, "b m d"], candidates: Float[Tensor, "b n d"]) -> PreparedPairs:
        """Everything before x and the step.

        Args:
            queries: `(b, m, d)`, m = 1 or m = n.
            candidates: `(b, n, d)`.
        """
        projected, keys = self.query(queries), self.key(candidates)
        decoded = F.linear(candidates, self.decoder_in.weight[:, self.width :], self.decoder_in.bias)
        time = self.time_out(F.silu(self.time_in(self.time_table)))
        codes = StepCodes(self.query(time), self.key(time), self.value(time))
        return PreparedPairs(projected, keys, candidates, (projected * keys).sum(-1), decoded, codes)

    def forward(
        self, x: Float[Tensor, "b n"], timestep: Int[Tensor, "b"], pairs: PreparedPairs
    ) -> Float[Tensor, "b n"]:
        """Scores of the candidates.

        Args:
            x: `(b, n)` the noised distribution.
            timestep: `(b,)` in [0, K).
            pairs: From `prepare`.
        """
        codes = pairs.codes
        # <q + a, k + b> without <a, b>, which is the same for every candidate: no softmax sees it.
        logits = pairs.products + (pairs.keys @ codes.query[timestep][..., None]).squeeze(-1)
        logits = logits + (pairs.queries @ codes.key[timestep][..., None]).squeeze(-1)
        weights = (logits + x).softmax(-1)
        mean = (weights[:, None] @ pairs.candidates)[:, 0]
        attended = self.merge(self.value(mean) + codes.value[timestep])
        hidden = pairs.decoded + F.linear(attended, self.decoder_in.weight[:, : self.width])[:, None]
        return self.finish(self.decoder_out(hidden.relu_()).squeeze(-1), weights)
