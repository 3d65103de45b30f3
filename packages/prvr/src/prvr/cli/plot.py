"""`prvr plot`: what a retriever or a re-ranker computes, as pictures."""

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from prvr.cli.console import CommandError
from prvr.cli.folders import chosen_data, device_of, open_split_of
from prvr.cli.options import Parser, png_file, whole_number
from prvr.config import Config

if TYPE_CHECKING:
    from prvr.data import PackedSplit
    from prvr.pipeline import System
    from prvr.stages import CandidateReranker, EncodedSplit, RerankerInputs, ScoreMatrix


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
        "RUN [--transfer ROOT/COLLECTION ...] [--stage KIND[:RUN][,KEY=VALUE]]... [--out scores.png] [OPTIONS]",
    )
    _add_common(drawn, "scores.png", reranker=False)
    drawn.shared("--transfer", "--stage")
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
        parser.add_argument("reranker", metavar="RERANKER", help="the folder of a run of `prvr train --retriever RUN`")
    parser.shared("--data-root", "--preset", "--split", "--device")
    parser.option("--out", type=png_file, metavar="FILE.png", default=out, help="the picture")


def trajectory(args: Namespace) -> None:
    """Draws what a re-ranker generates for one query."""
    from prvr.plot import save_figure, trajectory_figure, trajectory_of

    with _reranker(args) as (reranker, found, inputs, packed):
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
    from prvr.pipeline import open_system, parse_stage
    from prvr.plot import pair_scores, save_figure, scores_figure

    system = open_system(args.run, [parse_stage(text) for text in args.stage], device=device_of(args.device))
    config = chosen_data(args, system.config_file, args.run)
    asked = [(config.data.collection, config, args.split or config.data.eval_split)]
    for target in args.transfer:
        other, split = target_config(config, Path(target), args.split)
        asked.append((f"{config.data.collection} -> {other.data.collection}", other, split))
    parts, domains = system.parts(), {}
    for name, other, split in asked:
        with _encoded(args, system, other, split) as (packed, encoded):
            for part, pipeline in parts.items():
                label = f"{name}, {part}" if len(parts) > 1 else name
                domains[label] = pair_scores(pipeline, packed, encoded)
    path = save_figure(scores_figure(domains, bins=args.bins), args.out)
    lines = [f"  {name}: AUC {pairs.auc:.3f}" for name, pairs in domains.items()]
    print("\n".join([f"{path}: right and wrong pairs", *lines]))


def attention(args: Namespace) -> None:
    """Draws how the texts of a video attend to its frames."""
    from prvr.plot import attention_figure, attention_of, save_figure

    with _reranker(args) as (reranker, _, inputs, packed):
        drawn = attention_of(reranker, inputs, packed, _number(args.video, packed.video_ids, "video"))
    path = save_figure(attention_figure(drawn), args.out)
    print(f"{path}: {drawn.video}, {len(drawn.texts)} texts")


@contextmanager
def _encoded(
    args: Namespace, system: "System", config: Config, split: str
) -> "Iterator[tuple[PackedSplit, EncodedSplit]]":
    """A split and its embeddings, with the models of the system in evaluation mode."""
    from prvr.evaluation.encode import encode_split, evaluation_mode

    device, seed = device_of(args.device), config.train.seed
    with open_split_of(system, config, split, args.quiet) as packed:
        encoded = encode_split(system.pipeline, packed, device=device, seed=seed)
        with evaluation_mode(system.pipeline, device, seed):
            yield packed, encoded


@contextmanager
def _reranker(
    args: Namespace,
) -> "Iterator[tuple[CandidateReranker, ScoreMatrix, RerankerInputs, PackedSplit]]":
    """The re-ranker of texts to videos, the scores of its retriever on a split, what it reads, and the split."""
    from prvr.pipeline import open_system
    from prvr.stages import ScoreMatrix, fingerprint, load_rerankers, reranker_inputs

    system = open_system(args.run)
    config = chosen_data(args, system.config_file, args.run)
    rerankers = load_rerankers(args.reranker)
    if "t2v" not in rerankers:
        raise CommandError(f"{args.reranker}: no re-ranker of direction t2v in it. Train one: --directions '[t2v]'.")
    with _encoded(args, system, config, args.split or config.data.eval_split) as (packed, encoded):
        found = ScoreMatrix(system.pipeline.first, encoded, packed.relevant)
        reranker = rerankers["t2v"].to(encoded.text.device)
        reranker.expect_trained_on(fingerprint(found.retriever))  # pyright: ignore[reportArgumentType]
        yield reranker, found, reranker_inputs(encoded, reranker.config), packed


def _number(name: str, names: tuple[str, ...], what: str) -> int:
    """The position of an id, or the number itself."""
    if name in names:
        return names.index(name)
    if name.isdigit() and int(name) < len(names):
        return int(name)
    close = get_close_matches(name, names, n=3)
    hint = f"; close: {', '.join(close)}" if close else f", for example {names[0]}"
    raise CommandError(f"--{what} {name}: expected an id, or a number from 0 to {len(names) - 1}{hint}.")
