"""Search for hyperparameters with Optuna (`pip install optuna`): a trial below the median of the others is ended.

Each trial is a run in a folder of its own, `study/NUMBER`. The split `val` selects the epoch and the trial.
"""

from pathlib import Path

import optuna

import prvr
from prvr.evaluation import EvaluationReport
from prvr.training import train


def objective(trial: optuna.Trial) -> float:
    keys = {
        "optim.lr": trial.suggest_float("optim.lr", 1e-4, 3e-3, log=True),
        "loss.triplet.margin": trial.suggest_float("loss.triplet.margin", 0.05, 0.4),
    }
    small = {"data.collection": "toy-tiny", "train.epochs": 4, "train.protocol": "val", "model.hidden": 32}

    def on_epoch(line) -> bool:
        trial.report(line["sumr"], line["epoch"])
        return trial.should_prune()

    config = prvr.load_config("gmmformer-toy", small | keys)
    run = train(config, output=Path("study") / str(trial.number), on_epoch=on_epoch)
    if run.stopped_early:
        raise optuna.TrialPruned
    return run.best_score


pruner = optuna.pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=1)
study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0), pruner=pruner)
study.optimize(objective, n_trials=6)
report = EvaluationReport.from_json(Path("study") / str(study.best_trial.number) / "evaluation.json")
print(f"{study.best_params}: SumR {study.best_value:.1f} on val, {report.text_to_video.sumr:.1f} on the reported split")
