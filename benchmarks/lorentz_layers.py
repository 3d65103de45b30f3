"""Ratios of lorentz's layers to torch's, on one thread: `python benchmarks/lorentz_layers.py`.

1.00 is as fast as torch's layer; medians of all rounds with the lowest and the highest. Tensors have the same number of
ambient coordinates. `need_weights=False` is the attention that counts: ours never forms the weights either. The recipe
is that of docs/lorentz.md: vectors enter the hyperboloid, attend with an output layer, and leave it. geoopt has no
Lorentz layers. A second table holds what is kept for the backward pass.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

import lorentz.functional as lf
from _harness import Contender, Tasks, compare, environment, parse_options, show, write_figures
from lorentz.nn import (
    Curvature,
    ExpMap0,
    LogMap0,
    LorentzActivation,
    LorentzLayerNorm,
    LorentzLinear,
    LorentzMLR,
    LorentzMultiheadAttention,
    LorentzResidual,
)

Layer = Callable[[Tensor], Tensor]


def forward(layer: Layer, x: Tensor) -> None:
    with torch.no_grad():
        layer(x)


def both(layer: Layer, x: Tensor) -> None:
    layer(x).square().sum().backward()


def attention(width: int, heads: int, *, weights: bool = False, evaluate: bool = False) -> Layer:
    module = nn.MultiheadAttention(width, heads, batch_first=True).train(not evaluate)
    return lambda x: module(x, x, x, need_weights=weights)[0]


def lorentz_attention(dim: int, heads: int, out: int | None) -> Layer:
    module = LorentzMultiheadAttention(dim, heads, out_features=out)
    return lambda x: module(x, x, x)


def recipe(dim: int, heads: int, head_dim: int | None) -> Layer:
    c = Curvature(1.0)
    enter, leave = ExpMap0(c), LogMap0(c)
    attend = LorentzMultiheadAttention(dim, heads, head_dim=head_dim, out_features=dim, c=c)

    def layer(x: Tensor) -> Tensor:
        points = enter(x)
        return leave(attend(points, points, points))

    return layer


def kept(layer: Layer, x: Tensor) -> float:
    """Megabytes of memory that a forward pass keeps for the backward pass, its input and the weights left out."""
    found: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if not isinstance(tensor, nn.Parameter) and storage.data_ptr() != x.untyped_storage().data_ptr():
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = layer(x)
    del output
    return sum(found.values()) / 2**20


def inputs(*shape: int) -> tuple[Tensor, Tensor]:
    """A vector of as many coordinates as the point, and the point."""
    v = 0.1 * torch.randn(*shape)
    return torch.randn(*shape[:-1], shape[-1] + 1).requires_grad_(), lf.expmap0(v).requires_grad_()


def layers(ours: bool, single: bool) -> dict[str, tuple[Layer, Tensor]]:
    """A layer and its input for each row of the table: torch's, or ours."""
    found: dict[str, tuple[Layer, Tensor]] = {}

    def add(name: str, torchs: Layer, mine: Layer, pair: tuple[Tensor, Tensor]) -> None:
        found[name] = (mine, pair[1]) if ours else (torchs, pair[0])

    if single:
        add_single(add)
    for batch in (8, 128):
        tokens, odd = inputs(batch, 128, 127), inputs(batch, 128, 128)
        where = f"attention, {batch} x 128 tokens, 4 heads x 32"
        whole, joined = lorentz_attention(127, 4, 127), lorentz_attention(127, 4, None)
        add(f"{where}, need_weights=False", attention(128, 4), whole, tokens)
        add(f"{where}, without our output layer", attention(128, 4), joined, tokens)
        uneven = (tokens[0], odd[1])
        add(f"{where}, space of 128: heads of 33", attention(128, 4), lorentz_attention(128, 4, 128), uneven)
        add(f"{where}, need_weights=True", attention(128, 4, weights=True), whole, tokens)
        add(f"{where}, in eval(), whose forward is fused", attention(128, 4, evaluate=True), whole, tokens)
        vectors = (0.1 * torch.randn(batch, 128, 128)).requires_grad_()
        for text, head_dim in (("heads of 33", None), ("heads of 32", 31)):
            name = f"recipe of the page, {batch} x 128 tokens, space of 128, {text}"
            add(name, attention(128, 4), recipe(128, 4, head_dim), (vectors, vectors))
    return found


def add_single(add: Callable[[str, Layer, Layer, tuple[Tensor, Tensor]], None]) -> None:
    for dim in (127, 511):
        both, plain = inputs(1024, dim), nn.Linear(dim + 1, dim + 1)
        add(f"LorentzLinear({dim}) : nn.Linear({dim + 1})", plain, LorentzLinear(dim, dim), both)
        bounded = LorentzLinear(dim, dim, magnitude="bounded")
        add(f"LorentzLinear({dim}, bounded) : nn.Linear({dim + 1})", plain, bounded, both)
    x, point = inputs(1024, 127)
    add("LorentzLayerNorm : nn.LayerNorm", nn.LayerNorm(128), LorentzLayerNorm(127), (x, point))
    add("LorentzActivation : nn.GELU", nn.GELU(), LorentzActivation(nn.GELU()), (x, point))
    residual = LorentzResidual()  # against the plain form of the same: the sum over its Lorentz length, in float32

    def plain_residual(x: Tensor) -> Tensor:
        s = 0.5 * (x + x.flip(0))
        return s / (-lf.lorentz_inner(s, s)).sqrt().unsqueeze(-1)

    add("LorentzResidual : its plain form", plain_residual, lambda x: residual(x, x.flip(0)), (point, point))
    add("LorentzMLR(127, 10) : nn.Linear(128, 10)", nn.Linear(128, 10), LorentzMLR(127, 10), (x, point))


def tasks(ours: bool, single: bool) -> Tasks:
    found: dict[str, Callable[[], object]] = {}
    for name, (layer, x) in layers(ours, single).items():
        found |= {name: partial(forward, layer, x), f"{name}, b": partial(both, layer, x)}
    return found


def main() -> None:
    options = parse_options(__doc__, rounds=7, attention_only=False)
    print(environment())
    sides = [Contender(name, tasks, (name == "lorentz", not options.attention_only)) for name in ("torch", "lorentz")]
    comparison = compare(sides, rounds=options.rounds, threads=options.threads)
    names = [task for task in comparison if not task.endswith(", b")]
    rows = [[name, *(comparison.ratio(task, "lorentz", "torch") for task in (name, f"{name}, b"))] for name in names]
    show("time of lorentz's layers over torch's", ["layer", "forward", "forward and backward"], rows)
    tokens, odd = inputs(4, 1024, 127), inputs(4, 1024, 128)
    memory = {
        "nn.MultiheadAttention(128)": kept(attention(128, 4), tokens[0]),
        "LorentzMultiheadAttention, space of 127": kept(lorentz_attention(127, 4, 127), tokens[1]),
        "LorentzMultiheadAttention, space of 128": kept(lorentz_attention(128, 4, 128), odd[1]),
        "recipe of the page, heads of 32": kept(recipe(128, 4, 31), tokens[0]),
    }
    show("kept for the backward pass, 4 x 1,024 tokens, 4 heads", ["layer", "MB"], list(memory.items()))
    write_figures(options, comparison.figures() | {"kept": memory})


if __name__ == "__main__":
    main()
