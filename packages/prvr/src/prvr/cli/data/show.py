"""`prvr data show`: one video of the embedded corpus as a picture."""

from argparse import Namespace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from prvr.cli.console import CommandError
from prvr.cli.folders import open_corpus_of
from prvr.cli.options import Parser, png_file
from prvr.config import load_config

if TYPE_CHECKING:
    from prvr.data import Corpus
    from prvr.data.synthetic import Sentence
    from prvr.data.synthetic.world import Video


def register(data: Parser) -> None:
    """Adds the command."""
    parser = data.command(
        "show",
        run,
        "Draw the contact sheet of a video",
        "VIDEO [--data-root OUT] [--size demo] [--look day] [--output FILE.png]",
        "Draw the contact sheet of one video: its frames in time order, its moments and its sentences.",
    )
    parser.add_argument("video", metavar="VIDEO", help="the id of the video, for example test0000")
    parser.add_argument(
        "--data-root", metavar="OUT", help="the folder of `prvr data make`; by default, the corpus in the cache"
    )
    parser.shared("--size")
    parser.add_argument("--look", default="day", help="day (default), dusk or haze; needs --data-root")
    parser.add_argument(
        "--output", type=png_file, metavar="FILE.png", help="the picture; by default, VIDEO.png in the working folder"
    )


def run(args: Namespace) -> None:
    """Draws the picture and lists the sentences."""
    corpus = _corpus(args)
    video, sentences = _find(corpus, args.video)
    from prvr.plot import save_figure, video_figure

    target = args.output or Path(f"{video.id}.png")
    replaced = "; replaces the file that was there" * target.exists()
    save_figure(video_figure(video, sentences, args.look), target)
    print(f"{target}: {corpus.name} {video.id}, {video.duration:.0f} s, {len(video.shots)} shots{replaced}")
    for sentence in sentences:
        print(f"  {sentence.start:5.1f} - {sentence.end:5.1f} s  {sentence.text}")


def _corpus(args: Namespace) -> "Corpus":
    from prvr.data import open_corpus
    from prvr.data.synthetic.corpus import embedded_folder
    from prvr.data.synthetic.render import DAY, LOOKS

    collection = f"embedded-{args.size}"
    if args.look not in LOOKS:
        raise CommandError(f"--look {args.look}: expected one of {', '.join(LOOKS)}.")
    if args.data_root is None:
        if args.look != DAY:
            raise CommandError(
                f"--look {args.look}: the cache holds daylight only. Make one with `prvr data make OUT "
                f"--size {args.size} --look {args.look}`, and name it with --data-root OUT."
            )
        return open_corpus_of(load_config("hybrid-embedded", {"data.collection": collection}), args.quiet)
    return open_corpus(args.data_root, embedded_folder(args.data_root, args.size, args.look).name)


def _find(corpus: "Corpus", name: str) -> "tuple[Video, list[Sentence]]":
    from prvr.data.synthetic import read_embedded_scenes

    splits = read_embedded_scenes(corpus)
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
