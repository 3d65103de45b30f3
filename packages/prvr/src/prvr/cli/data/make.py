"""`prvr data make`: the embedded corpus as files."""

from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser, Namespace

from prvr.cli.console import CommandError, leaf, stdout
from prvr.cli.embedded import collection_of, counting_bar
from prvr.errors import MissingExtraError

if TYPE_CHECKING:
    from prvr.data import Corpus

NAME = "make"
HELP = "write the embedded corpus"


def parser() -> ArgumentParser:
    """What it takes."""
    found = leaf(
        "prvr data make OUT [--size demo] [--seed 0] [--look day] [--mp4]",
        "Draw the videos of the embedded corpus, encode them, and write it into OUT/embedded-SIZE, in the layout of "
        "the public feature files. Where the same one stands already it is left as it is.",
    )
    found.add_argument("out", metavar="OUT", help="folder that holds collections")
    found.add_argument("--size", default="demo", help="tiny (100 videos), demo (720) or bench (2700)")
    found.add_argument("--seed", type=int, default=0, help="of everything")
    found.add_argument("--look", default="day", help="day, dusk or haze: another light, to test out of domain")
    found.add_argument("--mp4", action="store_true", help='the videos as files too; needs pip install "prvr[video]"')
    return found


def run(args: Namespace) -> None:
    """Carries it out."""
    collection = collection_of(args.size)
    if args.mp4:
        _require_av()  # now, not when all is drawn
    from prvr.data import write_corpus

    out, console = Path(args.out), stdout()
    with counting_bar(f"making {collection}", args.quiet) as progress:
        corpus = write_corpus(out, args.size, args.seed, look=args.look, progress=progress)
    video_dim, query_dim = corpus.dims()
    if args.look != "day":
        console.print(
            f"{corpus.folder}: splits {', '.join(corpus.splits)}\n"
            f"Test on it: prvr evaluate RUN --transfer {corpus.folder}",
            markup=False,
            soft_wrap=True,
        )
        _write_mp4(args, corpus)
        return
    # The presets read embedded-demo, and a folder of that name is what `prvr data show` looks for.
    size = "" if args.size == "demo" else f" --size {args.size}"
    other = "" if args.size == "demo" else f" --data.collection {collection}"
    console.print(
        f"{corpus.folder}: splits {', '.join(corpus.splits)}; frame features {video_dim} wide, words {query_dim}\n"
        f"Look at a video: prvr data show test0000 --data-root {out}{size}\n"
        f"Train on it:     prvr train --preset hybrid-embedded --data-root {out}{other}",
        markup=False,
        soft_wrap=True,
    )
    _write_mp4(args, corpus)


def _write_mp4(args: Namespace, corpus: "Corpus") -> None:
    """The videos as files, where they are asked for."""
    from prvr.data.synthetic import write_videos

    if not args.mp4:
        return
    with counting_bar("writing MP4 files", args.quiet) as progress:
        folder = write_videos(corpus, progress=progress)
    stdout().print(f"{folder}: one MP4 file per video", markup=False, soft_wrap=True)


def _require_av() -> None:
    from prvr.data.synthetic.mp4 import import_av

    try:
        import_av()
    except MissingExtraError as error:
        raise CommandError(f"--mp4: {error}. Nothing was made.") from error
