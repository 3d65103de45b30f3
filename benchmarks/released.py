"""The authors' code beside ours: systems of PRVR trained as published on a corpus of your own, for a study.

    python benchmarks/released.py --code CHECKOUT/src --data-root ROOT --output STUDY --arm released-hlformer-tvr-4
    python benchmarks/released.py --code CHECKOUT --data-root ROOT --output STUDY --arm released-ms-sl-tvr-4 \
        --options margin=0.1

Runs the code of a checkout on the CPU, with its own loader, losses, optimiser and learning rate, at the sizes of
`benchmarks/studies/real-captions-seeds.yaml`. Its own validation scores the split val after each epoch. The best epoch
is converted as `prvr convert checkpoint` does and evaluated on the split test as `prvr evaluate` does. Each seed runs
in a process of its own and leaves a report with the rank of every query among the results of the study, where a row
with `history` shows it; finished seeds are not run again. `--options` are those of the command in their README. Frames
must be in BigFile form, under the name that the code gives them. Their code needs easydict and einops, HLFormer's
geoopt, and MS-SL's and DL-DKD's tensorboard.
"""

import logging
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import chdir, closing, contextmanager, nullcontext
from dataclasses import replace
from importlib import import_module
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
import yaml

from _harness import alone, option, parse_options
from prvr.data import open_corpus
from prvr.evaluation import EvaluationConfig, evaluate
from prvr.published.checkpoint_files import convert_checkpoint
from prvr.stages import Pipeline
from prvr.training import open_split

NAMES = {"tvr": "tvr", "activitynet": "act", "charades": "cha"}
SIZES = {"hidden_size": 128, "n_heads": 4, "lorentz_dim": 127, "batchsize": 32, "num_workers": 0, "pin_memory": False}
SIZES |= {"bsz": 32, "A_hidden_size": 128, "B_hidden_size": 128, "device": -1, "max_es_cnt": -1, "exp_id": "study"}
"""In the second line, names of the code of MS-SL and DL-DKD, and values that run it on the CPU for all epochs."""


@contextmanager
def on_the_cpu() -> Iterator[None]:
    """Lets code run on the CPU that asks for a GPU, imports a debugger and a plotting library, and checks each step."""
    for name in ("ipdb", "seaborn"):
        sys.modules.setdefault(name, ModuleType(name))
    same = lambda self, *_, **__: self  # noqa: E731
    on_gpu = (patch.object(kind, "cuda", same) for kind in (torch.Tensor, torch.nn.Module))
    with next(on_gpu), next(on_gpu), patch.object(torch.autograd, "detect_anomaly", nullcontext):
        yield


def train(code: Path, dataset: str, keys: dict[str, Any], checkpoint: Path) -> tuple[float, float]:
    """Trains with the modules of a checkout and saves the best epoch; returns its SumR on val and processor seconds."""
    sys.path.insert(0, str(code))
    with TemporaryDirectory() as scratch, on_the_cpu(), chdir(scratch):
        corpus = Path(scratch) / dataset  # their code writes beside what it reads
        corpus.mkdir()
        for side in ("FeatureData", "TextData"):
            (corpus / side).symlink_to(keys["data_root"] / dataset / side)
        keys = keys | dict.fromkeys(("data_root", "root_path", "results_root", "model_root", "ckpt_path"), scratch)
        return (configured if (code / "main.py").is_file() else optioned)(dataset, keys, checkpoint)


def configured(dataset: str, keys: dict[str, Any], checkpoint: Path) -> tuple[float, float]:
    """Training by code with a file of values for each data set: GMMFormer and what is built over it."""
    sys.argv = ["main.py", "-d", NAMES[dataset]]
    with patch.object(os, "makedirs"), patch("builtins.open"):  # their configuration makes folders at import
        cfg = dict(import_module("Configs.builder").get_configs(NAMES[dataset])) | keys
    main = import_module("main")
    main.set_seed(cfg["seed"])
    cfg, batches, videos, queries, *_ = main.get_datasets(cfg)
    model = main.get_models(cfg)
    losses, validate = main.get_losses(cfg), main.get_validations(cfg)
    optimizer = main.get_opts(cfg, model, batches)
    log = [logging.getLogger()] if "logger" in signature(main.train_one_epoch).parameters else []  # MSC-PRVR
    best, spent = -1.0, 0.0
    for epoch in range(cfg["n_epoch"]):
        began = time.process_time()
        main.train_one_epoch(epoch, batches, model, losses, cfg, optimizer, *log)
        spent += time.process_time() - began
        with torch.no_grad():
            scores = validate(model, videos, queries, *log)
        sumr = float((scores[0] if log else scores)[4])
        if sumr > best:
            best = sumr
            torch.save({"state_dict": model.state_dict(), "config": cfg}, checkpoint)
    return best, spent


def optioned(dataset: str, keys: dict[str, Any], checkpoint: Path) -> tuple[float, float]:
    """Training by code with options: MS-SL and DL-DKD."""
    main = import_module("method.train")
    options, scores = main.BaseOptions(), []
    options.initialize()
    options.parser.parse_args = lambda: options.parser.parse_known_args()[0]  # without keys of the other code
    sys.argv = ["train.py", *(f"--{key}={value}" for key, value in keys.items())]
    settings = options.parse()
    main.set_seed(settings.seed)
    validate = main.eval_epoch
    began = time.process_time()
    with patch.object(main, "eval_epoch", lambda *each: scores.append(validate(*each)) or scores[-1]):
        main.start_training(settings)
    shutil.copy(settings.ckpt_filepath, checkpoint)
    return max(scores), time.process_time() - began


def measured(code: Path, dataset: str, keys: dict[str, Any], output: Path) -> tuple[float, float]:
    """Trains one seed, converts its best epoch and writes the report on test."""
    with TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "best.ckpt"
        figures = train(code, dataset, keys, checkpoint)
        converted = convert_checkpoint(checkpoint, dataset, Path(folder) / "converted")
        data = replace(converted.config.data, root=str(keys["data_root"]), feature=None)
        with closing(open_split(replace(converted.config, data=data), "test")) as split:
            evaluate(Pipeline(converted.retriever), split, EvaluationConfig(bootstrap=0)).to_json(output)
    record = {"kind": "history", "seed": keys["seed"], "over": None, "code": f"the authors' {converted.system}"}
    text = yaml.safe_dump(record | {"epochs": keys["n_epoch"], "settings": {}}, sort_keys=False)
    output.with_suffix(".yaml").write_text(text, encoding="utf-8")
    return figures


def main() -> None:
    args = parse_options(
        __doc__,
        code=option(None, "the folder of their main.py, or of their folder method", type=Path, required=True),
        data_root=option(None, "the folder that holds the corpus", type=Path, required=True),
        dataset=option("tvr", "the corpus, and whose of their configurations is taken", choices=list(NAMES)),
        output=option(None, "the folder of the study", type=Path, required=True),
        arm=option(None, "the name of the results in the study", required=True),
        options=option([], "KEY=VALUE, values that differ from their configuration or defaults"),
        seeds=[0, 1, 2],
        epochs=4,
        hard_negatives_from=2,
    )
    results = args.output.absolute() / "results"
    results.mkdir(parents=True, exist_ok=True)
    os.environ["TQDM_DISABLE"] = "1"  # before their code, in processes of its own, imports it
    corpus = open_corpus(root := args.data_root.absolute(), args.dataset)
    frames, words = corpus.dims()
    base = SIZES | {"visual_feat_dim": frames, "q_feat_size": words, "data_root": root}
    base |= {"visual_feature": corpus.feature_folder.name, "collection": args.dataset, "dset_name": args.dataset}
    base |= {"n_epoch": args.epochs, "hard_negative_start_epoch": args.hard_negatives_from}
    base |= {key: yaml.safe_load(value) for key, value in (each.split("=", 1) for each in args.options)}
    for seed in args.seeds:
        file = results / f"{args.arm}-{seed}.json"
        if not file.exists():
            val, spent = alone(measured, args.code.absolute(), args.dataset, base | {"seed": seed}, file)
            print(f"seed {seed}: SumR {val:.1f} on val, {spent:.0f} processor seconds of training", flush=True)


if __name__ == "__main__":
    main()
