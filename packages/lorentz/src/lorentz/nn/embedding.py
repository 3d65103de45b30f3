"""A table of points, looked up by number."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from lorentz import functional as lf
from lorentz._validation import check_positive, described

from ._layer import OnHyperboloid, check_features
from .curvature import Curvature


class LorentzEmbedding(OnHyperboloid):
    """`nn.Embedding` for points: number i gives the point expmap0(weight[i]).

    The table holds tangent vectors at the origin, as ordinary parameters, so any optimiser of torch trains it. A
    point's distance from the origin is the length of its vector, whatever c is: a learned c changes the distances
    between points, and keeps their directions and their distances from the origin. Weight decay draws towards the
    origin. A step of the optimiser along the vector moves the point by as much wherever it lies; a step of its space
    part, of length sinh(sqrt(c) r)/sqrt(c) at distance r, would hardly move it far out. A step across the vector moves
    it sinh(sqrt(c) r)/(sqrt(c) r) times as far. Where that is too far (points far out, with no layers after them),
    train the points themselves with a Riemannian optimiser, which needs a fixed c:

        points = geoopt.ManifoldParameter(table.points().detach(), manifold=lorentz.manifold.Lorentz(c=c))
        x = torch.nn.functional.embedding(numbers, points)      # geoopt.optim.RiemannianAdam([points])

    Args:
        num_embeddings: number of points.
        embedding_dim: space dimension d of the points.
        padding_idx: this number is the origin, and is not trained.
        c: curvature -c, a number or a `Curvature`, which layers may share.
        radius: root mean square of the distances from the origin at the start; directions are uniform.
        sparse: sparse gradients, as `nn.Embedding` has them.

    Raises:
        ValueError: a size below 1, `padding_idx` that is no number of a point, or `radius` <= 0.
        TypeError: at the call, `numbers` are no integers.

    Examples:
        >>> from lorentz.nn import Curvature
        >>> c = Curvature(1.0)
        >>> table = LorentzEmbedding(10, 4, padding_idx=0, c=c)
        >>> table(torch.tensor([[1, 2, 0]])).shape
        torch.Size([1, 3, 5])
        >>> table(torch.tensor(0)).detach()  # the origin
        tensor([1., 0., 0., 0., 0.])
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        c: float | Curvature = 1.0,
        radius: float = 1.0,
        sparse: bool = False,
    ) -> None:
        super().__init__(c)
        check_features("num_embeddings", num_embeddings)
        check_features("embedding_dim", embedding_dim)
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(f"padding_idx: got {padding_idx}, expected one of the {num_embeddings} numbers")
        check_positive("radius", radius, "a distance from the origin")
        self.num_embeddings, self.embedding_dim, self.sparse = num_embeddings, embedding_dim, sparse
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self.radius = radius
        self.weight = nn.Parameter(torch.empty(num_embeddings, embedding_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new points."""
        nn.init.normal_(self.weight, std=self.radius / self.embedding_dim**0.5)
        if self.padding_idx is not None:
            with torch.no_grad():
                self.weight[self.padding_idx].zero_()

    def forward(self, numbers: Int[Tensor, "*b"]) -> Float[Tensor, "*b n"]:
        """Return the points of these numbers."""
        if not isinstance(numbers, Tensor) or numbers.is_floating_point():
            got = described(numbers) if isinstance(numbers, Tensor) else type(numbers).__name__
            raise TypeError(f"numbers: got {got}, expected integers, the rows of the table")
        return lf.expmap0(F.embedding(numbers, self.weight, self.padding_idx, sparse=self.sparse), self.c)

    def points(self) -> Float[Tensor, "k n"]:
        """Return all points, for distances to each of them, say."""
        return lf.expmap0(self.weight, self.c)

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"
