"""The cost of table 4 of DiffusionRet: time and memory by the number of sampling steps, as ratios to scoring alone.

    python benchmarks/diffusionret_steps.py --galleries 1000 3000 5000 --queries 1000

Vectors and weights are random, which changes neither; `prvr papers run diffusionret-table-4` gives the recalls.
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from _harness import Spread, environment, option, parse_options, peak, seconds, show
from prvr.scoring import max_scores
from prvr.stages import CandidateReranker, RerankerConfig


def main() -> None:
    args = parse_options(
        __doc__,
        galleries=option([500], "videos in the gallery"),
        queries=128,
        steps=option([1, 3, 5, 10, 30, 50], "numbers of sampling steps"),
        width=64,
        frames=12,
        device="cpu",
    )
    print(environment(args.device))
    config = RerankerConfig(width=args.width, attention_temperature=0.1, candidates=32)
    reranker = CandidateReranker(config).to(args.device).eval()
    rows: list[list[Any]] = [["scoring alone"], *([count] for count in args.steps)]
    for size in args.galleries:
        text = F.normalize(torch.randn(args.queries, args.width, device=args.device), dim=-1)
        frames = F.normalize(torch.randn(size, args.frames, args.width, device=args.device), dim=-1)
        mask = torch.ones(size, args.frames, dtype=torch.bool, device=args.device)
        score = partial(max_scores, text, frames, mask, dots=False)
        rerank = partial(reranker.rerank, score()[0], text, frames, mask)
        rows[0] += ["1.00", f"{peak(score, args.device)[1] / 2**20:.0f}"]
        for row, count in zip(rows[1:], args.steps, strict=True):
            run = partial(rerank, num_steps=count)
            pairs = [(seconds(run, args.device)[1], seconds(score, args.device)[1]) for _ in range(3)]
            row += [Spread.of([1 + slow / fast for slow, fast in pairs]), f"{peak(run, args.device)[1] / 2**20:.0f}"]
    head = [f"{what}, {size:,} videos" for size in args.galleries for what in ("time", "MiB")]
    note = "32 candidates each; on a CPU memory is that of the whole process"
    show("time over that of scoring alone, and peak memory", ["steps", *head], rows, note=note)


if __name__ == "__main__":
    main()
