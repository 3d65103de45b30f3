"""`prvr demo`: train a small model on the embedded corpus and show what it finds."""

from argparse import Namespace
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from prvr.cli.console import CommandError, progress_bar, stdout
from prvr.cli.folders import fresh_folder, open_corpus_of, threads
from prvr.cli.options import Parser
from prvr.cli.reports import show_baselines, show_report
from prvr.cli.train import show_folder, train
from prvr.config import Config, load_config
from prvr.errors import MissingExtraError

if TYPE_CHECKING:
    from prvr.data import Corpus, PackedSplit
    from prvr.evaluation.moments import ExampleQuery
    from prvr.evaluation.report import EvaluationReport

# What half a minute can show; hard negatives are of no use with so few videos.
_QUICK = {"data.collection": "embedded-tiny", "train.epochs": 8, "train.hard_negatives_from": 8, "train.batch_size": 12}
_EXAMPLES = (0.1, 0.5, 0.9)  # quantiles of the ranks, of which a query is shown each
_SENTENCE = "a small blue circle rises"
_FILMS = 24  # videos of the gallery that are written as files, in about a minute


def register(prvr: Parser) -> None:
    """Adds the command."""
    parser = prvr.command(
        "demo",
        run,
        "Train a small model in minutes and search with it",
        "[--quick] [--preset NAME] [--output RUN] [OPTIONS]",
        "Train a small model on videos that prvr draws itself, so that nothing is downloaded; compare it with chance "
        "and with the joint encoder without training; and find videos and moments from sentences.",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="use 100 videos and a few epochs, which shows that everything works but not how well",
    )
    parser.option("--preset", default="hybrid-embedded", metavar="NAME", help="a preset whose name ends in -embedded")
    parser.option(
        "--output", default="runs/demo", metavar="RUN", help="the run folder; if it is taken, RUN-1, RUN-2, ..."
    )


def run(args: Namespace) -> None:
    """Trains, compares and searches."""
    named = load_config(args.preset)
    from prvr.data import COLLECTIONS

    if named.data.collection not in COLLECTIONS:
        raise CommandError(
            f"--preset {args.preset}: reads {named.data.collection}. The demo takes a preset of the embedded corpus, "
            f"such as hybrid-embedded; for this one: prvr train --preset {args.preset} --data-root ROOT."
        )
    config = load_config(args.preset, _QUICK) if args.quick else named
    from prvr.training import open_split

    console, stem = stdout(), Path(args.output)
    # One thread: the matrices are small, and threads would wait for each other on a busy machine.
    with fresh_folder(stem, first=stem) as output, threads(1):
        corpus = open_corpus_of(config, args.quiet)
        with closing(open_split(config, "train")) as split:
            size = f"{len(split)} training videos and {len(split.query_ids)} sentences, drawn by prvr"
            print(f"corpus: {corpus.folder}: {size}")
            print(f"model:  {config.name}, {config.train.epochs} epochs, into {output}", flush=True)
        result = train(config, output, "cpu", quiet=args.quiet)
    name, picture = config.data.eval_split, output / "moments.png"
    with closing(open_split(config, name)) as split:
        note = f"{config.train.epochs} epochs on few videos show that it works, not how well" if args.quick else None
        show_baselines(console, config, result.report, note=note)
        show_report(console, result.report)
        examples, ranks = _examples(config, output, split, result.report)
        _draw(corpus, name, examples, ranks, picture)
    from prvr.evaluation.tables import examples_table

    console.print()
    console.print(examples_table(examples))
    print(f"These are a good, a median and a bad example: their right videos rank {', '.join(map(str, ranks))}.")
    show_folder(result)
    try:
        index = _index(corpus, name, examples, output, args.quiet)
        search = f'prvr search {index} "{_SENTENCE}"\nprvr serve {index}'
    except MissingExtraError as error:
        search = f"An index of video files, to search and serve, was left out: {error}"
    print(
        f"{picture}: frames of the moments found for these sentences, and of the true ones\n\n"
        f'A sentence of your own: python examples/own_sentence.py {output} "{_SENTENCE}"\n'
        f"{search}\n"
        "The videos are drawn by prvr: this is evidence about the machinery, not about natural video.",
    )


def _examples(
    config: Config, output: Path, split: "PackedSplit", report: "EvaluationReport"
) -> "tuple[tuple[ExampleQuery, ...], list[int]]":
    """What is found for three sentences, which are chosen by rank alone, and the ranks of their right videos."""
    from prvr.evaluation.moments import find_moments
    from prvr.models import load_pretrained

    order = report.ranks.argsort(kind="stable")
    queries = [int(order[int(share * len(order))]) for share in _EXAMPLES]
    found = find_moments(load_pretrained(output / "best"), split, queries, seed=config.train.seed)
    return found, [int(report.ranks[query]) for query in queries]


def _draw(corpus: "Corpus", split: str, examples: "Sequence[ExampleQuery]", ranks: Sequence[int], path: Path) -> None:
    """The picture of the first moment found for each sentence, and of the true one."""
    from prvr.data.synthetic import read_embedded_scenes, render_frames
    from prvr.plot import Excerpt, MomentComparison, moment_frames, moments_figure, save_figure

    videos = {video.id: video for video in read_embedded_scenes(corpus)[split].videos}

    def excerpt(video_id: str, start: float | None, end: float | None) -> Excerpt:
        video = videos[video_id]
        known = (0.0, video.duration) if start is None or end is None else (start, end)
        return Excerpt(video_id, start, end, render_frames(video, moment_frames(video, *known)))

    rows = [
        MomentComparison(
            example.caption,
            excerpt(example.hits[0].video_id, example.hits[0].start, example.hits[0].end),
            excerpt(example.video_id, example.start, example.end),
            example.correct,
            example.shared(example.hits[0]),
            f"a right video has rank {rank}",
        )
        for example, rank in zip(examples, ranks, strict=True)
    ]
    save_figure(moments_figure(rows), path)


def _index(corpus: "Corpus", split: str, examples: "Sequence[ExampleQuery]", output: Path, quiet: bool) -> Path:
    """Writes some videos as MP4 files, those of the examples first, extracts them, and creates an index of the model.

    Raises:
        prvr.MissingExtraError: PyAV is not installed.
    """
    from prvr.data.synthetic import write_videos
    from prvr.search import VideoIndex, open_model
    from prvr.video import VideoStore, extract, open_encoder

    shown = [video for example in examples for video in (example.video_id, example.hits[0].video_id)]
    chosen = list(dict.fromkeys([*shown, *corpus.split(split).video_ids]))[:_FILMS]
    store, index = output / "store", output / "index"
    with progress_bar("writing files", quiet) as progress:
        folder = write_videos(corpus, chosen, output / "videos", progress=progress)
    with threads(1):
        extract([folder], open_encoder("embedded"), store)
        found = VideoStore(store)
        with VideoIndex.create(index, open_model(output, found.header), found.header) as made:
            made.add(found)
    return index
