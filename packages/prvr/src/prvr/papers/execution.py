"""Carries out the runs of a study: each resumes where it was interrupted, and none is computed twice."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from prvr.data import pack
from prvr.errors import DataError, DivergedError, InputError, PrvrError
from prvr.evaluation import EvaluationConfig, evaluate
from prvr.evaluation.report import EvaluationReport
from prvr.evaluation.transfer import check_features
from prvr.evaluation.zero_shot import evaluate_untrained
from prvr.models import load_pretrained
from prvr.papers.runs import Run
from prvr.papers.study import Study
from prvr.published.diffusionret.training import train_reranker
from prvr.published.dl_dkd.teacher import Teacher
from prvr.systems import System, open_system
from prvr.training import EpochProgress, no_progress, open_splits, train
from prvr.training.splits import cache_folder, run_corpus

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Machine:
    """Where runs are carried out.

    Args:
        device: "cpu", "cuda" or another of torch.
        progress: shows the steps of an epoch.
    """

    device: torch.device | str = "cpu"
    progress: EpochProgress = no_progress


def perform_all(
    runs: Sequence[Run], study: Study, machine: Machine, announce: Callable[[int, Run], None]
) -> dict[str, str]:
    """Carries out the runs that are not finished, one after the other.

    A run that fails does not stop the others, except those that build on it.

    Args:
        runs: as `distinct_runs` orders them.
        study: where results go.
        machine: where to compute.
        announce: called before each run with its number, from 1.

    Returns:
        by key, why runs failed; one reason is that another process is carrying the run out.
    """
    failures: dict[str, str] = {}
    for number, run in enumerate(runs, 1):
        if study.result(run) is not None:
            continue
        announce(number, run)
        try:
            if run.over is not None and run.over.key in failures:
                raise PrvrError(f"needs {run.over.key}, which is not finished")
            perform(run, study, machine)
        except PrvrError as error:
            failures[run.key] = str(error)
            logger.warning("%s: %s", run.key, error)
    return failures


def perform(run: Run, study: Study, machine: Machine) -> None:
    """Carries out a run, with those that it builds on as far as their weights are missing.

    Raises:
        BusyError: another process is at it.
        PrvrError: it cannot be carried out.
    """
    if run.over is not None:
        _provide(run.over, study, machine)
    with study.claimed(run):
        if study.result(run) is None:  # another process may have finished it meanwhile
            _carry_out(run, study, machine)


def _provide(run: Run, study: Study, machine: Machine) -> None:
    """Makes sure that the weights of a run are there, or that it diverged."""
    if _diverged(run, study) or study.has_weights(run):
        return
    if run.over is not None:
        _provide(run.over, study, machine)
    if run.kind in ("train", "stage"):
        with study.claimed(run):
            if not study.has_weights(run):
                _carry_out(run, study, machine)


def _carry_out(run: Run, study: Study, machine: Machine) -> None:
    """Does what a run is for; that a training diverged, its own or one that it builds on, is a result as well."""
    try:
        if run.over is not None and _diverged(run.over, study):
            raise DivergedError(f"needs {run.over.key}, which diverged")
        _KINDS[run.kind](run, study, machine)
    except DivergedError as error:  # this configuration and seed will not do better another time
        study.save(run, None, diverged=True)
        logger.warning("%s: %s", run.key, error)


def _diverged(run: Run, study: Study) -> bool:
    return (result := study.result(run)) is not None and result.diverged


def _train(run: Run, study: Study, machine: Machine) -> None:
    output, config, teacher = study.run_folder(run), run.config, None
    device = "cpu" if torch.device(machine.device).type == "cpu" else None
    if run.over is not None:
        system, frames = _system(run.over, study, machine), run.over.config.data.keep_last_frame
        teacher = Teacher(system.pipeline, frames, run.over.key)
        if run.over.kind == "train":  # a folder that a resumed run can open; else the name of the row stays
            config = replace(config, train=replace(config.train, teacher=str(system.folder.resolve())))
    result = train(
        config,
        output=output,
        teacher=teacher,
        resume=(output / "config.yaml").is_file(),
        device=device,
        progress=machine.progress,
    )
    report = result.report
    if run_corpus(run.config).is_benchmark:
        report = _evaluated(open_system(output, device=machine.device), run, machine)
    steps, average = sum(line["steps"] for line in result.history), run.config.train.average
    values: dict[str, Any] = {"averaged": list(run.config.train.kept_epochs(result.best_epoch))} if average else {}
    values |= {"epochs": result.epochs, "best_epoch": result.best_epoch, "selection": result.best_score}
    study.save(run, report, steps=steps, **values)
    _drop_state(output)


def _train_stage(run: Run, study: Study, machine: Machine) -> None:
    assert run.stage is not None
    assert run.over is not None
    output, below = study.run_folder(run), study.run_folder(run.over)
    retriever = load_pretrained(below / "best").to(machine.device)
    config = replace(run.stage, retriever=str(below.resolve()))
    with closing(open_splits(run.config)) as splits:
        result = train_reranker(
            config,
            retriever,
            splits,
            output=output,
            resume=(output / "config.yaml").is_file(),
            device=machine.device,
            progress=machine.progress,
        )
    study.save(run, result.reranked, epochs=result.epochs, steps=sum(line["steps"] for line in result.history))
    _drop_state(output)


def _evaluate(run: Run, study: Study, machine: Machine) -> None:
    """Evaluates the system of another run: with other keys, on another corpus, or with more stages."""
    assert run.over is not None
    check_features(run.over.config, run.config)
    study.save(run, _evaluated(_system(run.over, study, machine, run.details), run, machine))


def _evaluate_checkpoint(run: Run, study: Study, machine: Machine) -> None:
    assert run.folder is not None
    if not run.folder.is_dir():
        raise DataError(
            f"{run.folder}: no such folder. Convert the authors' checkpoint into it: prvr convert checkpoint FILE "
            f"--dataset NAME --output {run.folder}"
        )
    study.save(run, _evaluated(open_system(run.folder, device=machine.device), run, machine))


def _evaluate_untrained(run: Run, study: Study, machine: Machine) -> None:
    data = run.config.data
    config = EvaluationConfig.of_run(run.config.train, caption_sets=run_corpus(run.config).is_benchmark)
    with closing(
        pack(run_corpus(run.config), data.eval_split, cache_dir=cache_folder(run.config) / "packed")
    ) as packed:
        study.save(run, evaluate_untrained(run.details["score"], packed, config))


def _plot(run: Run, study: Study, machine: Machine) -> None:
    from prvr.plot import draw, save_figure

    assert run.over is not None
    system = _system(run.over, study, machine)
    figure = draw(
        run.details["plot"],
        system,
        run.config,
        run.config.data.eval_split,
        dict(run.details["settings"]),
        device=machine.device,
    )
    study.results.mkdir(parents=True, exist_ok=True)
    save_figure(figure, study.picture_file(run))
    study.save(run, None)


_KINDS = {
    "train": _train,
    "stage": _train_stage,
    "evaluate": _evaluate,
    "checkpoint": _evaluate_checkpoint,
    "untrained": _evaluate_untrained,
    "plot": _plot,
}


def _system(run: Run, study: Study, machine: Machine, details: Mapping[str, Any] | None = None) -> System:
    """The trained system of a run.

    Args:
        run: the run.
        study: where its weights are.
        machine: where it computes.
        details: the changes of an evaluation: keys of the retriever (`model`), settings of the trained stage
            (`diffusion`), `stages` before it.
    """
    details = {"model": {}, "diffusion": {}, "stages": (), **(details or {})}
    if run.kind == "evaluate":  # its own changes stay
        assert run.over is not None
        changes = {key: {**run.details[key], **details[key]} for key in ("model", "diffusion")}
        return _system(run.over, study, machine, {**changes, "stages": [*run.details["stages"], *details["stages"]]})
    stages, folder = list(details["stages"]), study.run_folder(run)
    if run.kind == "stage":
        assert run.over is not None
        stages.append({"kind": "diffusion", "run": str(folder.resolve()), **details["diffusion"]})
        folder = study.run_folder(run.over)
    elif details["diffusion"]:
        raise InputError(f"{run.key}: the row below trains no stage, so it has no settings of `diffusion`")
    return open_system(folder, stages, device=machine.device, model=details["model"])


def _evaluated(system: System, run: Run, machine: Machine) -> EvaluationReport:
    """The report of a system on the reported split of a run."""
    config = EvaluationConfig.of_run(
        run.config.train, ties=run.details.get("ties", "worst"), caption_sets=run_corpus(run.config).is_benchmark
    )
    with closing(system.open_split(run.config.data.eval_split, run.config)) as packed:
        return evaluate(system.pipeline, packed, config, device=machine.device)


def _drop_state(output: Path) -> None:
    """Deletes the state of a finished run, several times as large as the model, which only training needs."""
    (output / "last" / "state.pt").unlink(missing_ok=True)
