"""What each part of a system costs: a training step, a video and a query of every row of a table, over its first row.

    python benchmarks/parts.py --table benchmarks/studies/best-toy.yaml
    python benchmarks/parts.py --table benchmarks/studies/arms-best-toy.yaml --arms words evidence

Each row has a process of its own, and they take turns. All read the same noise: videos of 30 frames or more and
captions of five words or more, as long as the model reads at most. A step has forward, losses with hard negatives,
backward and update. A video is encoded in a batch; a query is encoded and then scored with every video of a gallery
that is encoded already. Ratios are medians over rounds with the lowest and the highest.
"""

from contextlib import ExitStack
from typing import Any

import torch

from _harness import Contender, Tasks, compare, environment, option, parse_options, show, write_figures
from against import noise_batch, training_step
from prvr.errors import InputError
from prvr.models import build_retriever
from prvr.papers import Choices, Run, cells_of, read_table
from prvr.training.processes import kept_memory

PROCESS = ExitStack()  # of a contender's process, which keeps memory as the trainer does


def rows_of(table: str) -> dict[str, Run]:
    """The rows of a table that train, with their settings on its first data set."""
    found = read_table(table)
    cells = cells_of(found, Choices(), sets=found.sets[:1], seeds=[0])
    return {cell.row.name: cell.run for cell in cells if cell.run is not None and cell.run.kind == "train"}


def tasks(table: str, row: str, videos: int, gallery: int) -> Tasks:
    """A step of a row, its videos and its queries."""
    PROCESS.enter_context(kept_memory())
    config = rows_of(table)[row].config
    retriever: Any = build_retriever(config.model).eval()
    batch, one = noise_batch(config.model, videos), noise_batch(config.model, 1, captions=1)
    with torch.no_grad():
        _, encoded, _ = retriever.encode(batch)
        video = retriever.for_scoring(encoded[torch.arange(gallery) % videos])

    @torch.no_grad()
    def query() -> None:
        retriever.score(retriever.encode_text(one.words, one.word_mask), video)

    @torch.no_grad()
    def encode() -> None:
        retriever.encode_video(batch.clips, batch.frames, batch.frame_mask)

    return {"step": training_step(config, videos), "videos": encode, "query": query}


def main() -> None:
    args = parse_options(
        __doc__,
        arms=option([], "names of rows; default: all. The first row of the table is always measured"),
        videos=option(48, "videos of a batch, with 5 captions each in a step"),
        gallery=option(1000, "videos that a query is scored with"),
        rounds=3,
        table=option("benchmarks/studies/best-toy.yaml", "a file, or a name from `prvr papers list`"),
    )
    print(environment())
    known = rows_of(args.table)
    if unknown := set(args.arms) - {*known}:
        raise InputError(f"{args.table}: has no rows {sorted(unknown)} that train; it has {', '.join(known)}")
    names = [name for number, name in enumerate(known) if not number or not args.arms or name in args.arms]
    given = [Contender(name, tasks, (args.table, name, args.videos, args.gallery)) for name in names]
    found = compare(given, rounds=args.rounds, threads=args.threads)
    rows = [[name, *(found.ratio(task, name, names[0]) for task in found)] for name in names]
    show(f"time over that of {names[0]}", ["row", *found], rows)
    write_figures(args, found.figures())


if __name__ == "__main__":
    main()
