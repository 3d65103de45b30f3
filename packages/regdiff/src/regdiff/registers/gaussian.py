"""Gaussians over a sequence: generalised pooling, the prior sampler (PVS) and the textual perturbation (TPS)."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regdiff.masks import masked, readable
from regdiff.noise import standard_normal
from regdiff.registers.records import register_record
from regdiff.timestep import sincos_table

#: What `GeneralizedPooling` divides its scores of the ranks by: 0.1 makes the weights peaked (Chen et al. 2021).
RANK_TEMPERATURE = 0.1

#: Added to the variance of a text before it is normalised, as in LayerNorm.
TEXT_EPS = 1e-5


@dataclass(frozen=True)
class Gaussian:
    """A diagonal Gaussian per row.

    Attributes:
        mean: Means.
        logvar: Logarithms of the variances.

    Examples:
        >>> import torch
        >>> standard = Gaussian(torch.zeros(2, 3), torch.zeros(2, 3))
        >>> standard.kl().item(), standard.sample(5).shape
        (0.0, torch.Size([2, 5, 3]))
    """

    mean: Float[Tensor, "b d"]
    logvar: Float[Tensor, "b d"]

    @property
    def std(self) -> Float[Tensor, "b d"]:
        """Standard deviations."""
        return torch.exp(0.5 * self.logvar)

    def kl(self) -> Float[Tensor, ""]:
        """KL(self || N(0, I)) = 1/2 sum_d (mean^2 + exp(logvar) - 1 - logvar), averaged over rows."""
        return 0.5 * (self.mean**2 + self.logvar.exp() - 1 - self.logvar).sum(-1).mean()

    def sample(
        self, n: int, generator: torch.Generator | None = None, noise: Float[Tensor, "#b n d"] | None = None
    ) -> Float[Tensor, "b n d"]:
        """Draw n reparameterised samples per row, mean + std * eps; gradients reach both mean and logvar.

        Args:
            n: Number of samples.
            generator: Source of the draws.
            noise: eps itself, instead of a draw.
        """
        if noise is None:
            noise = standard_normal((self.mean.shape[0], n, self.mean.shape[-1]), self.mean, generator)
        return self.mean.unsqueeze(1) + self.std.unsqueeze(1) * noise


register_record(Gaussian)


class GeneralizedPooling(nn.Module):
    r"""Pool a sequence by learned weights on its sorted values (GPO: Chen et al., CVPR 2021).

    Each channel is sorted in descending order over the l valid positions; rank k gets the weight
    softmax_k(g_k / 0.1), g = W mean(BiGRU(sinusoidal code of the ranks 0..l-1)), a function of l alone.

    Args:
        length: Longest sequence, the size of the rank table.
        code_dim: Width of the rank code and of the GRU.

    Raises:
        ValueError: A sequence longer than `length`, or a row without a valid position.

    Examples:
        >>> import torch
        >>> pooling = GeneralizedPooling(length=8)
        >>> pooling(torch.randn(2, 5, 4)).shape
        torch.Size([2, 4])
    """

    rank_table: Tensor

    def __init__(self, length: int = 32, code_dim: int = 32) -> None:
        super().__init__()
        table = sincos_table(length, code_dim).to(torch.get_default_device(), torch.get_default_dtype())
        self.register_buffer("rank_table", table, persistent=False)
        self.gru = nn.GRU(code_dim, code_dim, batch_first=True, bidirectional=True)
        self.score = nn.Linear(code_dim, 1, bias=False)

    def forward(self, x: Float[Tensor, "b l d"], mask: Bool[Tensor, "b l"] | None = None) -> Float[Tensor, "b d"]:
        """Pool over l.

        Args:
            x: The sequence.
            mask: True marks a valid position; None means all are. Padding changes nothing.
        """
        if x.shape[1] > len(self.rank_table):
            raise ValueError(
                f"features: got length {x.shape[1]}, the rank table holds {len(self.rank_table)}; raise `length`"
            )
        longest = x.shape[1]
        # One row of weights for each length that a mask may have, so that none has to be read from it.
        weights = self._weights(longest, 1 if mask is None else longest)
        if mask is not None:
            lengths = mask.sum(1)
            if readable(lengths) and not bool(lengths.all()):
                raise ValueError(f"mask: row {int(lengths.argmin())} has no valid position; leave such rows out")
            weights = weights[(longest - lengths).clamp(max=longest - 1)]
            x = x.masked_fill(~mask.unsqueeze(-1), -torch.inf)
        ordered = x.sort(dim=1, descending=True).values
        if mask is not None:
            # Padding is now last: its weight is 0, and its -inf must not meet that 0.
            padding = torch.arange(longest, device=x.device) >= lengths[:, None]
            ordered = ordered.masked_fill(padding.unsqueeze(-1), 0)
        return (weights.unsqueeze(-1) * ordered).sum(1)

    def _weights(self, longest: int, count: int) -> Tensor:
        """The rank weights of the lengths longest, longest - 1, ..., (count, longest), zero past each length."""
        ranks = torch.arange(longest, device=self.rank_table.device)
        lengths = longest - ranks[:count]
        codes = self.rank_table[:longest].expand(count, -1, -1)
        # cuDNN keeps what a gradient needs in training mode alone; the numbers are the same in both.
        self.gru.training = self.training or torch.is_grad_enabled()
        if torch.compiler.is_compiling():  # nn.GRU neither compiles nor exports
            # The backward direction reads ranks m - 1, ..., 0 of a sequence of m; what follows them is left out below.
            turned = (lengths[:, None] - 1 - ranks).clamp(min=0)
            ahead = self._one_direction(codes[:1], "").expand(count, -1, -1)
            back = self._one_direction(self.rank_table[turned], "_reverse")
            states = torch.cat((ahead, back.gather(1, turned.unsqueeze(-1).expand_as(back))), dim=-1)
        elif count == 1:
            states, _ = self.gru(codes)
        else:
            # The backward direction starts at each sequence's own last rank, hence packing, by lengths on the CPU.
            packed = pack_padded_sequence(codes, [*range(longest, longest - count, -1)], batch_first=True)
            states, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True, total_length=longest)
        ahead, back = states.chunk(2, dim=-1)  # of both directions (k, l, c)
        scores = self.score((ahead + back) / 2).squeeze(-1) / RANK_TEMPERATURE
        return scores.masked_fill(ranks >= lengths[:, None], -torch.inf).softmax(dim=-1)

    def _one_direction(self, codes: Tensor, suffix: str) -> Tensor:
        """The states (b, l, c) of the GRU over codes (b, l, c) in one direction (Cho et al. 2014, as torch has it)."""
        names = [f"{kind}_{part}" for kind in ("weight", "bias") for part in ("ih", "hh")]
        weights = {name: getattr(self.gru, f"{name}_l0{suffix}") for name in names}
        inputs = F.linear(codes, weights["weight_ih"], weights["bias_ih"])
        state, states = codes.new_zeros(codes.shape[0], self.gru.hidden_size), []
        for gates in inputs.unbind(1):
            reset, update, new = gates.chunk(3, dim=-1)
            r, z, n = F.linear(state, weights["weight_hh"], weights["bias_hh"]).chunk(3, dim=-1)
            candidate = torch.tanh(new + torch.sigmoid(reset + r) * n)
            state = candidate + torch.sigmoid(update + z) * (state - candidate)
            states.append(state)
        return torch.stack(states, dim=1)


class AttentionReadout(nn.Module):
    """One vector of a sequence: sum_l softmax_l(w2 tanh(W1 x_l)) x_l, W1: d -> d/2 and w2: d/2 -> 1 without bias.

    Args:
        dim: Width d of the sequence.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(dim, dim // 2, bias=False)
        self.score = nn.Linear(dim // 2, 1, bias=False)

    def forward(self, x: Float[Tensor, "b l d"], mask: Bool[Tensor, "b l"] | None = None) -> Float[Tensor, "b d"]:
        """Read the sequence out; `mask` is True at valid positions."""
        x = masked(x, mask)  # a weight of 0 does not silence a NaN
        score = self.score(torch.tanh(self.hidden(x))).squeeze(-1)
        if mask is not None:
            score = score.masked_fill(~mask, -torch.inf)
        return (score.softmax(dim=-1).unsqueeze(-1) * x).sum(1)


class PriorSampler(nn.Module):
    r"""p(r_T | V), a Gaussian over registers from a video's tokens (DreamPRVR's PVS, eq. 8).

    With p the generalised pooling of V and A, A' two attention read-outs:
    mean = normalise(LN(p + sigmoid(W A(V)))), of unit length, and logvar = W' A'(V) + W'' p.

    Args:
        dim: Width d of the tokens.
        length: Longest sequence; None leaves the pooling to the caller.

    Examples:
        >>> import torch
        >>> prior = PriorSampler(dim=8)(torch.randn(2, 32, 8))
        >>> prior.mean.shape, prior.sample(4).shape
        (torch.Size([2, 8]), torch.Size([2, 4, 8]))
    """

    def __init__(self, dim: int, length: int | None = 32) -> None:
        super().__init__()
        self.pooling = None if length is None else GeneralizedPooling(length)
        self.mean_readout = AttentionReadout(dim)
        self.mean_proj = nn.Linear(dim, dim)
        self.mean_norm = nn.LayerNorm(dim)
        self.logvar_readout = AttentionReadout(dim)
        self.logvar_proj = nn.Linear(dim, dim)
        self.logvar_pooled = nn.Linear(dim, dim)

    def forward(
        self,
        x: Float[Tensor, "b l d"],
        mask: Bool[Tensor, "b l"] | None = None,
        pooled: Float[Tensor, "b d"] | None = None,
    ) -> Gaussian:
        """Give the prior of each row; `mask` is True at valid positions, `pooled` stands for p."""
        if pooled is None and self.pooling is None:
            raise ValueError("pooled: got None, expected one vector per row, since `length` is None")
        whole: Tensor = pooled if pooled is not None else self.pooling(x, mask)  # pyright: ignore[reportOptionalCall]
        mean = self.mean_norm(whole + torch.sigmoid(self.mean_proj(self.mean_readout(x, mask))))
        logvar = self.logvar_proj(self.logvar_readout(x, mask)) + self.logvar_pooled(whole)
        return Gaussian(F.normalize(mean, dim=-1), logvar)


class TextualPerturbation(nn.Module):
    r"""Spread one text embedding into n targets (DreamPRVR's TPS, eq. 6). It has no parameters.

    With m, s the mean and (unbiased) standard deviation of f over its d coordinates and var the biased variance:
    target = alpha (f - m) / sqrt(var + 1e-5) + beta, alpha ~ N(1, (gamma s)^2), beta ~ N(m, (gamma s)^2), drawn
    independently per target and channel. Gradients flow through f's normalised form, not through alpha and beta.

    Args:
        gamma: Relative size of the perturbation, at least 0.

    Raises:
        ValueError: A negative gamma.

    Examples:
        >>> import torch
        >>> TextualPerturbation(gamma=0.1)(torch.randn(2, 8), 4).shape
        torch.Size([2, 4, 8])
    """

    def __init__(self, gamma: float = 0.1) -> None:
        super().__init__()
        if gamma < 0:
            raise ValueError(f"gamma: got {gamma}, expected a number of at least 0")
        self.gamma = gamma

    def forward(
        self,
        features: Float[Tensor, "b d"],
        num: int,
        generator: torch.Generator | None = None,
        *,
        z_alpha: Float[Tensor, "b n d"] | None = None,
        z_beta: Float[Tensor, "b n d"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        """Draw the targets.

        Args:
            features: One embedding per row, of at least 2 coordinates.
            num: n, the number of targets per row, at least 1.
            generator: Source of the draws.
            z_alpha: Standard normal numbers behind alpha, instead of a draw.
            z_beta: The same for beta.
        """
        shape = (features.shape[0], num, features.shape[1])
        if num < 1 or features.shape[1] < 2:
            raise ValueError(
                f"features, num: got shape {tuple(features.shape)} and {num}, expected (b, d >= 2) and num >= 1"
            )
        variance, mean = torch.var_mean(features, dim=-1, keepdim=True, correction=0)
        normalised = (features - mean) * torch.rsqrt(variance + TEXT_EPS)
        with torch.no_grad():
            z_alpha = standard_normal(shape, features, generator) if z_alpha is None else z_alpha
            z_beta = standard_normal(shape, features, generator) if z_beta is None else z_beta
            spread = self.gamma * features.std(dim=-1, keepdim=True).unsqueeze(1)
            alpha, beta = 1 + spread * z_alpha, mean.unsqueeze(1) + spread * z_beta
        return alpha * normalised.unsqueeze(1) + beta

    def extra_repr(self) -> str:
        """Shown in the module's repr."""
        return f"gamma={self.gamma}"
