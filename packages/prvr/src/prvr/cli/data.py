"""`prvr data make | show`: the corpus that prvr draws itself, as files and as pictures."""

from argparse import Namespace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from prvr.cli.console import CommandError, progress_bar, show_next
from prvr.cli.folders import open_corpus_of
from prvr.cli.options import Parser, png_file
from prvr.config import load_config
from prvr.errors import MissingExtraError, require

if TYPE_CHECKING:
    from prvr.data import Corpus
    from prvr.data.synthetic import Sentence
    from prvr.data.synthetic.world import Video


def register(prvr: Parser) -> None:
    """Adds the commands."""
    group = prvr.group(
        "data",
        "Make and view the toy corpus",
        "Make and view the toy corpus: videos that prvr draws itself, so that nothing has to be downloaded.",
    )
    parser = group.command(
        "make",
        run_make,
        "Write the toy corpus to files",
        "OUT [--size demo] [--seed 0] [--look day] [--mp4]",
        "Draw the videos of the toy corpus, encode them, and write them to OUT/toy-SIZE in the layout of the "
        "public feature files. If the same corpus is already there, it is left as it is.",
    )
    parser.add_argument("out", metavar="OUT", help="the folder that holds corpora")
    parser.shared("--size", "--seed")
    parser.option("--look", default="day", help="the light: day, or dusk or haze to test out of domain")
    parser.add_argument(
        "--mp4", action="store_true", help='write the videos as MP4 files too; needs pip install "prvr[video]"'
    )
    parser = group.command(
        "show",
        run_show,
        "Draw the contact sheet of a video",
        "VIDEO [--data-root OUT] [--size demo] [--look day] [--output FILE.png]",
        "Draw the contact sheet of one video: its frames in time order, its moments and its sentences.",
    )
    parser.add_argument("video", metavar="VIDEO", help="the id of the video, for example test0000")
    parser.add_argument(
        "--data-root", metavar="OUT", help="the folder of `prvr data make`; by default, the corpus in the cache"
    )
    parser.shared("--size")
    parser.option("--look", default="day", help="day, dusk or haze; needs --data-root")
    parser.add_argument(
        "--output", type=png_file, metavar="FILE.png", help="the picture; by default, VIDEO.png in the working folder"
    )


def run_make(args: Namespace) -> None:
    """Makes the corpus and says what to do with it."""
    from prvr.data import write_corpus

    if args.mp4:
        try:
            require("av", "video", "Writing video files")  # now, not when all is drawn
        except MissingExtraError as error:
            raise CommandError(f"--mp4: {error}. Nothing was made.") from error
    with progress_bar(f"making toy-{args.size}", args.quiet) as progress:
        corpus = write_corpus(Path(args.out), args.size, args.seed, look=args.look, progress=progress)
    print(f"{corpus.folder}: splits {', '.join(corpus.splits)}; {_usage(args, corpus)}")
    if args.mp4:
        from prvr.data.synthetic import write_videos

        with progress_bar("writing MP4 files", args.quiet) as progress:
            folder = write_videos(corpus, progress=progress)
        print(f"{folder}: one MP4 file per video")
        show_next("prvr", "search", folder, "a small blue circle rises")


def _usage(args: Namespace, corpus: "Corpus") -> str:
    video_dim, query_dim = corpus.dims()
    widths = f"frame features {video_dim} wide, words {query_dim}"
    if args.look != "day" or "train" not in corpus.splits:
        return f"{widths}\nTest on it: prvr evaluate RUN --transfer {corpus.folder}"
    # The presets read toy-demo, and a folder of that name is what `prvr data show` looks for.
    size = "" if args.size == "demo" else f" --size {args.size}"
    other = "" if args.size == "demo" else f" --data.collection toy-{args.size}"
    return (
        f"{widths}\nLook at a video: prvr data show test0000 --data-root {args.out}{size}\n"
        f"Train on it:     prvr train --preset hybrid-toy --data-root {args.out}{other}"
    )


def run_show(args: Namespace) -> None:
    """Draws the picture and lists the sentences."""
    corpus = _corpus(args)
    video, sentences = _find(corpus, args.video)
    from prvr.plot import save_figure
    from prvr.plot.videos import video_figure

    target = args.output or Path(f"{video.id}.png")
    replaced = "; replaces the file that was there" * target.exists()
    save_figure(video_figure(video, sentences, args.look), target)
    print(f"{target}: {corpus.name} {video.id}, {video.duration:.0f} s, {len(video.shots)} shots{replaced}")
    for sentence in sentences:
        print(f"  {sentence.start:5.1f} - {sentence.end:5.1f} s  {sentence.text}")


def _corpus(args: Namespace) -> "Corpus":
    from prvr.data import open_corpus
    from prvr.data.synthetic.render import DAY, LOOKS
    from prvr.data.synthetic.toy_corpus import toy_folder

    collection = f"toy-{args.size}"
    if args.look not in LOOKS:
        raise CommandError(f"--look {args.look}: expected one of {', '.join(LOOKS)}.")
    if args.data_root is None:
        if args.look != DAY:
            raise CommandError(
                f"--look {args.look}: the cache holds daylight only. Make one with `prvr data make OUT "
                f"--size {args.size} --look {args.look}`, and name it with --data-root OUT."
            )
        return open_corpus_of(load_config("hybrid-toy", {"data.collection": collection}), args.quiet)
    return open_corpus(args.data_root, toy_folder(args.data_root, args.size, args.look).name)


def _find(corpus: "Corpus", name: str) -> "tuple[Video, list[Sentence]]":
    from prvr.data.synthetic import read_toy_scenes

    splits = read_toy_scenes(corpus)
    for scenes in splits.values():
        for video in scenes.videos:
            if video.id == name:
                return video, [sentence for sentence in scenes.sentences if sentence.video_id == name]
    names = [video.id for scenes in splits.values() for video in scenes.videos]
    close = get_close_matches(name, names, n=3)
    ranges = [f"{s.videos[0].id} to {s.videos[-1].id}" for s in splits.values()]
    raise CommandError(
        f"{name!r} is no video of {corpus.folder}"
        + (f"; did you mean {', '.join(close)}?" if close else ".")
        + f" It has {', '.join(ranges)}."
    )
