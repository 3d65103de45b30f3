"""Train the small model of the toy world that ships with prvr, `toy-world`, and pack it.

    python scripts/train_toy_world.py                 # into packages/prvr/src/prvr/models/shipped/toy-world
    python scripts/train_toy_world.py --size tiny --epochs 1 --output /tmp/model --work /tmp/work

It draws a corpus of its own, whose seed no other corpus has, trains on it, and writes the best epoch as float16. If it
was stopped, the same command goes on from its last epoch. Run it again whenever the toy world or its encoder changes:
`tests/prvr/test_shipped.py` compares what the file says of its training with both. About 15 minutes on one core.
"""

import argparse
import json
import platform
import time
from contextlib import closing
from pathlib import Path

import torch
from safetensors.torch import save

from prvr.config import Config, dump_config, load_config
from prvr.data import open_corpus
from prvr.data.atomic import publish, temporary_folder
from prvr.data.hashes import write_hashes
from prvr.evaluation import EvaluationConfig, evaluate
from prvr.evaluation.zero_shot import Comparison, compare_baselines, untrained_baselines
from prvr.models import load_pretrained
from prvr.models.pretrained import ABOUT, CONFIG, SHIPPED, WEIGHTS
from prvr.toy import load_encoder, write_corpus
from prvr.toy.toy_corpus import GENERATOR, VERSION
from prvr.training import kernel_baseline, open_split, terminal_bar, train

NAME, SEED = "toy-world", 2_000_000_033  # the seed of no corpus that anybody makes by chance
PRESET = "hybrid-toy"
CHANGES = {
    "name": NAME,
    "model.registers.kind": "none",  # they need diffusers, whose import takes longer than a first search may
    "loss.prior_kl": 0.0,
    "loss.diffusion": 0.0,
    "optim.lr": 0.003,
    "train.batch_size": 24,
    "train.hard_negatives_from": 4,
    "train.patience": 100,
}


def beside(config: Config, folder: Path) -> Comparison:
    """The packed model on the test split of its own corpus, beside zero-shot and kernel regression."""
    with closing(open_split(config, "test")) as split:
        report = evaluate(load_pretrained(folder), split, EvaluationConfig(bootstrap=0))
        kernel = {name: evaluate(path, split) for name, path in kernel_baseline(config).items()}
        return compare_baselines(report, split, untrained_baselines(report, split) | kernel)


def pack(config: Config, best: Path, folder: Path, about: dict[str, object]) -> None:
    """Writes the weights as float16 with what is known of their training, and the configuration."""
    model = load_pretrained(best)
    weights = {name: t.half() if t.is_floating_point() else t for name, t in model.state_dict().items()}
    (folder / WEIGHTS).write_bytes(save(weights, {"format": "pt", ABOUT: json.dumps(about)}))
    (folder / CONFIG).write_bytes((best / CONFIG).read_bytes())
    # Which data it is evaluated on by default; the corpus that it was trained on stands in the weights and in the card.
    usual = load_config(PRESET, CHANGES | {"train.epochs": config.train.epochs})
    (folder / "config.yaml").write_text(dump_config(usual), encoding="utf-8", newline="\n")


def card(about: dict[str, object], found: Comparison, parameters: int) -> str:
    rows = [*found.baselines.items(), ("this model, float16 as it ships", found.model)]
    lines = [f"| {name} | {m.r1:.1f} | {m.r5:.1f} | {m.r10:.1f} | {m.sumr:.1f} |" for name, m in rows]
    return f"""# {NAME}

A retriever of the videos that prvr draws itself, of {parameters:,} parameters. It knows nothing of natural video.

`prvr search FOLDER "a small blue circle rises" --model {NAME}`

Trained by `scripts/train_toy_world.py` on a corpus of its own ({about["videos"]} training videos, seed
{about["corpus_seed"]}), epoch {about["best_epoch"]} of {about["epochs"]} (from 0), chosen on the split `val` of that
corpus. On its split `test`, {found.split.split()[0]}, text to video, in percent:

| | R@1 | R@5 | R@10 | SumR |
|---|---|---|---|---|
| chance | {found.chance[0]:.1f} | {found.chance[1]:.1f} | {found.chance[2]:.1f} | {found.chance[4]:.1f} |
{chr(10).join(lines)}

The metadata of `model.safetensors` holds the seeds and versions of this training; `config.yaml` is its configuration.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the model of the toy world that ships with prvr.")
    parser.add_argument("--size", default="bench", help="the size of the corpus to draw: tiny, demo or bench")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--work", type=Path, default=Path("runs") / NAME, help="the folder of the corpus and the run")
    parser.add_argument("--output", type=Path, default=SHIPPED / NAME, help="the folder of the model, replaced")
    args = parser.parse_args()
    torch.set_num_threads(1)
    started = time.process_time()
    root, run = args.work.resolve(), args.work / "run"
    corpus = write_corpus(root, args.size, SEED)
    print(f"{corpus.folder}: drawn, {(time.process_time() - started) / 60:.1f} CPU minutes", flush=True)
    data = {"data.root": str(root), "data.collection": corpus.name, "data.cache_dir": str(root / "cache")}
    config = load_config(PRESET, CHANGES | data | {"train.epochs": args.epochs})
    result = train(config, output=run, resume=(run / "config.yaml").exists(), device="cpu", progress=terminal_bar)
    about: dict[str, object] = {
        "made_by": f"scripts/{Path(__file__).name}",
        "corpus": GENERATOR,
        "corpus_version": VERSION,
        "corpus_size": args.size,
        "corpus_seed": SEED,
        "videos": len(open_corpus(root, corpus.name).split("train").video_ids),
        "encoder_sha256": load_encoder().sha256,
        "epochs": result.epochs,
        "best_epoch": result.best_epoch,
        "sumr_on_val": round(result.best_score, 1),
        "sumr_on_test_before_float16": round(result.report.text_to_video.sumr, 1),
        "torch": torch.__version__.split("+")[0],
        "machine": platform.machine(),
    }
    with temporary_folder(args.output) as folder:
        pack(config, run / "best", folder, about)
        found = beside(config, folder)
        parameters = sum(p.numel() for p in load_pretrained(folder).parameters())
        (folder / "README.md").write_text(card(about, found, parameters), encoding="utf-8", newline="\n")
        write_hashes(folder)
        publish(folder, args.output, lambda _: False)  # an older model there is replaced
    print(found.verdict)
    print(
        f"{args.output}: {(args.output / WEIGHTS).stat().st_size:,} bytes of weights, "
        f"{(time.process_time() - started) / 60:.1f} CPU minutes in this call"
    )


if __name__ == "__main__":
    main()
