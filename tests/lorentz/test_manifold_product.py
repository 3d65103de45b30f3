"""geoopt's product manifold with Lorentz factors, each with its own learned curvature, as docs/lorentz.md has it."""

import geoopt
import torch
from hypothesis import given
from laws import LAW, Situation, situations

from lorentz.manifold import Lorentz
from lorentz.nn import Curvature


@LAW
@given(situations(4, dtypes=(torch.float64,), most=3.0))
def test_operations_of_a_product_are_those_of_its_factors(situation: Situation) -> None:
    c, _, (x, y, z, w) = situation
    parts = (
        Lorentz(Curvature(c, bounds=(0.5 * c, 2.0 * c))).double(),
        Lorentz(Curvature(c, bounds=(0.01, 20.0))).double(),
    )
    product = geoopt.ProductManifold(*((part, len(x)) for part in parts))
    p, q = (torch.stack([torch.cat(pair)] * 2) for pair in ((x, z), (y, w)))
    one, two = parts
    close = {"rtol": 1e-7, "atol": 1e-7}
    torch.testing.assert_close(product.dist2(p, q)[0], one.dist2(x, y) + two.dist2(z, w), **close)
    v = product.logmap(p, q)
    torch.testing.assert_close(v[0], torch.cat([one.logmap(x, y), two.logmap(z, w)]), **close)
    torch.testing.assert_close(product.inner(p, v)[0], product.dist2(p, q)[0], **close)
    torch.testing.assert_close(product.expmap(p, v), q, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(product.transp(p, q, v)[0, : len(x)], one.transp(x, y, v[0, : len(x)]), **close)
