"""The losses over a boolean matrix of positives against loops over videos and queries, forward and backward.

    python benchmarks/losses.py [--videos 32] [--captions 5] [--hidden 384] [--rounds 5] [--device cuda]

Constants are those of `dreamprvr-tvr`; hard negatives come from a pool of 1, so that both ways choose the same ones and
must give equal values. The loops are those of `_plain_training`. Prints the median over rounds of loops / ours.
"""

import argparse
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from _device import median_ratio, seconds
from _plain_training import diversity, info_nce, query_structure, triplet
from prvr.config import load_config
from prvr.losses import diversity_loss, info_nce_loss, query_structure_loss, triplet_loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--videos", type=int, default=32)
    parser.add_argument("--captions", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    device, c = torch.device(args.device), load_config("dreamprvr-tvr").loss
    video_of = torch.arange(args.videos, device=device).repeat_interleave(args.captions)
    own, owner = video_of[:, None] == torch.arange(args.videos, device=device), video_of.tolist()
    scores = 2 * torch.rand(len(owner), args.videos, device=device) - 1
    text = torch.randn(len(owner), args.hidden, device=device)
    pairs: dict[str, tuple[Tensor, Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
        "triplet": (
            scores,
            lambda x: triplet(x, owner, c.margin, 1),
            lambda x: triplet_loss(x, own, own, c.margin, "hardest"),
        ),
        "InfoNCE": (20 * scores, lambda x: info_nce(x, owner), lambda x: info_nce_loss(x, own)),
        "diversity": (
            text,
            lambda x: diversity(x, owner, c.diversity_margin, c.diversity_scale, c.diversity_power),
            lambda x: diversity_loss(x, video_of, c.diversity_margin, c.diversity_scale, c.diversity_power),
        ),
        "query structure": (
            text,
            lambda x: query_structure(x, owner, c.query_structure_temperature),
            lambda x: query_structure_loss(x, video_of, c.query_structure_temperature),
        ),
    }

    def both_ways(x: Tensor, loss: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        value = loss(x)
        (gradient,) = torch.autograd.grad(value, x)
        return value.detach(), gradient

    table = Table(title=f"losses of {args.videos} videos x {args.captions} captions on {device}: loops / ours, time")
    table.add_column("loss")
    table.add_column("loops / ours", justify="right")
    all_slow, all_fast = [0.0] * args.rounds, [0.0] * args.rounds
    for name, (x, loops, ours) in pairs.items():
        for found, expected in zip(both_ways(x, ours), both_ways(x, loops), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
        slow = [seconds(lambda x=x, f=loops: both_ways(x, f), device)[1] for _ in range(args.rounds)]
        fast = [seconds(lambda x=x, f=ours: both_ways(x, f), device)[1] for _ in range(args.rounds)]
        twice = 2 if name in ("triplet", "InfoNCE") else 1  # once per branch
        all_slow = [a + twice * b for a, b in zip(all_slow, slow, strict=True)]
        all_fast = [a + twice * b for a, b in zip(all_fast, fast, strict=True)]
        table.add_row(name, f"{median_ratio(slow, fast):.1f}")
    table.add_row("all of a step", f"{median_ratio(all_slow, all_fast):.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
