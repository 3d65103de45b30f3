"""How far points lie from the origin: the picture that shows whether a model put the general below the specific."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from lorentz._manifold_curvature import one_number
from lorentz._precision import Scalar
from lorentz.functional import dist0

from ._matplotlib import axes_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def origin_distances(
    x: Float[Tensor, "*b n"] | Mapping[str, Tensor],
    c: Scalar = 1.0,
    *,
    bins: int = 40,
    colors: Mapping[str, Any] | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """Histogram of the distances from the origin, one outline per group.

    The picture of hyperbolic image-text models: texts should lie nearer than images (Desai et al. 2023). The groups
    share their bins, and each is scaled to area 1, so groups of any size compare.

    Args:
        x: ambient points of any batch shape, or a mapping from the name of a group to its points.
        c: curvature -c < 0, a number or a scalar tensor.
        bins: number of bins over all groups.
        colors: colour of each group by name; None takes the colours of the axes' cycle.
        ax: axes to draw on; None makes a figure with pyplot.

    Returns:
        The axes.

    Raises:
        ImportError: matplotlib is missing (`pip install 'lorentz-nn[plot]'`).
        ValueError: a group is empty or holds a value that is not finite, `bins` < 1, or `c` <= 0.

    Examples:
        >>> import torch
        >>> from lorentz.functional import expmap0
        >>> texts, images = expmap0(0.5 * torch.randn(50, 8)), expmap0(2.0 + torch.randn(50, 8))
        >>> origin_distances({"texts": texts, "images": images}).get_xlabel()
        'distance from the origin'
    """
    if bins < 1:
        raise ValueError(f"bins: got {bins}, expected at least 1")
    groups = x if isinstance(x, Mapping) else {"": x}
    lengths, number = {}, one_number("c", c, owner="picture")
    for name, points in groups.items():
        distance = dist0(points.detach().cpu().double(), number)
        if distance.numel() == 0 or not bool(distance.isfinite().all()):
            what = "no points" if distance.numel() == 0 else "a point whose distance is not finite"
            raise ValueError(f"x{f'[{name!r}]' if name else ''}: got {what}, shape {tuple(points.shape)}")
        lengths[name] = distance.flatten()
    if not lengths:
        raise ValueError("x: got an empty mapping, expected at least one group of points")
    ax = axes_for("origin_distances", ax, (5.0, 3.2))
    farthest = max(float(values.max()) for values in lengths.values())
    edges = np.linspace(0.0, max(1.02 * farthest, 1e-6), bins + 1)
    for name, values in lengths.items():
        density = np.histogram(values.numpy(), edges, density=True)[0]
        style = {"color": colors[name]} if colors and name in colors else {}
        outline = ax.stairs(density, edges, linewidth=1.5, label=name or None, **style)
        ax.stairs(density, edges, fill=True, alpha=0.25, linewidth=0.0, color=outline.get_edgecolor())
    ax.set(xlabel="distance from the origin", ylabel="density", xlim=(0.0, float(edges[-1])))
    ax.spines[["top", "right"]].set_visible(False)
    if any(lengths):
        ax.legend(frameon=False, loc="upper left")
    return ax
