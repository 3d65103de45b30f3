"""`prvr plot`: pictures of a retriever and of a re-ranker."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace

from prvr.cli.console import CommandError, device_of, leaf, stdout
from prvr.cli.embedded import cached_corpus
from prvr.cli.folders import load_retriever, model_folder
from prvr.cli.transfer import check_features
from prvr.config import Config, load_config

if TYPE_CHECKING:
    from prvr.generation import RerankerInputs, SplitScores
    from prvr.stages import CandidateReranker

NAME = "plot"


def register(subcommands: Any) -> dict[tuple[str, ...], Callable[[Namespace], None]]:
    """Adds the commands."""
    group = ArgumentParser(
        exit_on_error=False,
        usage="prvr plot PICTURE ... (prvr plot PICTURE --help explains one)",
        description="Pictures of a retriever and of a re-ranker, as PNG files.",
    )
    subcommands.add_subcommand(NAME, group, help="pictures of a retriever and of a re-ranker")
    own = group.add_subcommands(dest="command", metavar="PICTURE")
    own.add_subcommand("trajectory", _trajectory_parser(), help="from noise to an order of the candidates of a query")
    own.add_subcommand("scores", _scores_parser(), help="scores of right and wrong pairs, in and out of domain")
    own.add_subcommand("attention", _attention_parser(), help="what texts take of the frames of a video")
    return {(NAME, "trajectory"): trajectory, (NAME, "scores"): scores, (NAME, "attention"): attention}


def trajectory(args: Namespace) -> None:
    """Draws what a re-ranker generates for one query."""
    from prvr.plot import save_figure, trajectory_figure, trajectory_of

    config, weights = _run(args)
    with _scores(args, config, weights) as found:
        reranker, inputs = _reranker(args.reranker, found)
        row = _number(args.query, found.split.query_ids, "query")
        drawn = trajectory_of(reranker, found, inputs, row, top_k=args.candidates, num_steps=args.steps, seed=args.seed)
    lost = "" if drawn.right.any() else f"; no right video is among the {len(drawn.right)} candidates"
    path = save_figure(trajectory_figure(drawn, panels=args.panels), args.out)
    stdout().print(f"{path}: {drawn.query}{lost}", markup=False, soft_wrap=True)


def scores(args: Namespace) -> None:
    """Draws the scores of right and wrong pairs on the run's own corpus and on others."""
    from prvr.data import open_corpus
    from prvr.evaluation.transfer import target_split
    from prvr.plot import pair_scores, save_figure, scores_figure

    config, weights = _run(args)
    asked = [(config.data.collection, config, args.split)]
    for target in args.transfer or ():
        folder = Path(target).expanduser()
        data = replace(config.data, root=str(folder.parent), collection=folder.name, feature=None)
        other = replace(config, data=data)
        check_features(config, other)
        split = target_split(open_corpus(folder.parent, folder.name), args.split)
        asked.append((f"{config.data.collection} -> {folder.name}", other, split))
    domains = {}
    for name, other, split in asked:
        with _scores(args, other, weights, split) as found:
            domains[name] = pair_scores(found)
            if args.rerank is not None:
                domains[f"{name}, re-ranked"] = pair_scores(found, *_reranker(args.rerank, found))
    path = save_figure(scores_figure(domains, bins=args.bins), args.out)
    lines = [f"  {name}: AUC {pairs.auc:.3f}" for name, pairs in domains.items()]
    stdout().print("\n".join([f"{path}: right and wrong pairs", *lines]), markup=False, soft_wrap=True)


def attention(args: Namespace) -> None:
    """Draws what the texts of a video take of its frames."""
    from prvr.plot import attention_figure, attention_of, save_figure

    config, weights = _run(args)
    with _scores(args, config, weights) as found:
        reranker, inputs = _reranker(args.reranker, found)
        video = _number(args.video, found.split.video_ids, "video")
        drawn = attention_of(reranker, inputs, found.split, video)
    path = save_figure(attention_figure(drawn), args.out)
    stdout().print(f"{path}: {drawn.video}, {len(drawn.texts)} texts", markup=False, soft_wrap=True)


def _trajectory_parser() -> ArgumentParser:
    found = _common("trajectory RUN RERANKER [--query 0] [--out trajectory.png]", "The way of a query's candidates.")
    found.add_argument("reranker", metavar="RERANKER", help="a run of `prvr train --stage generation`")
    found.add_argument("--query", default="0", help="id or number of a query of the split")
    found.add_argument("--candidates", type=int, metavar="N", help="default: as many as are re-ranked")
    found.add_argument("--steps", type=int, metavar="N", help="of sampling; default: that of the re-ranker")
    found.add_argument("--panels", type=int, default=6, help="levels that are drawn as bars")
    found.add_argument("--seed", type=int, default=0, help="of the noise")
    found.add_argument("--out", metavar="FILE.png", default="trajectory.png")
    return found


def _scores_parser() -> ArgumentParser:
    found = _common(
        "scores RUN [--transfer ROOT/COLLECTION ...] [--rerank RERANKER] [--out scores.png]",
        "Scores of right and wrong pairs.",
    )
    found.add_argument("--transfer", nargs="+", metavar="ROOT/COLLECTION", help="corpora that the run has not seen")
    found.add_argument("--rerank", metavar="RERANKER", help="a run of `prvr train --stage generation`: with it as well")
    found.add_argument("--bins", type=int, default=50, help="of each histogram")
    found.add_argument("--out", metavar="FILE.png", default="scores.png")
    return found


def _attention_parser() -> ArgumentParser:
    found = _common("attention RUN RERANKER [--video 0] [--out attention.png]", "What texts take of a video's frames.")
    found.add_argument("reranker", metavar="RERANKER", help="a run of `prvr train --stage generation`")
    found.add_argument("--video", default="0", help="id or number of a video of the split")
    found.add_argument("--out", metavar="FILE.png", default="attention.png")
    return found


def _common(usage: str, description: str) -> ArgumentParser:
    found = leaf(f"prvr plot {usage}", description)
    found.add_argument("run", metavar="RUN", help="a run of `prvr train`")
    found.add_argument("--data-root", metavar="ROOT", help="folder that holds the corpus (default: the run's)")
    found.add_argument("--split", help="default: the one that the configuration reports")
    found.add_argument("--device", choices=["cpu", "cuda", "auto"], default="auto")
    return found


def _run(args: Namespace) -> tuple[Config, Path]:
    """Configuration and weights of a run."""
    if Path(args.out).suffix.lower() != ".png":  # now, not when all is computed
        raise CommandError(f"--out {args.out}: expected a file that ends in .png.")
    weights, file = model_folder(Path(args.run))
    if file is None:
        raise CommandError(f"{args.run}: no config.yaml says which data it reads. Name a run of `prvr train`.")
    config = load_config(file)
    if args.data_root is not None:
        config = replace(config, data=replace(config.data, root=args.data_root))
    return config, weights


@contextmanager
def _scores(args: Namespace, config: Config, weights: Path, split: str | None = None) -> "Iterator[SplitScores]":
    """The scores of a run on a split, ready to be asked."""
    from prvr.evaluation.encode import encode_split, evaluation_mode
    from prvr.generation import SplitScores
    from prvr.training import open_split

    device, seed, retriever = device_of(args.device), config.train.seed, load_retriever(weights)
    config = replace(config, model=retriever.config)
    if config.data.root is None:
        cached_corpus(config, args.quiet)
    with closing(open_split(config, split or args.split or config.data.eval_split)) as packed:
        encoded = encode_split(retriever, packed, device=device, seed=seed)
        with evaluation_mode(retriever, device, seed):
            yield SplitScores(retriever, encoded, packed)


def _reranker(run: str, found: "SplitScores") -> "tuple[CandidateReranker, RerankerInputs]":
    """The re-ranker of texts to videos, and what it reads."""
    from prvr.generation import fingerprint, load_rerankers, reranker_inputs

    rerankers = load_rerankers(run)
    if "t2v" not in rerankers:
        raise CommandError(f"{run}: no re-ranker of direction t2v in it. Train one: --directions '[t2v]'.")
    reranker = rerankers["t2v"].to(found.encoded.text.device)
    reranker.expect_trained_on(fingerprint(found.retriever))  # pyright: ignore[reportArgumentType]
    return reranker, reranker_inputs(found.encoded, reranker.config)


def _number(name: str, names: tuple[str, ...], what: str) -> int:
    """The number that an id, or a number itself, stands for."""
    if name in names:
        return names.index(name)
    if name.isdigit() and int(name) < len(names):
        return int(name)
    close = get_close_matches(name, names, n=3)
    hint = f"; close: {', '.join(close)}" if close else f", for example {names[0]}"
    raise CommandError(f"--{what} {name}: expected an id, or a number from 0 to {len(names) - 1}{hint}.")
