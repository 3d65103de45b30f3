"""`prvr convert`: released checkpoints as model folders; captions and benchmarks as corpora."""

from argparse import Namespace
from pathlib import Path

from prvr.cli import corpora
from prvr.cli.options import Parser, one_of


def register(prvr: Parser) -> None:
    """Adds the commands."""
    group = prvr.group(
        "convert",
        "Convert released checkpoints, captions or benchmarks",
        "Convert released checkpoints, your own captions or public benchmarks into what the other commands read.",
    )
    parser = group.command(
        "checkpoint",
        run,
        "Convert a checkpoint of the authors' code",
        "FILE --dataset NAME --out DIR",
        "Convert a checkpoint of HLFormer, DreamPRVR or GMMFormer, as the authors' code saves it, into a folder that "
        "`Retriever.from_pretrained` and `prvr evaluate` read.",
    )
    parser.add_argument("file", metavar="FILE", help="the checkpoint, for example best.ckpt")
    parser.add_argument(
        "--dataset",
        required=True,
        **one_of("tvr", "activitynet", "charades"),
        help="the data set that it was trained on",
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder to write, new or empty")
    corpora.register(group)


def run(args: Namespace) -> None:
    """Converts a checkpoint and says how to evaluate it."""
    from prvr.released.convert import convert_checkpoint

    found = convert_checkpoint(Path(args.file), args.dataset, Path(args.out))
    parameters = sum(p.numel() for p in found.retriever.parameters())
    print(
        f"{args.out}: {found.system}, {parameters:,} parameters, configuration {found.source}.\n"
        f"Evaluate it: prvr evaluate {args.out} --data-root ROOT",
    )
