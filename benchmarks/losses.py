"""The losses over a boolean matrix of positives against loops over videos and queries, forward and backward.

    python benchmarks/losses.py [--videos 32] [--captions 5] [--hidden 384] [--rounds 5] [--device cuda]

Constants are those of `dreamprvr-tvr`; hard negatives come from a pool of 1, so that both ways choose the same ones and
must give equal values. The loops are those of `_plain_training`. Prints the median over rounds of loops / ours.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from _harness import Contender, Tasks, compare, environment, parse_options, show, write_figures
from _plain_training import diversity, info_nce, query_structure, triplet
from prvr.config import load_config
from prvr.losses import diversity_loss, info_nce_loss, query_structure_loss, triplet_loss

Loss = Callable[[Tensor], Tensor]
BRANCHES = {"triplet": 2.0, "InfoNCE": 2.0, "diversity": 1.0, "query structure": 1.0}
"""How often a step computes each."""


def losses(videos: int, captions: int, hidden: int, device: str) -> dict[str, tuple[Tensor, Loss, Loss]]:
    """Input, loops and ours of each loss."""
    torch.manual_seed(0)
    c = load_config("dreamprvr-tvr").loss
    video_of = torch.arange(videos, device=device).repeat_interleave(captions)
    own, owner = video_of[:, None] == torch.arange(videos, device=device), video_of.tolist()
    scores = 2 * torch.rand(len(owner), videos, device=device) - 1
    text, spread = torch.randn(len(owner), hidden, device=device), (c["diversity"].margin, c["diversity"].scale)
    temperature, power, margin = c["query_structure"].temperature, c["diversity"].power, c["triplet"].margin
    return {
        "triplet": (
            scores,
            lambda x: triplet(x, owner, margin, 1),
            lambda x: triplet_loss(x, own, own, margin, "hardest"),
        ),
        "InfoNCE": (20 * scores, lambda x: info_nce(x, owner), lambda x: info_nce_loss(x, own)),
        "diversity": (
            text,
            lambda x: diversity(x, owner, *spread, power),
            lambda x: diversity_loss(x, video_of, *spread, power),
        ),
        "query structure": (
            text,
            lambda x: query_structure(x, owner, temperature),
            lambda x: query_structure_loss(x, video_of, temperature),
        ),
    }


def both_ways(x: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    """Value and gradient."""
    x = x.detach().requires_grad_()
    value = loss(x)
    (gradient,) = torch.autograd.grad(value, x)
    return value.detach(), gradient


def tasks(ours: bool, sizes: tuple[int, int, int, str]) -> Tasks:
    return {name: partial(both_ways, found[0], found[1 + ours]) for name, found in losses(*sizes).items()}


def main() -> None:
    options = parse_options(__doc__, videos=32, captions=5, hidden=384, rounds=5, device="cpu")
    sizes = (options.videos, options.captions, options.hidden, options.device)
    for x, loops, ours in losses(*sizes).values():
        torch.testing.assert_close(both_ways(x, ours), both_ways(x, loops), rtol=1e-4, atol=1e-6)
    print(environment(options.device))
    sides = [Contender("loops", tasks, (False, sizes)), Contender("ours", tasks, (True, sizes))]
    comparison = compare(sides, rounds=options.rounds, threads=options.threads).total(BRANCHES, "all of a step")
    rows = [[task, comparison.ratio(task, "loops", "ours")] for task in comparison]
    show(f"losses of {options.videos} videos x {options.captions} captions", ["loss", "time, loops / ours"], rows)
    write_figures(options, comparison.figures())


if __name__ == "__main__":
    main()
