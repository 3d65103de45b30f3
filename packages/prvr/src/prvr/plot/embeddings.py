"""Embeddings in the plane: t-SNE, and how far apart groups lie before anything is flattened."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from prvr.errors import InputError, require
from prvr.plot.figures import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FEWEST = 4


def flattened(points: Float[np.ndarray, "n d"], *, seed: int = 0) -> Float[np.ndarray, "n 2"]:
    """Points in the plane by t-SNE of their cosine distances (van der Maaten and Hinton 2008).

    Neighbours stay neighbours; sizes of clusters and distances between them mean nothing.

    Args:
        points: at least 4.
        seed: the seed of t-SNE.

    Raises:
        InputError: fewer points.
        MissingExtraError: scikit-learn is not installed.
    """
    if len(points) < _FEWEST:
        raise InputError(f"{len(points)} points: expected at least {_FEWEST} to spread over the plane")
    manifold = require("sklearn.manifold", "plot", "A picture of embeddings")
    nearest = min(30.0, (len(points) - 1) / 3)
    found = manifold.TSNE(perplexity=nearest, metric="cosine", init="random", random_state=seed)
    return found.fit_transform(np.ascontiguousarray(points, np.float32))


def separation(points: Float[np.ndarray, "n d"], groups: Int[np.ndarray, " n"]) -> float | None:
    """The mean silhouette of groups by cosine distance, in [-1, 1] (Rousseeuw 1987).

    1: every point is far nearer to its own group than to any other; 0: groups overlap.

    Args:
        points: in their own space.
        groups: the group of each point; those below 0 are left out.

    Returns:
        None where there are not two groups, or no group of two points.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    metrics = require("sklearn.metrics", "plot", "A picture of embeddings")
    points, groups = points[groups >= 0], groups[groups >= 0]
    if not 2 <= len(np.unique(groups)) < len(groups):
        return None
    return float(metrics.silhouette_score(points.astype(np.float64), groups, metric="cosine"))


def scatter(axes: "Axes", plane: Float[np.ndarray, "n 2"], groups: Int[np.ndarray, " n"], names: Sequence[str]) -> None:
    """Draws points by group: a colour for each, light grey for those below 0.

    Args:
        axes: where to draw.
        plane: the points.
        groups: the group of each point.
        names: the name of each group from 0.
    """
    rest = groups < 0
    axes.scatter(*plane[rest].T, s=14, color="0.82", label="no moment" if rest.any() else None)
    for number, name in enumerate(names):
        axes.scatter(*plane[groups == number].T, s=22, color=COLOURS[number % len(COLOURS)], label=name)
    axes.set(xticks=[], yticks=[])
