"""Geodesics of the Poincare disk as points on circular arcs."""

import numpy as np

_STEP = np.pi / 90  # a chord of 2 degrees leaves its circle by 0.0002 radii: less than a pixel


def arc(start: complex, end: complex) -> np.ndarray:
    """Points (m, 2) on the geodesic between two points of the unit disk.

    It lies on a circle that meets the rim at right angles. At `start` it leaves its chord by the angle
    phi = arg(1 - start conj(end)), because z -> (z - u)/(1 - conj(u) z) keeps directions at u and makes the geodesic a
    ray; the arc that turns by 2 phi is then u + (v - u) sin(t phi)/sin(phi) exp(i phi (1 - t)), a segment at phi = 0.
    """
    phi = float(np.angle(1.0 - start * np.conj(end)))
    t = np.linspace(0.0, 1.0, 2 + int(abs(2.0 * phi) / _STEP))
    share = t if phi == 0.0 else np.sin(t * phi) / np.sin(phi)
    z = start + (end - start) * share * np.exp(1j * phi * (1.0 - t))
    return np.stack([z.real, z.imag], axis=-1)
