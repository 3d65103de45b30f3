"""`prvr pipeline`: a first stage and its stages as one folder."""

from argparse import Namespace

from prvr.cli.console import show_next
from prvr.cli.folders import device_of
from prvr.cli.options import Parser


def register(prvr: Parser) -> None:
    """Adds the command."""
    parser = prvr.command(
        "pipeline",
        run,
        "Save a first stage and its stages as one folder",
        "SYSTEM [--stage KIND[:RUN][,KEY=VALUE]]... --output FOLDER",
        "Put a retriever and the stages that re-score its ranking into one folder, for `prvr evaluate`, `prvr index "
        "add --model` and other programs. SYSTEM may be a YAML file with the keys `first` and `stages`.",
    )
    parser.shared("system", "--stage")
    parser.add_argument("--output", required=True, metavar="FOLDER", help="the folder to write, new or empty")
    parser.shared("--device")


def run(args: Namespace) -> None:
    """Opens every part, checks that they fit together, and writes them."""
    from prvr.systems import open_system, parse_stage

    system = open_system(args.system, [parse_stage(text) for text in args.stage], device=device_of(args.device))
    config = None if system.config_file is None else system.config_file.read_text(encoding="utf-8")
    system.pipeline.save_pretrained(args.output, config)
    print("\n".join([*system.pipeline.describe(), f"{args.output}: the pipeline"]))
    show_next("prvr", "evaluate", args.output)
