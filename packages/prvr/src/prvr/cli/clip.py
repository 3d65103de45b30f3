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
        "FILM START-END [OUT] [--force]",
        "Write a part of a film as a file of its own, encoded anew so that it starts exactly at START, with its sound.",
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
    parser.add_argument("--force", action="store_true", help="replace a file that stands there")


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
    """Writes the clip and says what it holds."""
    from prvr.video import clip_name, write_clip

    start, end = args.moment
    print(told(write_clip(args.film, start, end, args.out or clip_name(args.film, start, end), force=args.force)))


def told(clip: "VideoClip") -> str:
    """The line that is said of a clip that was written."""
    from prvr.reading import printable

    line = f"{printable(str(clip.path))}: written, {_clock(clip.start)} to {_clock(clip.end)}"
    return line if clip.sound else f"{line}, without sound"


def _clock(time: float) -> str:
    """A time with hundredths of a second.

    Examples:
        >>> _clock(65.678), _clock(3599.999)
        ('1:05.68', '1:00:00.00')
    """
    from prvr.search.output import clock

    hundredths = round(100 * time)
    return f"{clock(hundredths // 100)}.{hundredths % 100:02}"
