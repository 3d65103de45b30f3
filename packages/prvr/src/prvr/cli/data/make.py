"""`prvr data make`: the embedded corpus as files."""

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from prvr.cli.console import CommandError, progress_bar
from prvr.cli.options import Parser
from prvr.errors import MissingExtraError, require

if TYPE_CHECKING:
    from prvr.data import Corpus


def register(data: Parser) -> None:
    """Adds the command."""
    parser = data.command(
        "make",
        run,
        "Write the embedded corpus to files",
        "OUT [--size demo] [--seed 0] [--look day] [--mp4]",
        "Draw the videos of the embedded corpus, encode them, and write them to OUT/embedded-SIZE in the layout of the "
        "public feature files. If the same corpus is already there, it is left as it is.",
    )
    parser.add_argument("out", metavar="OUT", help="the folder that holds corpora")
    parser.shared("--size", "--seed")
    parser.add_argument(
        "--look", default="day", help="day (default), dusk or haze: another light, to test out of domain"
    )
    parser.add_argument(
        "--mp4", action="store_true", help='write the videos as MP4 files too; needs pip install "prvr[video]"'
    )


def run(args: Namespace) -> None:
    """Makes the corpus and says what to do with it."""
    collection = f"embedded-{args.size}"
    if args.mp4:
        _require_av()  # now, not when all is drawn
    from prvr.data import write_corpus

    out = Path(args.out)
    with progress_bar(f"making {collection}", args.quiet) as progress:
        corpus = write_corpus(out, args.size, args.seed, look=args.look, progress=progress)
    video_dim, query_dim = corpus.dims()
    if args.look != "day":
        print(
            f"{corpus.folder}: splits {', '.join(corpus.splits)}\n"
            f"Test on it: prvr evaluate RUN --transfer {corpus.folder}",
        )
        _write_mp4(args, corpus)
        return
    # The presets read embedded-demo, and a folder of that name is what `prvr data show` looks for.
    size = "" if args.size == "demo" else f" --size {args.size}"
    other = "" if args.size == "demo" else f" --data.collection {collection}"
    print(
        f"{corpus.folder}: splits {', '.join(corpus.splits)}; frame features {video_dim} wide, words {query_dim}\n"
        f"Look at a video: prvr data show test0000 --data-root {out}{size}\n"
        f"Train on it:     prvr train --preset hybrid-embedded --data-root {out}{other}",
    )
    _write_mp4(args, corpus)


def _write_mp4(args: Namespace, corpus: "Corpus") -> None:
    """The videos as files, where they are asked for."""
    from prvr.data.synthetic import write_videos

    if not args.mp4:
        return
    with progress_bar("writing MP4 files", args.quiet) as progress:
        folder = write_videos(corpus, progress=progress)
    print(f"{folder}: one MP4 file per video")


def _require_av() -> None:
    try:
        require("av", "video", "Writing video files")
    except MissingExtraError as error:
        raise CommandError(f"--mp4: {error}. Nothing was made.") from error
