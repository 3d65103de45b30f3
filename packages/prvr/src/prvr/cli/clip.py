"""`prvr clip`: a part of a film as a file, and what `prvr search --save` has in common with it."""

from argparse import ArgumentTypeError, Namespace
from typing import TYPE_CHECKING

from prvr.cli.options import Parser, seconds

if TYPE_CHECKING:
    from prvr.video import VideoClip


def register(prvr: Parser) -> None:
    """Adds the command."""
    parser = prvr.command(
        "clip",
        run,
        "Write a part of a film as a file of its own",
        "FILM START-END [OUT] [--exact] [--force]",
        "Write a part of a film as a file of its own. It is copied, without a loss, from the key frame before "
        "START on, and the output says where that is; --exact encodes it anew, so that it starts at START. So is what "
        "the format of OUT does not take. Sound is kept where it can be.",
    )
    parser.add_argument("film", metavar="FILM", help="a video file")
    parser.add_argument(
        "moment",
        metavar="START-END",
        type=moment,
        help="two times, for example 12:30-12:45, 1:02:03.5-1:03:00 or 90-95",
    )
    parser.add_argument(
        "out",
        metavar="OUT",
        nargs="?",
        help="the file to write (.mp4, .mov, .mkv or .webm); by default, one in the current folder that is named "
        "after the film and the moment",
    )
    add_clip_options(parser)


def add_clip_options(parser: Parser) -> None:
    """Adds `--exact` and `--force`."""
    parser.add_argument("--exact", action="store_true", help="encode clips anew, so that they start exactly")
    parser.add_argument("--force", action="store_true", help="replace files that stand there")


def moment(text: str) -> tuple[float, float]:
    """The type of an argument that takes a part of a film, START-END, in seconds.

    Raises:
        ArgumentTypeError: the text is something else, or the end is not after the start.

    Examples:
        >>> moment("12:30-12:45"), moment("1:02:03.5-1:03:00"), moment("90-95.5")
        ((750.0, 765.0), (3723.5, 3780.0), (90.0, 95.5))
    """
    first, dash, second = text.partition("-")
    if not dash:
        raise ArgumentTypeError(f"expected START-END, for example 12:30-12:45, got {text!r}")
    start, end = seconds(first), seconds(second)
    if start >= end:
        raise ArgumentTypeError(f"expected an end after the start, got {text!r}")
    return start, end


def run(args: Namespace) -> None:
    """Writes the clip and says where it starts."""
    from prvr.video import clip_name, write_clip

    start, end = args.moment
    out = args.out or clip_name(args.film, start, end)
    print(told(write_clip(args.film, start, end, out, exact=args.exact, force=args.force), start, args.exact))


def told(clip: "VideoClip", start: float, exact: bool) -> str:
    """The line that is said of a clip.

    Args:
        clip: that was written.
        start: where it was to start, in seconds.
        exact: whether it was asked to start exactly.
    """
    from prvr.reading import printable

    how = "copied" if clip.copied else "encoded" if exact else "encoded, as its format does not take the film's streams"
    line = f"{printable(str(clip.path))}: written, {_clock(clip.start)} to {_clock(clip.end)}, {how}"
    line += "" if clip.sound else ", without sound"
    early = start - clip.start
    if early >= 0.05:
        line += f"; it starts at the key frame {early:.2f} s before {_clock(start)}, --exact starts there"
    return line


def _clock(time: float) -> str:
    """A time with hundredths of a second.

    Examples:
        >>> _clock(65.678), _clock(3599.999)
        ('1:05.68', '1:00:00.00')
    """
    from prvr.search.output import clock

    hundredths = round(100 * time)
    return f"{clock(hundredths // 100)}.{hundredths % 100:02}"
