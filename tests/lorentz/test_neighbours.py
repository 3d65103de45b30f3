"""Nearest neighbours beside a plain sort of all distances."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import LAW
from torch import Tensor

import lorentz


def clumps(radius: float, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """80 points: close ones around 8 places at this radius."""
    generator = torch.Generator().manual_seed(seed)
    places = torch.nn.functional.normalize(torch.randn(8, 1, 5, generator=generator, dtype=torch.float64), dim=-1)
    near = lorentz.expmap0(0.2 * torch.randn(8, 10, 5, generator=generator, dtype=torch.float64))
    return lorentz.gyro_add(lorentz.expmap0(radius * places), near).reshape(80, 6).to(dtype)


@LAW
@given(
    st.sampled_from([0.3, 5.0, 12.0, 20.0]),
    st.sampled_from([torch.float32, torch.float64]),
    st.sampled_from(["auto", "native"]),
    st.integers(1, 80),
    st.integers(0, 99),
)
def test_finds_what_sorting_all_distances_finds(radius, dtype, precision, k: int, seed: int) -> None:
    points = clumps(radius, dtype, seed)
    queries = points[::9]
    distances, rows = lorentz.topk(queries, points, k, precision=precision)
    # To rounding: what is equal in this dtype may come in another order.
    every = lorentz.dist(queries.unsqueeze(1), points, precision=precision)
    rounding = {"rtol": 8.0 * torch.finfo(dtype).eps, "atol": 0.0}
    torch.testing.assert_close(distances, every.sort().values[:, :k], **rounding)
    torch.testing.assert_close(distances, every.gather(-1, rows), **rounding)
    assert all(len(set(row)) == k for row in rows.tolist())


def test_products_of_matrices_in_less_than_float32_leave_the_result_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    place = lorentz.expmap0(torch.tensor([4.0, 0.0, 0.0]))
    points = lorentz.gyro_add(place, lorentz.expmap0(0.2 * torch.randn(80, 3)))
    expected = lorentz.topk(points, points, 2, precision="native")
    product = torch.Tensor.__matmul__
    rounded = torch.bfloat16  # as a GPU may do it, asked for by set_float32_matmul_precision
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: product(a.to(rounded), b.to(rounded)).float())
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        found = lorentz.topk(points, points, 2, precision="native")
    finally:
        torch.set_float32_matmul_precision(before)
    assert torch.equal(found[1], expected[1])
