"""Ratios of lorentz's operations to plain forms and to geoopt, and of its layers to torch's, on one thread.

    python benchmarks/lorentz_ops.py [--what ops layers peers compiled card] [--rows 1024 --dim 128] [--peers FOLDER]

Below 1 is faster than the other side; medians of all rounds with the lowest and the highest. "auto" is the default
precision, which computes distances and centroids in float64; "compiled" is torch.compile of the operations in native
precision. "chosen" leaves float64 where it sees that all points lie within radius 3 and all pairs apart, which on a CPU
needs no wait; a GPU would have to compute both. The textbook forms and geoopt compute in float32, not compiled, and
lose most digits of close pairs (benchmarks/lorentz_accuracy.py). geoopt runs if it is installed.

Layers have tensors of the same number of ambient coordinates. `need_weights=False` is the attention that counts: ours
never forms the weights either. The recipe is that of docs/lorentz.md: vectors enter the hyperboloid, attend with an
output layer, and leave it. The last table holds what is kept for the backward pass.

`--what peers` compares with geoopt and hypll, each in a process of its own; FOLDER holds hypll (`pip install --no-deps
--target FOLDER hypll`). Points lie at distance 4, pairs at 0.5; times are those of forward and backward, also in
float64. Errors are those of float32 against the same library in float64: of points as distances, of numbers and vectors
relative. Peers without such a layer get the usual one of their own operations: attention by -d^2 and a mean in the
tangent space; "flat" is what torch has in their place in Euclidean space. With `--extension FILE` (`python
packages/lorentz/hatch_build.py FILE`) ours are the compiled operations, and "pure" ours without them. `--what compiled`
compares within torch.compile and leaves out what does not compile.

`--what card` measures `dist` on a CUDA device, in milliseconds and over its floor, three copies: x and y are read
twice, two gradients are written.
"""

import importlib
import importlib.util
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import lorentz.functional as lf
from _harness import (
    Contender,
    Spread,
    Tasks,
    compare,
    environment,
    option,
    parse_options,
    show,
    show_imports,
    timed,
    write_figures,
)
from lorentz.models import from_poincare, poincare_logmap, to_poincare
from lorentz.nn import (
    Curvature,
    ExpMap0,
    LogMap0,
    LorentzActivation,
    LorentzBatchNorm,
    LorentzConv2d,
    LorentzGraphConv,
    LorentzLayerNorm,
    LorentzLinear,
    LorentzMLR,
    LorentzMultiheadAttention,
    LorentzResidual,
)

Function = Callable[..., Tensor]
PAIRS, SETS = 64, 16
COMPILED = ("expmap0", "logmap0", "expmap", "logmap", "dist")
CHOSEN = ("expmap", "logmap", "dist")


def plain_expmap0(v: Tensor) -> Tensor:
    norm = v.norm(dim=-1, keepdim=True).clamp_min(1e-8)
    return torch.cat([torch.cosh(norm), torch.sinh(norm) / norm * v], dim=-1)


def plain_logmap0(x: Tensor) -> Tensor:
    space = x[..., 1:]
    norm = space.norm(dim=-1, keepdim=True).clamp_min(1e-8)
    return torch.acosh(x[..., :1].clamp_min(1.0 + 1e-7)) / norm * space


def plain_dist(x: Tensor, y: Tensor) -> Tensor:
    inner = (x[..., 1:] * y[..., 1:]).sum(-1) - x[..., 0] * y[..., 0]
    return torch.acosh((-inner).clamp_min(1.0 + 1e-7))


def plain_pairwise(x: Tensor, y: Tensor) -> Tensor:
    inner = x[..., 1:] @ y[..., 1:].mT - x[..., :1] * y[..., :1].mT
    return torch.acosh((-inner).clamp_min(1.0 + 1e-7))


def plain_centroid(x: Tensor, weights: Tensor) -> Tensor:
    total = weights @ x
    inner = total[..., 1:].square().sum(-1, keepdim=True) - total[..., :1].square()
    return total / (-inner).clamp_min(1e-8).sqrt()


def backward(function: Function, *inputs: Tensor) -> None:
    leaves = [x.detach().requires_grad_() for x in inputs]
    function(*leaves).square().sum().backward()


def inputs(rows: int, dim: int) -> dict[str, tuple[Tensor, ...]]:
    torch.empty(2**22)  # a process that trains has held larger arrays, and its allocator keeps pages from then on
    v = 0.1 * torch.randn(rows, dim)
    x, y = lf.expmap0(v), lf.expmap0(v.flip(0))
    points, weights = lf.expmap0(0.1 * torch.randn(SETS, 32, dim)), torch.rand(SETS, 8, 32)
    pairs = (x[:PAIRS], y[:PAIRS])
    named = {"expmap0": (v,), "logmap0": (x,), "expmap": (x, lf.logmap(x, y)), "logmap": (x, y), "dist": (x, y)}
    return named | {"pairwise_dist": pairs, "pairwise_dist, exact": pairs, "centroid": (points, weights)}


def tasks(functions: dict[str, Function], shape: tuple[int, int]) -> Tasks:
    """Each operation forward, and forward with backward."""
    named: dict[str, Callable[[], object]] = {}
    for name, arguments in inputs(*shape).items():
        if name in functions:
            named |= {
                name: partial(functions[name], *arguments),
                f"{name}, b": partial(backward, functions[name], *arguments),
            }
    return named


def ours(precision: str, shape: tuple[int, int]) -> Tasks:
    single = ("expmap0", "logmap0", "expmap", "logmap", "dist", "centroid")
    functions: dict[str, Function] = {name: getattr(lf, name) for name in single}
    functions |= {"pairwise_dist": lf.pairwise_dist, "pairwise_dist, exact": partial(lf.pairwise_dist, exact=True)}
    return tasks({name: partial(function, precision=precision) for name, function in functions.items()}, shape)


def near_and_apart(x: Tensor, y: Tensor, tangent: bool) -> bool:
    """Whether all points lie within radius 3 and no two of a pair are closer than 0.05; y may be tangent vectors."""
    space, other = x.detach()[..., 1:], y.detach()[..., 1:]
    squares = [part.square().sum(-1).max() for part in (space, other)]
    gap = other if tangent else other - space
    return bool((torch.stack(squares).max() <= 100.0) & (gap.square().sum(-1).min() > 0.0025))


def chosen(shape: tuple[int, int]) -> Tasks:
    """The native operations where the values allow it, and the default ones elsewhere."""

    def choose(name: str, x: Tensor, y: Tensor) -> Tensor:
        precision = "native" if near_and_apart(x, y, name == "expmap") else "auto"
        return getattr(lf, name)(x, y, precision=precision)

    return tasks({name: partial(choose, name) for name in CHOSEN}, shape)


def compiled(shape: tuple[int, int]) -> Tasks:
    torch._dynamo.config.recompile_limit = 64  # the operations share inner functions
    functions = {name: torch.compile(partial(getattr(lf, name), precision="native")) for name in COMPILED}
    return tasks(functions, shape)


def plain(shape: tuple[int, int]) -> Tasks:
    pairwise = {"pairwise_dist": plain_pairwise, "pairwise_dist, exact": plain_pairwise}
    single = {"expmap0": plain_expmap0, "logmap0": plain_logmap0, "dist": plain_dist, "centroid": plain_centroid}
    return tasks(single | pairwise, shape)


def geoopt(shape: tuple[int, int]) -> Tasks:
    """geoopt's k is 1/c, and its vectors at the origin are ambient."""
    import geoopt as library

    manifold = library.Lorentz(k=1.0)

    def expmap0(v: Tensor) -> Tensor:
        return manifold.expmap0(nn.functional.pad(v, (1, 0)))

    def pairwise(x: Tensor, y: Tensor) -> Tensor:
        return manifold.dist(x.unsqueeze(-2), y)

    functions = {name: getattr(manifold, name) for name in ("expmap", "logmap", "logmap0", "dist")}
    return tasks(functions | {"expmap0": expmap0, "pairwise_dist": pairwise, "pairwise_dist, exact": pairwise}, shape)


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
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if not isinstance(tensor, nn.Parameter) and storage.data_ptr() != x.untyped_storage().data_ptr():
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = layer(x)
    del output
    return sum(sizes.values()) / 2**20


def layer_inputs(*shape: int) -> tuple[Tensor, Tensor]:
    """A vector of as many coordinates as the point, and the point."""
    v = 0.1 * torch.randn(*shape)
    return torch.randn(*shape[:-1], shape[-1] + 1).requires_grad_(), lf.expmap0(v).requires_grad_()


def layers(ours: bool) -> dict[str, tuple[Layer, Tensor]]:
    """A layer and its input for each row of the table: torch's, or ours."""
    rows: dict[str, tuple[Layer, Tensor]] = {}

    def add(name: str, torchs: Layer, ours_layer: Layer, pair: tuple[Tensor, Tensor]) -> None:
        rows[name] = (ours_layer, pair[1]) if ours else (torchs, pair[0])

    add_single(add)
    for batch in (8, 128):
        tokens, odd = layer_inputs(batch, 128, 127), layer_inputs(batch, 128, 128)
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
    return rows


def add_single(add: Callable[[str, Layer, Layer, tuple[Tensor, Tensor]], None]) -> None:
    for dim in (127, 511):
        both, plain = layer_inputs(1024, dim), nn.Linear(dim + 1, dim + 1)
        add(f"LorentzLinear({dim}) : nn.Linear({dim + 1})", plain, LorentzLinear(dim, dim), both)
        bounded = LorentzLinear(dim, dim, magnitude="bounded")
        add(f"LorentzLinear({dim}, bounded) : nn.Linear({dim + 1})", plain, bounded, both)
    x, point = layer_inputs(1024, 127)
    add("LorentzLayerNorm : nn.LayerNorm", nn.LayerNorm(128), LorentzLayerNorm(127), (x, point))
    add("LorentzBatchNorm : nn.BatchNorm1d", nn.BatchNorm1d(128), LorentzBatchNorm(127), (x, point))
    pixels = layer_inputs(16, 16, 16, 31)
    images = pixels[0].detach().movedim(-1, 1).contiguous().requires_grad_(), pixels[1]
    name = "LorentzConv2d(31, 31, 3) : nn.Conv2d(32, 32, 3), 16 images of 16 x 16"
    add(name, nn.Conv2d(32, 32, 3), LorentzConv2d(31, 31, 3), images)
    edges, mean, graph = torch.rand(1024, 1024), nn.Linear(128, 128), LorentzGraphConv(127, 127)
    name = "LorentzGraphConv(127) : a linear layer and a product, dense graph of 1,024 nodes"
    add(name, lambda x: edges @ mean(x), lambda x: graph(x, edges), (x, point))
    add("LorentzActivation : nn.GELU", nn.GELU(), LorentzActivation(nn.GELU()), (x, point))
    residual = LorentzResidual()  # against the plain form of the same: the sum over its Lorentz length, in float32

    def plain_residual(x: Tensor) -> Tensor:
        s = 0.5 * (x + x.flip(0))
        return s / (-lf.lorentz_inner(s, s)).sqrt().unsqueeze(-1)

    add("LorentzResidual : its plain form", plain_residual, lambda x: residual(x, x.flip(0)), (point, point))
    add("LorentzMLR(127, 10) : nn.Linear(128, 10)", nn.Linear(128, 10), LorentzMLR(127, 10), (x, point))


def layer_tasks(ours: bool) -> Tasks:
    named: dict[str, Callable[[], object]] = {}
    for name, (layer, x) in layers(ours).items():
        named |= {name: partial(forward, layer, x), f"{name}, b": partial(both, layer, x)}
    return named


def compare_layers(rounds: int, threads: int) -> dict[str, Any]:
    """Tables of times and of memory; the figures of both."""
    sides = [Contender(name, layer_tasks, (name == "lorentz",)) for name in ("torch", "lorentz")]
    comparison = compare(sides, rounds=rounds, threads=threads)
    names = [task for task in comparison if not task.endswith(", b")]
    rows = [[name, *(comparison.ratio(task, "lorentz", "torch") for task in (name, f"{name}, b"))] for name in names]
    show("time of lorentz's layers over torch's", ["layer", "forward", "forward and backward"], rows)
    tokens, odd = layer_inputs(4, 1024, 127), layer_inputs(4, 1024, 128)
    memory = {
        "nn.MultiheadAttention(128)": kept(attention(128, 4), tokens[0]),
        "LorentzMultiheadAttention, space of 127": kept(lorentz_attention(127, 4, 127), tokens[1]),
        "LorentzMultiheadAttention, space of 128": kept(lorentz_attention(128, 4, 128), odd[1]),
        "recipe of the page, heads of 32": kept(recipe(128, 4, 31), tokens[0]),
    }
    show("kept for the backward pass, 4 x 1,024 tokens, 4 heads", ["layer", "MB"], list(memory.items()))
    return comparison.figures() | {"kept": memory}


Peer = Callable[[torch.dtype], dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]]]
ROWS, WIDTH, RADIUS, APART = 1024, 64, 4.0, 0.5


def peer_points(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Pairs of points at RADIUS, APART from each other, and the tangent vectors between them; float32 numbers."""
    torch.manual_seed(0)
    x = lf.expmap0(RADIUS * nn.functional.normalize(torch.randn(ROWS, WIDTH), dim=-1))
    v = lf.project_tangent(x, torch.randn(ROWS, WIDTH + 1))
    v = APART * v / lf.lorentz_inner(v, v).sqrt().unsqueeze(-1)
    return x.to(dtype), lf.expmap(x, v).to(dtype), v.to(dtype)


def our_peer(dtype: torch.dtype) -> dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]]:
    x, y, v = peer_points(dtype)
    ones, edges = torch.ones(1, ROWS, dtype=dtype), torch.rand(ROWS, ROWS).to(dtype)
    linear, graph = LorentzLinear(WIDTH, WIDTH).to(dtype), LorentzGraphConv(WIDTH, WIDTH).to(dtype)
    attend, norm = LorentzMultiheadAttention(WIDTH, 1).to(dtype), LorentzBatchNorm(WIDTH).to(dtype)
    return {
        "dist": (lf.dist, (x, y)),
        "expmap": (lf.expmap, (x, v)),
        "logmap": (lf.logmap, (x, y)),
        "pairwise": (partial(lf.pairwise_dist, exact=True), (x[:PAIRS], y[:PAIRS])),
        "linear": (linear, (x,)),
        "attention": (lambda x: attend(x, x, x), (x.unflatten(0, (-1, 64)),)),
        "centroid": (lambda x: lf.centroid(x, ones), (x,)),
        "mean": (lf.frechet_mean, (x,)),
        "batch norm": (norm, (x,)),
        "graph convolution": (lambda x: graph(x, edges), (x,)),
    }


def geoopt_peer(dtype: torch.dtype) -> dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]]:
    import geoopt as library

    x, y, v = peer_points(dtype)
    manifold = library.Lorentz(k=1.0)
    edges, weight = torch.rand(ROWS, ROWS).to(dtype), nn.Linear(WIDTH, WIDTH).to(dtype)
    maps = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3)).to(dtype)

    def through(layer: Layer, x: Tensor) -> Tensor:
        return manifold.expmap0(nn.functional.pad(layer(manifold.logmap0(x)[..., 1:]), (1, 0)))

    def attention(x: Tensor) -> Tensor:
        q, k, value = (through(layer, x) for layer in maps)
        weights = (-manifold.dist(q.unsqueeze(-2), k.unsqueeze(-3)).square()).softmax(-1)
        return manifold.expmap0(weights @ manifold.logmap0(value))

    return {
        "dist": (manifold.dist, (x, y)),
        "expmap": (manifold.expmap, (x, v)),
        "logmap": (manifold.logmap, (x, y)),
        "pairwise": (lambda x, y: manifold.dist(x.unsqueeze(-2), y), (x[:PAIRS], y[:PAIRS])),
        "linear": (partial(through, weight), (x,)),
        "attention": (attention, (x.unflatten(0, (-1, 64)),)),
        "graph convolution": (lambda x: through(lambda h: edges @ weight(h) / edges.sum(-1, keepdim=True), x), (x,)),
    }


def hypll_peer(dtype: torch.dtype) -> dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]]:
    """In the Poincare ball, which that library knows."""
    library, layers = importlib.import_module("hypll.manifolds.poincare_ball"), importlib.import_module("hypll.nn")
    tensors = importlib.import_module("hypll.tensors")
    ball = library.PoincareBall(library.Curvature(1.0, constraining_strategy=lambda c: c))
    x, y, _ = peer_points(torch.float64)
    p, q = to_poincare(x).float().to(dtype), to_poincare(y).float().to(dtype)
    v = poincare_logmap(to_poincare(x), to_poincare(y)).float().to(dtype)
    linear, norm = layers.HLinear(WIDTH, WIDTH, ball).to(dtype), layers.HBatchNorm(WIDTH, ball).to(dtype)

    def point(p: Tensor) -> Any:
        return tensors.ManifoldTensor(p, manifold=ball)

    def expmap(p: Tensor, v: Tensor) -> Tensor:
        return ball.expmap(tensors.TangentTensor(v, manifold_points=point(p), manifold=ball)).tensor

    return {
        "dist": (lambda p, q: ball.dist(point(p), point(q)), (p, q)),
        "expmap": (expmap, (p, v)),
        "logmap": (lambda p, q: ball.logmap(point(p), point(q)).tensor, (p, q)),
        "linear": (lambda p: linear(point(p)).tensor, (p,)),
        "centroid": (lambda p: ball.midpoint(point(p)).tensor, (p,)),
        "mean": (lambda p: ball.frechet_mean(point(p)).tensor, (p,)),
        "batch norm": (lambda p: norm(point(p)).tensor, (p,)),
    }


def flat_peer(dtype: torch.dtype) -> dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]]:
    """What takes the place of each in flat space."""
    x, y, v = peer_points(dtype)
    edges, weight = torch.rand(ROWS, ROWS).to(dtype), nn.Linear(WIDTH + 1, WIDTH + 1).to(dtype)
    attend = nn.MultiheadAttention(WIDTH + 1, 1, batch_first=True).to(dtype)
    return {
        "dist": (lambda x, y: (x - y).norm(dim=-1), (x, y)),
        "expmap": (torch.add, (x, v)),
        "logmap": (lambda x, y: y - x, (x, y)),
        "pairwise": (torch.cdist, (x[:PAIRS], y[:PAIRS])),
        "linear": (weight, (x,)),
        "attention": (lambda x: attend(x, x, x, need_weights=False)[0], (x.unflatten(0, (-1, 64)),)),
        "centroid": (lambda x: x.mean(0), (x,)),
        "mean": (lambda x: x.mean(0), (x,)),
        "batch norm": (nn.BatchNorm1d(WIDTH + 1).to(dtype), (x,)),
        "graph convolution": (lambda x: edges @ weight(x) / edges.sum(-1, keepdim=True), (x,)),
    }


def peer_tasks(make: Peer, in_ball: bool, compiled: bool, extension: str = "0") -> Tasks:
    """Times of forward and backward, and the largest error of a row; or only times, compiled."""
    os.environ["LORENTZ_EXTENSION"] = extension

    def error(name: str) -> float:
        results = []
        for dtype in (torch.float32, torch.float64):
            function, arguments = make(dtype)[name]
            results.append(function(*arguments).detach().double())
        got, right = (x.reshape(-1, 1 if name in ("dist", "pairwise") else x.shape[-1]) for x in results)
        if name in ("dist", "pairwise", "logmap"):
            return float(((got - right).norm(dim=-1) / right.norm(dim=-1)).max())
        if in_ball:
            got, right = from_poincare(got), from_poincare(right)
        return float(lf.dist(got, right).max())

    calls: dict[str, Callable[[], object]] = {}
    for dtype, suffix in ((torch.float32, ""), (torch.float64, ", float64")):
        for name, (function, arguments) in make(dtype).items():
            call = partial(backward, torch.compile(function) if compiled else function, *arguments)
            try:
                call()
            except torch._dynamo.exc.TorchDynamoException:  # hypll's linear layer does not compile
                continue
            calls[name + suffix] = call
            if not suffix and not compiled and make is not flat_peer:
                calls[f"{name}, error"] = partial(error, name)
    return calls


def timed_or_error(run: Callable[[], Any]) -> dict[str, float]:
    """An error as it is, or the time of anything else."""
    return {"error": run()} if "error" in getattr(run, "func", run).__qualname__ else dict(timed(run))


def compare_peers(
    rounds: int, threads: int, folder: str | None, extension: str | None, compiled: bool
) -> dict[str, Any]:
    """The table of times over ours, and of errors; the figures of both."""
    peers = [("lorentz", our_peer, extension or "0"), ("geoopt", geoopt_peer, "0")]
    peers += [("flat", flat_peer, "0"), *([("pure", our_peer, "0")] if extension else [])]
    sides = [Contender(name, peer_tasks, (make, False, compiled, use)) for name, make, use in peers]
    if folder is not None:
        sides.append(Contender("hypll", peer_tasks, (hypll_peer, True, compiled), (folder,)))
    comparison, others = compare(sides, rounds=rounds, threads=threads, measure=timed_or_error), sides[1:]
    rows = []
    for name in (task for task in comparison if not task.endswith(", error")):
        seconds, errors = comparison.measured[name], comparison.measured.get(f"{name}, error", {})
        times = [comparison.ratio(name, o.name, "lorentz") if o.name in seconds else "-" for o in others]
        most = [f"{errors[o.name][0]['error']:.0e}" if o.name in errors else "-" for o in sides]
        rows.append([name, *times, *most])
    head = ["operation", *(f"time of {o.name} over ours" for o in others), *(f"error of {o.name}" for o in sides)]
    show("peers, compiled" if compiled else "peers", head, rows)
    return comparison.figures()


def card() -> Tasks:
    """`dist`, and a copy."""
    with torch.device("cuda"):
        x, y = (lf.expmap0(0.1 * torch.randn(1_000_000, 128)) for _ in range(2))

    def both() -> None:
        leaves = x.detach().requires_grad_(), y.detach().requires_grad_()
        lf.dist(*leaves).sum().backward()

    return {"dist": both, "copy": x.clone}


def compare_card(rounds: int) -> dict[str, Any]:
    """The table of `dist` on a card; its figures."""
    comparison = compare([Contender("ours", card, ())], rounds=rounds)
    times, copies = comparison.values("dist", "ours"), comparison.values("copy", "ours")
    floor = [time / (3.0 * copy) for time, copy in zip(times, copies, strict=True)]
    rows = [[Spread.of([1e3 * time for time in times]), Spread.of(floor)]]
    show("dist, forward and backward, 1,000,000 x 128", ["ms", "over three copies"], rows)
    return comparison.figures()


def main() -> None:
    options = parse_options(
        __doc__, rounds=7, rows=1024, dim=128, what=option(["ops", "layers"]), peers=None, extension=None
    )
    print(environment())
    figures: dict[str, Any] = {}
    if "ops" in options.what:
        figures |= compare_ops((options.rows, options.dim), options.rounds, options.threads)
        show_imports({"lorentz": "import lorentz"}, options.rounds)
    if "layers" in options.what:
        figures |= compare_layers(options.rounds, options.threads)
    for what in ("peers", "compiled"):
        if what in options.what:
            figures |= compare_peers(
                options.rounds, options.threads, options.peers, options.extension, what == "compiled"
            )
    if "card" in options.what:
        figures |= compare_card(options.rounds)
    write_figures(options, figures)


def compare_ops(shape: tuple[int, int], rounds: int, threads: int) -> dict[str, Any]:
    """Tables of times, forward and with backward; their figures."""
    sides = [Contender("auto", ours, ("auto", shape)), Contender("native", ours, ("native", shape))]
    sides += [Contender(make.__name__, make, (shape,)) for make in (chosen, compiled, plain)]
    others = ["plain", *(["geoopt"] if importlib.util.find_spec("geoopt") else [])]
    sides += [Contender(name, geoopt, (shape,)) for name in others[1:]]
    comparison = compare(sides, rounds=rounds, threads=threads)
    for suffix, title in (("", "forward"), (", b", "forward and backward")):
        rows = []
        for name in inputs(2, 2):
            measured = comparison.measured[name + suffix]
            ways = [way for way, names in (("chosen", CHOSEN), ("compiled", COMPILED)) if name in names]
            for precision in ("auto", "native", *ways):
                cells = [comparison.ratio(name + suffix, precision, o) if o in measured else "-" for o in others]
                rows.append([name, precision, *cells])
        show(f"{title}: time over that of the others", ["operation", "precision", *others], rows)
    return comparison.figures()


if __name__ == "__main__":
    main()
