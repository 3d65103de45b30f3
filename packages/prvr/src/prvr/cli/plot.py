"""`prvr plot`: what a retriever or a re-ranker computes, as pictures."""

from argparse import Namespace
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from prvr.cli.console import CommandError
from prvr.cli.folders import config_of_run, device_of, open_corpus_of
from prvr.cli.options import Parser, png_file, whole_number
from prvr.config import Config

if TYPE_CHECKING:
    from prvr.data import PackedSplit
    from prvr.stages import CandidateReranker, RerankerInputs, ScoreMatrix

_RERANKER = "the folder of a run of `prvr train --retriever RUN`"


def register(prvr: Parser) -> None:
    """Adds the commands."""
    group = prvr.group(
        "plot",
        "Plot what a retriever or a re-ranker computes",
        "Plot what a retriever or a re-ranker computes, as PNG.",
    )
    drawn = group.command(
        "trajectory",
        trajectory,
        "Plot how a re-ranker orders the candidates of a query, from noise to the result",
        "RUN RERANKER [--query 0] [--out trajectory.png] [OPTIONS]",
    )
    _add_common(drawn, "trajectory.png", reranker=True)
    drawn.option("--query", default="0", help="the id or number of a query of the split")
    drawn.add_argument(
        "--candidates",
        type=whole_number,
        metavar="N",
        help="the number of candidates; by default, that of the re-ranker",
    )
    drawn.add_argument(
        "--steps", type=whole_number, metavar="N", help="the steps of the sampler; by default, those of the re-ranker"
    )
    drawn.option("--panels", metavar="N", default=6, help="the noise levels to draw as bars")
    drawn.shared("--seed", help="the seed of the noise (default: 0)")
    drawn = group.command(
        "scores",
        scores,
        "Plot the scores of right and wrong pairs, in and out of domain",
        "RUN [--transfer ROOT/COLLECTION ...] [--rerank RERANKER] [--out scores.png] [OPTIONS]",
    )
    _add_common(drawn, "scores.png", reranker=False)
    drawn.shared("--transfer")
    drawn.add_argument("--rerank", metavar="RERANKER", help=f"{_RERANKER}, to plot its scores too")
    drawn.option("--bins", default=50, help="the bins of each histogram")
    drawn = group.command(
        "attention",
        attention,
        "Plot how the texts of a video attend to its frames",
        "RUN RERANKER [--video 0] [--out attention.png] [OPTIONS]",
    )
    _add_common(drawn, "attention.png", reranker=True)
    drawn.option("--video", default="0", help="the id or number of a video of the split")


def _add_common(parser: Parser, out: str, reranker: bool) -> None:
    parser.shared("run")
    if reranker:
        parser.add_argument("reranker", metavar="RERANKER", help=_RERANKER)
    parser.shared("--data-root", "--preset", "--split", "--device")
    parser.option("--out", type=png_file, metavar="FILE.png", default=out, help="the picture")


def trajectory(args: Namespace) -> None:
    """Draws what a re-ranker generates for one query."""
    from prvr.plot import save_figure, trajectory_figure, trajectory_of

    config, weights = config_of_run(args, Path(args.run))
    with _scores(args, config, weights) as (found, packed):
        reranker, inputs = _reranker(args.reranker, found)
        row = _number(args.query, packed.query_ids, "query")
        drawn = trajectory_of(
            reranker, found, packed, inputs, row, top_k=args.candidates, num_steps=args.steps, seed=args.seed
        )
    lost = "" if drawn.right.any() else f"; no right video is among the {len(drawn.right)} candidates"
    path = save_figure(trajectory_figure(drawn, panels=args.panels), args.out)
    print(f"{path}: {drawn.query}{lost}")


def scores(args: Namespace) -> None:
    """Draws the scores of right and wrong pairs on the run's own corpus and on others."""
    from prvr.evaluation.transfer import target_config
    from prvr.plot import pair_scores, save_figure, scores_figure
    from prvr.stages import DiffusionStage, Pipeline, load_rerankers

    config, weights = config_of_run(args, Path(args.run))
    asked = [(config.data.collection, config, args.split)]
    for target in args.transfer:
        other, split = target_config(config, Path(target), args.split)
        asked.append((f"{config.data.collection} -> {other.data.collection}", other, split))
    domains = {}
    for name, other, split in asked:
        with _scores(args, other, weights, split) as (found, packed):
            domains[name] = pair_scores(found.retriever, packed, found.encoded)
            if args.rerank is not None:
                system = Pipeline(found.retriever, [DiffusionStage(load_rerankers(args.rerank))])
                domains[f"{name}, re-ranked"] = pair_scores(system, packed, found.encoded)
    path = save_figure(scores_figure(domains, bins=args.bins), args.out)
    lines = [f"  {name}: AUC {pairs.auc:.3f}" for name, pairs in domains.items()]
    print("\n".join([f"{path}: right and wrong pairs", *lines]))


def attention(args: Namespace) -> None:
    """Draws how the texts of a video attend to its frames."""
    from prvr.plot import attention_figure, attention_of, save_figure

    config, weights = config_of_run(args, Path(args.run))
    with _scores(args, config, weights) as (found, packed):
        reranker, inputs = _reranker(args.reranker, found)
        video = _number(args.video, packed.video_ids, "video")
        drawn = attention_of(reranker, inputs, packed, video)
    path = save_figure(attention_figure(drawn), args.out)
    print(f"{path}: {drawn.video}, {len(drawn.texts)} texts")


@contextmanager
def _scores(
    args: Namespace, config: Config, weights: Path, split: str | None = None
) -> "Iterator[tuple[ScoreMatrix, PackedSplit]]":
    """The scores of a run on a split, ready to be asked, and the split."""
    from prvr.evaluation.encode import encode_split, evaluation_mode
    from prvr.models import load_pretrained
    from prvr.stages import ScoreMatrix
    from prvr.training import open_split

    device, seed, retriever = device_of(args.device), config.train.seed, load_pretrained(weights)
    config = replace(config, model=retriever.config)
    open_corpus_of(config, args.quiet)
    with closing(open_split(config, split or args.split or config.data.eval_split)) as packed:
        encoded = encode_split(retriever, packed, device=device, seed=seed)
        with evaluation_mode(retriever, device, seed):
            yield ScoreMatrix(retriever, encoded, packed.relevant), packed


def _reranker(run: str, found: "ScoreMatrix") -> "tuple[CandidateReranker, RerankerInputs]":
    """The re-ranker of texts to videos, and what it reads."""
    from prvr.stages import fingerprint, load_rerankers, reranker_inputs

    rerankers = load_rerankers(run)
    if "t2v" not in rerankers:
        raise CommandError(f"{run}: no re-ranker of direction t2v in it. Train one: --directions '[t2v]'.")
    reranker = rerankers["t2v"].to(found.encoded.text.device)
    reranker.expect_trained_on(fingerprint(found.retriever))  # pyright: ignore[reportArgumentType]
    return reranker, reranker_inputs(found.encoded, reranker.config)


def _number(name: str, names: tuple[str, ...], what: str) -> int:
    """The position of an id, or the number itself."""
    if name in names:
        return names.index(name)
    if name.isdigit() and int(name) < len(names):
        return int(name)
    close = get_close_matches(name, names, n=3)
    hint = f"; close: {', '.join(close)}" if close else f", for example {names[0]}"
    raise CommandError(f"--{what} {name}: expected an id, or a number from 0 to {len(names) - 1}{hint}.")
