"""Ratios of lorentz's layers to torch's, on one thread: `python benchmarks/lorentz_layers.py`.

1.00 is as fast as torch's layer. Both sides alternate in one process, and the best of all rounds counts; the time is
that of the processor, so that other programs disturb it less. Tensors have the same number of ambient coordinates.
`need_weights=False` is the attention that counts: ours never forms the weights either. geoopt has no Lorentz layers.
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import lorentz.functional as lf
from lorentz.nn import (
    LorentzActivation,
    LorentzLayerNorm,
    LorentzLinear,
    LorentzMLR,
    LorentzMultiheadAttention,
    LorentzResidual,
)

Layer = Callable[[Tensor], Tensor]


def best(layers: tuple[tuple[Layer, Tensor], ...], run: Callable[[Layer, Tensor], None], rounds: int) -> list[float]:
    """Shortest time of every layer, in alternating rounds."""
    shortest = [float("inf")] * len(layers)
    for _ in range(rounds):
        for i, (layer, x) in enumerate(layers):
            for _ in range(3):  # one after the other: with its own data in the cache, as in a loop over one model
                start = time.process_time()
                run(layer, x)
                shortest[i] = min(shortest[i], time.process_time() - start)
    return shortest


def forward(layer: Layer, x: Tensor) -> None:
    with torch.no_grad():
        layer(x)


def both(layer: Layer, x: Tensor) -> None:
    layer(x).square().sum().backward()


def row(name: str, plain: tuple[Layer, Tensor], ours: tuple[Layer, Tensor], rounds: int) -> None:
    ratios = []
    for run in (forward, both):
        first, second = best((plain, ours), run, rounds)
        ratios.append(second / first)
    print(f"{name:58s} {ratios[0]:7.2f}  {ratios[1]:16.2f}", flush=True)


def attention(width: int, heads: int, *, weights: bool = False, evaluate: bool = False) -> Layer:
    module = nn.MultiheadAttention(width, heads, batch_first=True).train(not evaluate)
    return lambda x: module(x, x, x, need_weights=weights)[0]


def lorentz_attention(dim: int, heads: int, out: int | None) -> Layer:
    module = LorentzMultiheadAttention(dim, heads, out_features=out)
    return lambda x: module(x, x, x)


def inputs(*shape: int) -> tuple[Tensor, Tensor]:
    """A vector of as many coordinates as the point, and the point."""
    v = 0.1 * torch.randn(*shape)
    return torch.randn(*shape[:-1], shape[-1] + 1).requires_grad_(), lf.expmap0(v).requires_grad_()


def main(rounds: int, attention_only: bool) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"{'lorentz layer against torch':58s} forward  forward+backward")
    if not attention_only:
        single_layers(rounds)
    for batch in (8, 128):
        compare_attention(batch, rounds if batch == 8 else max(rounds // 8, 3))


def single_layers(rounds: int) -> None:
    for dim, count in ((127, 1024), (511, 1024)):
        x, point = inputs(count, dim)
        wide = dim + 1
        row(
            f"LorentzLinear({dim}) : nn.Linear({wide})",
            (nn.Linear(wide, wide), x),
            (LorentzLinear(dim, dim), point),
            rounds,
        )
        bounded = LorentzLinear(dim, dim, magnitude="bounded")
        row(f"LorentzLinear({dim}, bounded) : nn.Linear({wide})", (nn.Linear(wide, wide), x), (bounded, point), rounds)
    x, point = inputs(1024, 127)
    row("LorentzLayerNorm : nn.LayerNorm", (nn.LayerNorm(128), x), (LorentzLayerNorm(127), point), rounds)
    row("LorentzActivation : nn.GELU", (nn.GELU(), x), (LorentzActivation(nn.GELU()), point), rounds)
    residual = LorentzResidual()  # against the plain form of the same: the sum over its Lorentz length, in float32

    def plain(x: Tensor) -> Tensor:
        s = 0.5 * (x + x.flip(0))
        return s / (-lf.lorentz_inner(s, s)).sqrt().unsqueeze(-1)

    row("LorentzResidual : its plain form", (plain, point), (lambda x: residual(x, x.flip(0)), point), rounds)
    row("LorentzMLR(127, 10) : nn.Linear(128, 10)", (nn.Linear(128, 10), x), (LorentzMLR(127, 10), point), rounds)


def compare_attention(batch: int, rounds: int) -> None:
    """All variants in the same rounds; torch's in train() with need_weights=False is the one that counts."""
    (x, point), (_, odd) = inputs(batch, 128, 127), inputs(batch, 128, 128)
    layers = (
        (attention(128, 4), x),
        (attention(128, 4, weights=True), x),
        (attention(128, 4, evaluate=True), x),
        (lorentz_attention(127, 4, 127), point),
        (lorentz_attention(127, 4, None), point),
        (lorentz_attention(128, 4, 128), odd),
    )
    torchs, weights, fast, ours, joined, uneven = zip(
        *(best(layers, run, rounds) for run in (forward, both)), strict=True
    )
    print(f"attention, {batch} x 128 tokens, 4 heads x 32, against nn.MultiheadAttention")
    for name, one, other in (
        ("  need_weights=False", ours, torchs),
        ("  the same, without our output layer", joined, torchs),
        ("  the same, space of 128: heads of 33 coordinates", uneven, torchs),
        ("  need_weights=True", ours, weights),
        ("  in eval(), whose forward is fused", ours, fast),
    ):
        print(f"{name:58s} {one[0] / other[0]:7.2f}  {one[1] / other[1]:16.2f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--attention-only", action="store_true")
    options = parser.parse_args()
    main(options.rounds, options.attention_only)
