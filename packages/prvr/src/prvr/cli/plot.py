"""`prvr plot`: what a system computes, as pictures; every entry of `prvr.plot.PLOTS` is a command."""

from argparse import Namespace
from dataclasses import fields
from typing import Any, get_origin

from prvr.cli.folders import chosen_data, device_of, open_corpus_of
from prvr.cli.options import Parser, png_file
from prvr.plot import PLOTS


def register(prvr: Parser) -> None:
    """Adds the commands."""
    group = prvr.group("plot", "Plot what a system computes", "Plot what a system computes, as PNG.")
    for entry in PLOTS:
        usage = f"SYSTEM [--out {entry.name}.png] [OPTIONS]"
        parser = group.command(entry.name, run, entry.description, usage)
        parser.shared("system", "--stage", "--split", "--data-root", "--preset", "--device")
        parser.option("--out", type=png_file, metavar="FILE.png", default=f"{entry.name}.png", help="the picture")
        for field in fields(entry.settings):
            option: Any = field.default
            unsaid = option.default is None or option.default == ()
            parser.add_argument(
                f"--{field.name.replace('_', '-')}",
                dest=f"plot.{field.name}",
                default=option.default,
                metavar=option.title,
                help=option.description if unsaid else f"{option.description} (default: {option.default})",
                nargs="+" if get_origin(field.type) is tuple else None,
            )
        parser.set_defaults(plot=entry.name)


def run(args: Namespace) -> None:
    """Draws a picture and writes it."""
    from prvr.plot import draw, save_figure
    from prvr.systems import open_system, parse_stage

    device = device_of(args.device)
    system = open_system(args.system, [parse_stage(text) for text in args.stage], device=device)
    config = chosen_data(args, system.config_file, args.system)
    open_corpus_of(config, args.quiet)
    settings = {field.name: getattr(args, f"plot.{field.name}") for field in fields(PLOTS[args.plot].settings)}
    figure = draw(args.plot, system, config, args.split, settings, device=device)
    print(f"{save_figure(figure, args.out)}: {args.plot} of {args.system}")
