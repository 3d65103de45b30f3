"""`prvr data make`: the embedded corpus as files."""

from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from prvr.cli.console import CommandError, leaf, stdout
from prvr.cli.embedded import collection_of, counting_bar

NAME = "make"
HELP = "write the embedded corpus"


def parser() -> ArgumentParser:
    """What it takes."""
    found = leaf(
        "prvr data make OUT [--size demo] [--seed 0] [--mp4]",
        "Draw the videos of the embedded corpus, encode them, and write it into OUT/embedded-SIZE, in the layout of "
        "the public feature files. Where the same one stands already it is left as it is.",
    )
    found.add_argument("out", metavar="OUT", help="folder that holds collections")
    found.add_argument("--size", default="demo", help="tiny (100 videos), demo (720) or bench (2700)")
    found.add_argument("--seed", type=int, default=0, help="of everything")
    found.add_argument("--mp4", action="store_true", help='the videos as files too; needs pip install "prvr[video]"')
    return found


def run(args: Namespace) -> None:
    """Carries it out."""
    collection = collection_of(args.size)
    if args.mp4:
        _require_av()  # now, not when all is drawn
    from prvr.data import write_corpus
    from prvr.data.synthetic import write_videos

    out, console = Path(args.out), stdout()
    with counting_bar(f"making {collection}", args.quiet) as progress:
        corpus = write_corpus(out, args.size, args.seed, progress=progress)
    video_dim, query_dim = corpus.dims()
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
    if args.mp4:
        with counting_bar("writing MP4 files", args.quiet) as progress:
            try:
                folder = write_videos(corpus, progress=progress)
            except ImportError as error:
                raise CommandError(f"--mp4: {error}") from error
        console.print(f"{folder}: one MP4 file per video", markup=False, soft_wrap=True)


def _require_av() -> None:
    from prvr.data.synthetic.mp4 import import_av

    try:
        import_av()
    except ImportError as error:
        raise CommandError(f"--mp4: {error}. Nothing was made.") from error
