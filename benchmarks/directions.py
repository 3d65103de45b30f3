"""Does a model see which way things go? Videos of the toy corpus forwards and played backwards, by action.

    python benchmarks/directions.py --presets hybrid-toy best-toy --seeds 0 1 2
    python benchmarks/directions.py --motion none difference absolute features --features still all

Trains each preset, with the `model.motion` that it names or with others, on the features of the corpus, which hold how
each frame changes ("all"), or on copies without that half, which hold what each frame shows and no more ("still"). The
mean of the weights of the last five epochs is kept. Then for each action: the share of captions whose video, forwards,
scores higher than the same video backwards (chance 50), R@1 of both, and their difference. With --split train these are
the videos that it learned from, which shows what it knows by heart. Finished runs in the output folder are used again.
"""

from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from _harness import option, parse_options, show, write_figures
from prvr import Config, load_config
from prvr.data import Corpus, open_corpus, write_corpus
from prvr.data.synthetic import read_toy_scenes
from prvr.data.synthetic.encoder import DIM
from prvr.data.synthetic.world import ACTIONS, PUSHES
from prvr.evaluation import EvaluationConfig, report_from_scores
from prvr.training import open_split, terminal_bar
from toy_world.runs import adapted, finish, score_matrix, trained
from toy_world.variants import Read, reversed_in_time, write_variant

MOTIONS = ["none", "difference", "absolute", "features"]


def still(video_id: str, read: Read) -> np.ndarray:
    """The features of a video without their second half, which holds how frames change."""
    x = read(video_id)
    return np.concatenate([x[:, :DIM], np.zeros_like(x[:, DIM:])], 1)


def variant(corpus: Corpus, features: str, output: Path) -> Corpus:
    """The corpus itself, or its copy without motion, made where it does not exist."""
    if features == "all":
        return corpus
    place = output / features
    return open_corpus(place, corpus.name) if place.exists() else write_variant(corpus, place, corpus.splits, still)


def measured(config: Config, corpus: Corpus, seed: int, output: Path, name: str) -> dict[str, np.ndarray]:
    """For each caption of a split: is its video ahead of the same backwards, and is it found at rank 1 in either."""
    config = adapted(config, corpus, output / "packed", seed)
    run = finish(config, corpus, output / "runs", "cpu", terminal_bar)
    hits, scores = {}, {}
    with TemporaryDirectory(dir=output) as scratch:
        turned = adapted(config, write_variant(corpus, scratch, (name,), reversed_in_time), Path(scratch) / "p", seed)
        for way, chosen in (("R@1", config), ("backwards", turned)):
            with open_split(chosen, name) as split:
                scores[way] = score_matrix(trained(config, run, split, "cpu"), split, "cpu")
                report = report_from_scores(scores[way], split, EvaluationConfig(bootstrap=0))
                own = torch.from_numpy(split.query_to_video)[:, None]
                hits[way] = report.ranks <= 1
    ahead = [matrix.gather(1, own)[:, 0] for matrix in scores.values()]
    less = hits["R@1"].astype(float) - hits["backwards"]
    return {"forwards ahead": (ahead[0] > ahead[1]).numpy()} | hits | {"R@1 less backwards": less}


def main() -> None:
    args = parse_options(
        __doc__,
        size="demo",
        presets=["hybrid-toy"],
        motion=option([], "values of model.motion; default: each preset's own", choices=MOTIONS),
        features=option(["all"], choices=["all", "still"]),
        split=option("test", choices=["train", "val", "test"]),
        seeds=[0],
        epochs=option(None, "default: the preset's", type=int),
        output=Path("runs/directions"),
    )
    args.output.mkdir(parents=True, exist_ok=True)
    corpus = write_corpus(args.output, args.size)
    sentences = {sentence.id: sentence.claim.action for sentence in read_toy_scenes(corpus)[args.split].sentences}
    with open_split(adapted(load_config("hybrid-toy"), corpus, args.output / "packed", 0), args.split) as split:
        actions = np.array([sentences[name] for name in split.query_ids])
    groups = {"all": np.ones(len(actions), bool), "directions": ~np.isin(actions, PUSHES)} | {
        action: actions == action for action in ACTIONS
    }
    rows = []
    for features in args.features:
        chosen = variant(corpus, features, args.output)
        for preset, motion in product(args.presets, args.motion or [None]):
            keys = {"train.average": 5, "train.epochs": args.epochs, "model.motion": motion}
            config = load_config(preset, {key: value for key, value in keys.items() if value is not None})
            parts = [measured(config, chosen, seed, args.output, args.split) for seed in args.seeds]
            for what in parts[0]:
                shares = [100 * np.mean([part[what][asks].mean() for part in parts]) for asks in groups.values()]
                rows.append([preset, features, motion or "its own", what, *(f"{share:.1f}" for share in shares)])
    show(f"percent of captions, seeds {args.seeds}", ["preset", "features", "motion", "", *groups], rows)
    write_figures(args, {"rows": rows})


if __name__ == "__main__":
    main()
