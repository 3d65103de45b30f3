"""Horospherical principal components (Chami, Gu, Nguyen, Re 2021), in the Lorentz model."""

import torch
from jaxtyping import Float
from torch import Tensor

from lorentz import functional as lf
from lorentz._manifold_curvature import one_number
from lorentz._precision import Scalar
from lorentz.horospheres import coordinates_along_horospheres


class HoroPCA:
    """Principal components of hyperbolic points: (n, d+1) -> (n, n_components+1).

    Directions are ideal points (1, p) with orthonormal p. A point is projected to the geodesic submanifold spanned by
    them and the base point along horospheres, that is keeping its Busemann function towards each of them, which never
    lengthens a distance. Of the two such points the paper takes the one closer to the base point: nothing lands beyond
    the hull of the ideal points, and one corner of a picture in two dimensions stays empty. The directions are found
    one after the other, each maximising the mean squared distance of the projections (Chami et al. 2021, eq. 4-6) by
    L-BFGS from several starts, on the CPU in float64.

    Args:
        n_components: dimension of the result, at least 1 and at most d.
        c: curvature -c < 0, a number or a scalar tensor.
        center: base point at the Frechet mean of the points, as in the paper; False leaves it at the origin, where it
            belongs when distance from the origin means something.
        starts: starting directions per component: both ends of the main tangent direction, then random ones.
        max_points: fit on so many points drawn at random; the objective looks at all pairs.
        seed: the seed of the random starts and the draw.

    Raises:
        ValueError: `n_components`, `starts` < 1, `max_points` < 2 or `c` <= 0.

    Examples:
        >>> scales = torch.tensor([1.0, 1.0, 0.1, 0.1, 0.1])
        >>> x = lf.expmap0(torch.randn(60, 5) * scales)
        >>> pca = HoroPCA(2)
        >>> pca.fit_transform(x).shape, pca.variance_ratio_ > 0.7
        (torch.Size([60, 3]), True)
    """

    mean_: Float[Tensor, "m"]
    """Base point, ambient."""
    components_: Float[Tensor, "k d"]
    """Orthonormal directions, float64."""
    variance_ratio_: float
    """Mean squared distance after the projection, over that before."""

    def __init__(
        self,
        n_components: int = 2,
        c: Scalar = 1.0,
        *,
        center: bool = True,
        starts: int = 4,
        max_points: int = 400,
        seed: int = 0,
    ) -> None:
        self.n_components, self.c, self.center = n_components, one_number("c", c, owner="picture"), center
        self.starts, self.max_points, self.seed = starts, max_points, seed
        for name, least in (("n_components", 1), ("starts", 1), ("max_points", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected at least {least}")

    def fit(self, x: Float[Tensor, "n m"]) -> "HoroPCA":
        """Find base point and directions.

        Args:
            x: ambient points, at least two; only their space parts are read.

        Returns:
            Itself.

        Raises:
            ValueError: fewer than two points, values that are not finite, or d < n_components.
        """
        if x.ndim != 2 or len(x) < 2 or x.shape[-1] - 1 < self.n_components or not bool(x.isfinite().all()):
            raise ValueError(
                f"x: got shape {tuple(x.shape)}, expected at least 2 finite points (n, d + 1) "
                f"with d >= n_components = {self.n_components}"
            )
        generator = torch.Generator().manual_seed(self.seed)
        x = lf.project(x[:, 1:].detach().cpu().double(), self.c)
        self.mean_ = lf.frechet_mean(x, c=self.c) if self.center else lf.origin(x.shape[-1], c=self.c, dtype=x.dtype)
        if len(x) > self.max_points:
            x = x[torch.randperm(len(x), generator=generator)[: self.max_points]]
        space = self._moved(x)[:, 1:]
        self.components_ = space.new_zeros(0, space.shape[-1])
        for _ in range(self.n_components):
            results = [self._climbed(space, start) for start in self._starting(space, generator)]
            best = max(results, key=lambda result: result[0])
            self.components_ = torch.cat([self.components_, best[1][None]])
        before = float(self._spread(space))
        after = float(self._spread(coordinates_along_horospheres(space, self.components_, self.c)))
        self.variance_ratio_ = after / before if before > 0.0 else 1.0
        return self

    def transform(self, x: Float[Tensor, "n m"]) -> Float[Tensor, "n k"]:
        """Project points, differentiably in x.

        Args:
            x: ambient points of the dimension that was fitted; only their space parts are read.

        Returns:
            Ambient points of n_components + 1 coordinates, the base point at the origin.

        Raises:
            ValueError: not fitted, or another dimension.
        """
        if not hasattr(self, "components_"):
            raise ValueError("HoroPCA: not fitted; call fit or fit_transform first")
        if x.ndim != 2 or x.shape[-1] != len(self.mean_):
            raise ValueError(f"x: got shape {tuple(x.shape)}, expected (n, {len(self.mean_)}) as fitted")
        wide = lf.project(x[:, 1:].cpu().double(), self.c)
        low = coordinates_along_horospheres(self._moved(wide)[:, 1:], self.components_, self.c)
        return lf.project(low, self.c).to(x.device, torch.promote_types(x.dtype, torch.float32))

    def fit_transform(self, x: Float[Tensor, "n m"]) -> Float[Tensor, "n k"]:
        """`fit`, then `transform` of the same points."""
        return self.fit(x).transform(x)

    def _moved(self, x: Tensor) -> Tensor:
        """x under the isometry that carries the base point to the origin (a boost)."""
        if not self.center:
            return x
        return lf.gyro_add(lf.project(-self.mean_[1:], self.c), x, self.c)

    def _spread(self, space: Tensor) -> Tensor:
        """Mean squared distance over all pairs."""
        points = lf.project(space, self.c)
        return lf.pairwise_dist(points, points, self.c).square().mean()

    def _free(self, w: Tensor) -> Tensor:
        """The unit vector along the part of w across the directions found so far."""
        w = w - (w @ self.components_.mT) @ self.components_
        return w / torch.linalg.vector_norm(w)

    def _starting(self, space: Tensor, generator: torch.Generator) -> list[Tensor]:
        tangent = lf.logmap0(lf.project(space, self.c), self.c)
        tangent = tangent - (tangent @ self.components_.mT) @ self.components_
        main = torch.linalg.svd(tangent, full_matrices=False).Vh[0]
        random = torch.randn(self.starts, space.shape[-1], dtype=space.dtype, generator=generator)
        # a little of a random direction: the main one may be 0 (all points alike) or lie among those found
        first = main + 1e-3 * random[0]
        return [first, -first, *random[2:]][: self.starts]

    def _climbed(self, space: Tensor, start: Tensor) -> tuple[float, Tensor]:
        """Ascend the spread of the projections from one direction: the value reached and the direction."""
        w = self._free(start).clone().requires_grad_()
        optimiser = torch.optim.LBFGS(
            [w], max_iter=50, tolerance_grad=1e-8, tolerance_change=1e-11, line_search_fn="strong_wolfe"
        )

        def loss() -> Tensor:
            optimiser.zero_grad()
            directions = torch.cat([self.components_, self._free(w)[None]])
            value = -self._spread(coordinates_along_horospheres(space, directions, self.c))
            value.backward()
            return value

        with torch.enable_grad():
            optimiser.step(loss)
        w = self._free(w.detach())
        with torch.no_grad():
            value = self._spread(coordinates_along_horospheres(space, torch.cat([self.components_, w[None]]), self.c))
        return float(value), w
