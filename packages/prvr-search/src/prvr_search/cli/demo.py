"""`prvr demo`: search with the model that ships with prvr, then train one on the toy corpus and show its results."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

import prvr
from prvr.cli.console import progress_bar, stdout
from prvr.cli.evaluate import show_baselines, show_report
from prvr.cli.folders import device_of, fresh_folder, open_corpus_of, threads
from prvr.cli.options import MODELS, app
from prvr.cli.train import show_folder, train

_QUICK = {
    "train.epochs": 6,
    "train.hard_negatives_from": 6,
    "train.batch_size": 24,
    "optim.lr": 0.002,
    "fit.windows": [[8, 12, 16]],
    "fit.temperatures": [0.05],
}
"""Keys of `gmmformer-toy`, which learns most in a minute: more steps in as many epochs, and larger ones."""
_WHOLE = {"train.average": 5}
"""Keys of `best-toy`. The few sentences of `val` cannot tell which of its last epochs is best."""
_SHIPPED = "toy-world"
_FIRST_VIDEOS, _FIRST_SEED = 6, 2_000_000_063  # a seed of its own: no model was trained on these videos
_EXAMPLES = (0.1, 0.5, 0.9)  # quantiles of the ranks, of which a query is shown each
_SENTENCE = "a small blue circle rises"
_VIDEOS = 24  # videos of the gallery that are written as files, in about a minute


@app.command(name="demo", group=MODELS)
def run(*, quick: bool = False, output: Annotated[Path, Parameter(metavar="RUN")] = Path("runs/demo")) -> None:
    """Search with a model that ships with prvr, then train one in minutes.

    Search a few videos with a small model that ships with prvr. Then train another one, compare it with chance and with
    the joint encoder without training, and find videos and moments from sentences. prvr draws all videos, so nothing is
    downloaded.

    Args:
        quick: train a smaller model for a few epochs: fast, rough result
        output: the run folder; if it exists, RUN-1, RUN-2, ...
    """
    from prvr.evaluation.moments import find_moments
    from prvr.evaluation.tables import examples_table
    from prvr.models import load_pretrained
    from prvr.plot import save_figure
    from prvr.plot.examples import examples_figure, pictures_of
    from prvr.training import open_split
    from prvr_search.films.toy_videos import write_videos

    config = prvr.load_config("gmmformer-toy", _QUICK) if quick else prvr.load_config("best-toy", _WHOLE)
    console = stdout()
    # One thread: the matrices are small, and threads would wait for each other on a busy machine.
    with fresh_folder(output, first=output) as run_folder, threads(1):
        _search_first(run_folder.with_name(f"{run_folder.name}-first"))
        print("\nTraining a new model from scratch, on other videos.")
        corpus = open_corpus_of(config)
        split = corpus.split("train")
        size = f"{len(split.video_ids)} training videos and {len(split.captions)} sentences, drawn by prvr"
        print(f"corpus: {corpus.folder}: {size}")
        print(f"model:  {config.name}, {config.train.epochs} epochs, into {run_folder}", flush=True)
        result = train(config, run_folder, "auto" if device_of("auto").type == "cuda" else "cpu")
    name, picture = config.data.eval_split, run_folder / "moments.png"
    with open_split(config, name) as split:
        note = f"{config.train.epochs} epochs show that training works, not how well" if quick else None
        show_baselines(console, config, result.report, note=note)
        show_report(console, result.report)
        order = result.report.ranks.argsort(kind="stable")
        queries = [int(order[int(share * len(order))]) for share in _EXAMPLES]
        examples = find_moments(load_pretrained(run_folder / "best"), split, queries, seed=config.train.seed)
        durations = dict(zip(split.video_ids, split.durations.tolist(), strict=True))
        save_figure(examples_figure(examples, durations, pictures_of(corpus, name)), picture)
    console.print()
    console.print(examples_table(examples))
    ranks = ", ".join(str(int(result.report.ranks[query])) for query in queries)
    print(f"A good, a median and a bad example. Ranks of their right videos: {ranks}.")
    show_folder(result)
    names = [video for example in examples for video in (example.video_id, example.hits[0].video_id)]
    chosen = list(dict.fromkeys([*names, *corpus.split(name).video_ids]))[:_VIDEOS]
    with progress_bar("writing files") as progress:
        videos = write_videos(corpus, chosen, run_folder / "videos", progress=progress)
    print(
        f"{picture}: frames of the best moments for these sentences\n\n"
        f'A sentence of your own: python examples/own_sentence.py {run_folder} "{_SENTENCE}"\n'
        f'prvr search {videos} "{_SENTENCE}" --model {run_folder}\nprvr serve {videos} --model {run_folder}\n'
        "The videos are drawn by prvr: these results say nothing about natural video."
    )


def _search_first(folder: Path) -> None:
    """Draws a few videos, searches them with the model that ships with prvr, and shows the results for a sentence."""
    from prvr.toy.near_misses import relevance
    from prvr_search import Library
    from prvr_search.cli.search import show
    from prvr_search.films.toy_videos import write_short_videos
    from prvr_search.output import clock_span, write_html

    print(
        f"Searching {_FIRST_VIDEOS} videos that prvr draws, with {_SHIPPED}, a small model that ships with prvr and "
        "was\ntrained on other videos.\n",
        flush=True,
    )
    videos = folder / "videos"
    films = write_short_videos(videos, _FIRST_VIDEOS, _FIRST_SEED)
    with Library(videos, model=_SHIPPED) as library:
        while (report := library.update()).waiting and not report.problem:
            time.sleep(0.1)  # another demo encodes the same videos
        results = library.index.search_many([sentence.text for sentence in films.sentences], _FIRST_VIDEOS)
    right = [*relevance(films.sentences, films.videos).values()]  # the video that it was written for among them
    # The largest gap between the best two scores: chosen by the results, not by the ground truth.
    clearest = max(range(len(results)), key=lambda n: results[n].hits[0].score - results[n].hits[1].score)
    sentence, best = films.sentences[clearest], results[clearest].hits[0]
    shown = replace(results[clearest], hits=results[clearest].hits[:3])
    show([shown])
    verdict = "Right" if best.video_id in right[clearest] else "Wrong"
    first = sum(result.hits[0].video_id in videos for result, videos in zip(results, right, strict=True))
    chance = sum(map(len, right)) / len(films.videos)
    print(
        f"{verdict}: the sentence was written for {sentence.video_id}, {clock_span(sentence.start, sentence.end)}. It "
        f"has the clearest result of\n{len(results)} sentences. A right video comes first for {first} of them; by "
        f"chance, for {chance:.0f}.",
        flush=True,
    )
    page = folder / "results.html"
    others = [replace(result, hits=result.hits[:1]) for result in results if result.query != shown.query]
    write_html(page, [shown, *others])
    print(
        f'{page}: the results of all of them, with pictures\nprvr search {videos} "{_SENTENCE}" --model {_SHIPPED}',
        flush=True,
    )
