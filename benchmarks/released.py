"""The authors' code beside ours: GMMFormer, HLFormer, DreamPRVR or Holmes trained as published on a corpus of your own.

    python benchmarks/released.py --code CHECKOUT/src --data-root ROOT --output released/hlformer --ours RESULT.json ...

Runs the code of a checkout on the CPU, with its own loader, losses, optimiser and learning rate, at the sizes of
`benchmarks/studies/real-captions-seeds.yaml`. Its own validation scores the split val after each epoch. The best epoch
is converted as `prvr convert checkpoint` does and evaluated on the split test as `prvr evaluate` does. Each seed runs
in a process of its own and leaves a report with the rank of every query; finished seeds are not run again. With --ours,
reports that a study of `prvr papers` has left, the difference is judged for new videos and new seeds. Their code needs
easydict and einops, and for HLFormer geoopt.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from _harness import alone, option, parse_options, show, write_figures
from prvr.data import open_corpus
from prvr.evaluation import EvaluationConfig, EvaluationReport, evaluate
from prvr.evaluation.significance import seeds_test
from prvr.released.checkpoint_files import convert_checkpoint
from prvr.stages import Pipeline
from prvr.training import open_split

NAMES = {"tvr": "tvr", "activitynet": "act", "charades": "cha"}
SIZES = {"hidden_size": 128, "n_heads": 4, "lorentz_dim": 127, "batchsize": 32, "num_workers": 0, "pin_memory": False}


@contextmanager
def on_the_cpu() -> Iterator[None]:
    """Lets code run on the CPU that asks for a GPU and imports a debugger and a plotting library."""
    for name in ("ipdb", "seaborn"):
        sys.modules.setdefault(name, ModuleType(name))
    same = lambda self, *_, **__: self  # noqa: E731
    with patch.object(torch.Tensor, "cuda", same), patch.object(torch.nn.Module, "cuda", same):
        yield


def train(code: Path, dataset: str, keys: dict[str, Any], checkpoint: Path) -> dict[str, float]:
    """Trains with the modules of a checkout and saves the best epoch; returns its SumR on val and processor seconds."""
    sys.path.insert(0, str(code))
    sys.argv = ["main.py", "-d", NAMES[dataset]]
    with TemporaryDirectory() as scratch, on_the_cpu():
        with patch.object(os, "makedirs"), patch("builtins.open"):  # their configuration makes folders at import
            configs = import_module("Configs.builder").get_configs(NAMES[dataset])
        main = import_module("main")
        cfg = dict(configs) | keys | {"model_root": scratch, "ckpt_path": scratch}
        main.set_seed(cfg["seed"])
        cfg, batches, videos, queries, *_ = main.get_datasets(cfg)
        model = main.get_models(cfg)
        losses, validate = main.get_losses(cfg), main.get_validations(cfg)
        optimizer = main.get_opts(cfg, model, batches)
        best, spent = -1.0, 0.0
        for epoch in range(cfg["n_epoch"]):
            began = time.process_time()
            main.train_one_epoch(epoch, batches, model, losses, cfg, optimizer)
            spent += time.process_time() - began
            with torch.no_grad():
                sumr = float(validate(model, videos, queries)[4])
            if sumr > best:
                best = sumr
                torch.save({"state_dict": model.state_dict(), "config": cfg}, checkpoint)
    return {"val": best, "seconds": spent}


def measured(code: Path, dataset: str, root: Path, keys: dict[str, Any], output: Path) -> dict[str, float]:
    """Trains one seed, converts its best epoch and writes the report on test."""
    with TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "best.ckpt"
        figures = train(code, dataset, keys, checkpoint)
        converted = convert_checkpoint(checkpoint, dataset, Path(folder) / "converted")
        data = replace(converted.config.data, root=str(root), feature=None)
        with closing(open_split(replace(converted.config, data=data), "test")) as split:
            evaluate(Pipeline(converted.retriever), split, EvaluationConfig(bootstrap=0)).to_json(output)
    return figures


def main() -> None:
    args = parse_options(
        __doc__,
        code=option(None, "the folder of their main.py", type=Path, required=True),
        data_root=option(None, "the folder that holds the corpus", type=Path, required=True),
        dataset=option("tvr", "the corpus, and whose of their configurations is taken", choices=list(NAMES)),
        output=option(None, "where the reports are written", type=Path, required=True),
        ours=option([], "reports of our runs to compare with, one for each seed", type=Path),
        seeds=[0, 1, 2],
        epochs=4,
        hard_negatives_from=2,
    )
    args.output.mkdir(parents=True, exist_ok=True)
    os.environ["TQDM_DISABLE"] = "1"  # before their code, in processes of its own, imports it
    frames, words = open_corpus(args.data_root, args.dataset).dims()
    base = SIZES | {"visual_feat_dim": frames, "q_feat_size": words, "data_root": str(args.data_root)}
    base |= {"n_epoch": args.epochs, "hard_negative_start_epoch": args.hard_negatives_from}
    rows, reports = [], []
    for seed in args.seeds:
        file = args.output / f"{args.dataset}-{args.epochs}-{seed}.json"
        figures = {}
        if not file.exists():
            keys = base | {"seed": seed}
            figures = alone(measured, args.code, args.dataset, args.data_root, keys, file, threads=args.threads)
        reports.append(EvaluationReport.from_json(file))
        cells = [f"{figures[key]:.1f}" if key in figures else "" for key in ("val", "seconds")]
        rows.append([seed, *cells, f"{reports[-1].text_to_video.sumr:.1f}"])
    show("the authors' code", ["seed", "SumR, val", "processor seconds of training", "SumR, test"], rows)
    figures: dict[str, Any] = {"rows": rows}
    if args.ours:
        ours = [EvaluationReport.from_json(file) for file in args.ours]
        theirs, own = (np.stack([report.ranks for report in group]) for group in (reports, ours))
        difference = seeds_test(theirs, own, reports[0].query_to_video)["sumr"]
        low, high = difference.interval.low, difference.interval.high
        print(f"ours less theirs, SumR: {difference.value:+.1f} [{low:.1f}, {high:.1f}], p = {difference.p_value:.3f}")
        figures["difference"] = vars(difference)
    write_figures(args, figures)


if __name__ == "__main__":
    main()
