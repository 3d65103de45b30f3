"""Ratios of lorentz's operations to their plain textbook forms, on one thread: `python benchmarks/lorentz_ops.py`.

Below 1 is faster than the plain form. Both sides alternate in one process, and the best of several rounds counts.
"""

import timeit
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

import lorentz.functional as lf
from lorentz.nn import LorentzMultiheadAttention


def plain_expmap0(v: Tensor) -> Tensor:
    norm = v.norm(dim=-1, keepdim=True).clamp_min(1e-8)
    return torch.cat([torch.cosh(norm), torch.sinh(norm) / norm * v], dim=-1)


def plain_logmap0(x: Tensor) -> Tensor:
    space = x[..., 1:]
    norm = space.norm(dim=-1, keepdim=True).clamp_min(1e-8)
    return torch.acosh(x[..., :1].clamp_min(1.0 + 1e-7)) / norm * space


def plain_dist(x: Tensor, y: Tensor) -> Tensor:
    return torch.acosh((-lf.lorentz_inner(x, y)).clamp_min(1.0 + 1e-7))


def ratio(plain: Callable[[], object], ours: Callable[[], object], rounds: int = 12) -> float:
    best = [float("inf"), float("inf")]
    for _ in range(rounds):
        for i, function in enumerate((plain, ours)):
            best[i] = min(best[i], timeit.timeit(function, number=3))
    return best[1] / best[0]


def backward(function: Callable[..., Tensor], *arguments: Tensor) -> Callable[[], None]:
    return lambda: function(*arguments).square().sum().backward()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    v = (0.1 * torch.randn(4096, 127)).requires_grad_()
    x = lf.expmap0(v).detach().requires_grad_()
    y = lf.expmap0(v.flip(0)).detach().requires_grad_()
    rows: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], tuple[Tensor, ...]]] = {
        "expmap0": (plain_expmap0, lf.expmap0, (v,)),
        "logmap0": (plain_logmap0, lf.logmap0, (x,)),
        "dist (float64 inside)": (plain_dist, lf.dist, (x, y)),
    }
    print(f"{'operation':32s} forward  forward+backward")
    for name, (plain, ours, arguments) in rows.items():
        frozen = tuple(argument.detach() for argument in arguments)
        forward = ratio(lambda p=plain, a=frozen: p(*a), lambda o=ours, a=frozen: o(*a))
        both = ratio(backward(plain, *arguments), backward(ours, *arguments))
        print(f"{name:32s} {forward:7.2f}  {both:16.2f}")
    for dim, heads, length, batch in ((127, 4, 32, 64), (383, 4, 128, 16)):
        theirs = nn.MultiheadAttention(dim + 1, heads, batch_first=True)
        module = LorentzMultiheadAttention(dim, heads)
        points = lf.expmap0(0.1 * torch.randn(batch, length, dim))

        def attend(z: Tensor, layer: nn.MultiheadAttention = theirs) -> Tensor:
            return layer(z, z, z, need_weights=False)[0]

        def attend_on_points(z: Tensor, layer: LorentzMultiheadAttention = module) -> Tensor:
            return layer(z, z, z)

        both = ratio(backward(attend, points), backward(attend_on_points, points), rounds=6)
        with torch.no_grad():
            forward = ratio(partial(attend, points), partial(attend_on_points, points), rounds=6)
        print(f"{f'attention, width {dim + 1}':32s} {forward:7.2f}  {both:16.2f}")


if __name__ == "__main__":
    main()
