"""The parameters and the operations of a system, counted on the meta device: nothing is computed, no data are read.

python examples/count_operations.py --preset dreamprvr-tvr --captions 5
"""

import argparse
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

import prvr
from prvr.models import build_retriever
from prvr.papers.plan import random_batch

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--preset", default="dreamprvr-tvr", help="a preset, or a configuration file")
parser.add_argument("--captions", type=int, default=5, help="captions of each video in a training step")
args = parser.parse_args()

config = prvr.load_config(args.preset)
model, videos = config.model, config.train.batch_size
retriever: Any = build_retriever(model).to("meta")
objective = prvr.Objective(config.loss, model, retriever.registers).to("meta")


def count(videos: int, queries: int, trains: bool = False) -> int:
    """The operations of encoding videos and queries as long as the model reads, or of a training step of them."""
    owner = torch.arange(queries) * videos // queries
    batch = random_batch(model, [model.max_frames] * videos, [model.max_words] * queries, owner, "meta")
    with FlopCounterMode(display=False) as counter:
        if trains:
            objective(retriever(batch), batch, negatives="hard")["total"].backward()
        else:
            retriever.encode(batch)
    return counter.get_total_flops()


step = count(videos, videos * args.captions, trains=True)
retriever.eval().requires_grad_(False)
both = count(1, 1)
query = count(1, 2) - both
parameters = sum(p.numel() for module in (retriever, objective) for p in module.parameters())
print(f"{args.preset}: {parameters:,} parameters; 2 operations for each multiplication with its addition")
print(f"a query {query:.3g}, a video {both - query:.3g}, a step of {videos} videos {step:.3g}")
