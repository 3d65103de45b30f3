"""Every operation as the textbook defines it (cosh, sinh, acosh, no stable form), in 120 digits: 60 and more hold.

Vectors are lists of mpf. A point is given by its space part; results are ambient, time first, as the operation's are.
"""

from collections.abc import Callable
from typing import Any

from mpmath import mp, mpf

mp.dps = 120  # close pairs far out lose some 60 digits of these forms on the way
Number = Any  # mpf has no types
Vector = list[Number]
TINY = mpf(10) ** -40  # angles below it are the rounding of an exact 0
STEP = mpf(10) ** -25  # of a difference


def dot(a: Vector, b: Vector) -> Number:
    return mp.fdot(a, b)


def inner(u: Vector, v: Vector) -> Number:
    """<u, v>_L of ambient vectors."""
    return mp.fdot(u[1:], v[1:]) - u[0] * v[0]


def point(x: Vector, c: Number) -> Vector:
    return [mp.sqrt(1 / c + dot(x, x)), *x]


def tangent(x: Vector, v: Vector, c: Number) -> Vector:
    """The ambient tangent vector at x with space part v."""
    return [dot(x, v) / point(x, c)[0], *v]


def ball_add(p: Vector, q: Vector, c: Number) -> Vector:
    """Moebius addition of two points of the Poincare ball (Ungar 2008)."""
    pp, qq, pq = dot(p, p), dot(q, q), dot(p, q)
    below = 1 + 2 * c * pq + c * c * pp * qq
    return combine((1 + 2 * c * pq + c * qq) / below, p, (1 - c * pp) / below, q)


def scale(a: Number, x: Vector) -> Vector:
    return [a * k for k in x]


def combine(a: Number, x: Vector, b: Number, y: Vector) -> Vector:
    return [a * s + b * t for s, t in zip(x, y, strict=True)]


def expmap0(v: Vector, c: Number) -> Vector:
    s = mp.sqrt(c * dot(v, v))
    return point(scale(mp.sinh(s) / s if s else 1, v), c)


def logmap0(x: Vector, c: Number) -> Vector:
    r = mp.sqrt(c * dot(x, x))
    return scale(mp.acosh(mp.sqrt(1 + r * r)) / r if r else 1, x)


def expmap(x: Vector, v: Vector, c: Number) -> Vector:
    X, V = point(x, c), tangent(x, v, c)
    s = mp.sqrt(c * inner(V, V))
    return combine(mp.cosh(s), X, mp.sinh(s) / s if s else 1, V)


def inner_of_points(x: Vector, y: Vector, c: Number) -> Number:
    return inner(point(x, c), point(y, c))


def dist(x: Vector, y: Vector, c: Number) -> Number:
    return mp.acosh(max(-c * inner_of_points(x, y, c), mpf(1))) / mp.sqrt(c)


def dist0(x: Vector, c: Number) -> Number:
    return mp.acosh(mp.sqrt(c) * point(x, c)[0]) / mp.sqrt(c)


def logmap(x: Vector, y: Vector, c: Number) -> Vector:
    X, Y = point(x, c), point(y, c)
    w = combine(1, Y, c * inner(X, Y), X)  # the part of y tangent at x
    return scale(dist(x, y, c) / mp.sqrt(inner(w, w)) if x != y else 0, w)


def geodesic(x: Vector, y: Vector, t: Number, c: Number) -> Vector:
    """The point at share t of the way from x to y."""
    s = mp.sqrt(c) * dist(x, y, c)
    X, Y = point(x, c), point(y, c)
    return combine(mp.sinh((1 - t) * s) / mp.sinh(s), X, mp.sinh(t * s) / mp.sinh(s), Y) if s else X


def parallel_transport(x: Vector, y: Vector, v: Vector, c: Number) -> Vector:
    V = tangent(x, v, c)
    if x == y:
        return V
    there, back = logmap(x, y, c), logmap(y, x, c)
    return combine(1, V, -inner(there, V) / dist(x, y, c) ** 2, combine(1, there, 1, back))


def project_tangent(x: Vector, w: Vector, c: Number) -> Vector:
    X = point(x, c)
    return combine(1, w, c * inner(X, w), X)


def centroid(points: list[Vector], weights: Vector, c: Number) -> Vector:
    ambient = [point(p, c) for p in points]
    s = [dot(weights, list(column)) for column in zip(*ambient, strict=True)]
    return scale(1 / mp.sqrt(-c * inner(s, s)), s)


def half_aperture(x: Vector, c: Number, min_radius: Number) -> Number:
    r = mp.sqrt(c * dot(x, x))
    return mp.asin(2 * min_radius / r) if r > 2 * min_radius else mp.pi / 2


def exterior_angle(x: Vector, y: Vector, c: Number) -> Number:
    """pi minus the angle at x of the triangle o, x, y: its sides by logarithms, its cosine by <., .>_L."""
    to_o, to_y = logmap(x, [mpf(0)] * len(x), c), logmap(x, y, c)
    cosine = inner(to_o, to_y) / mp.sqrt(inner(to_o, to_o) * inner(to_y, to_y))
    angle = mp.pi - mp.acos(min(max(cosine, mpf(-1)), mpf(1)))
    return angle if angle > TINY else mpf(0)


def derivatives(f: Callable[[Vector], Vector], at: Vector) -> list[Vector]:
    """df/d(at[j]) for every j, by central differences: exact to some 30 digits at 120."""
    columns = []
    for j in range(len(at)):
        up, down = ([*at[:j], at[j] + sign * STEP, *at[j + 1 :]] for sign in (1, -1))
        columns.append([(a - b) / (2 * STEP) for a, b in zip(f(up), f(down), strict=True)])
    return columns
