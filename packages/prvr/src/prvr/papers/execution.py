"""Carries out the runs of a study: each resumes where it was interrupted, and none is computed twice."""

import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import torch

from prvr.data import pack
from prvr.errors import DataError, DivergedError, InputError, PrvrError
from prvr.evaluation import EvaluationConfig, EvaluationReport, evaluate
from prvr.evaluation.transfer import check_features
from prvr.evaluation.zero_shot import evaluate_untrained
from prvr.models import load_pretrained
from prvr.papers.runs import Run
from prvr.papers.study import Study
from prvr.published.diffusionret.training import train_reranker
from prvr.published.dl_dkd.teacher import Teacher
from prvr.systems import System, open_system
from prvr.training import EpochProgress, RunOptions, no_progress, open_splits, train
from prvr.training.splits import cache_folder, run_corpus

logger = logging.getLogger(__name__)
_TRAINS = ("train", "stage")
"""Kinds of runs that leave weights."""


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


def perform(run: Run, study: Study, machine: Machine, *, weights: bool = False) -> None:
    """Carries out a run, with those that it builds on as far as their weights are missing.

    Args:
        run: nothing is done if it is finished.
        study: where results go.
        machine: where to compute.
        weights: its weights are needed, whether or not it is finished; of a run that trains none, those that it builds
            on.

    Raises:
        BusyError: another process is at it.
        PrvrError: it cannot be carried out.
    """

    def is_done() -> bool:
        result = study.result(run)
        if weights:
            return study.has_weights(run) or (result is not None and result.diverged)
        return result is not None

    if is_done():
        return
    if run.over is not None:
        perform(run.over, study, machine, weights=True)
    if run.kind in _TRAINS or not weights:
        with study.claimed(run):
            if not is_done():  # another process may have finished it meanwhile
                _carry_out(run, study, machine)


def _carry_out(run: Run, study: Study, machine: Machine) -> None:
    """Does what a run is for; that a training diverged, its own or one that it builds on, is a result as well."""
    try:
        if run.over is not None and (below := study.result(run.over)) is not None and below.diverged:
            raise DivergedError(f"needs {run.over.key}, which diverged")
        result = _trained(run, study, machine) if run.kind in _TRAINS else {"report": _reported(run, study, machine)}
    except DivergedError as error:  # this configuration and seed will not do better another time
        study.save(run, None, diverged=True)
        logger.warning("%s: %s", run.key, error)
        return
    study.save(run, **result)
    if run.kind in _TRAINS:  # several times as large as the model, and only training needs it
        (study.run_folder(run) / "last" / "state.pt").unlink(missing_ok=True)


def _trained(run: Run, study: Study, machine: Machine) -> dict[str, Any]:
    """The report of a training, which continues where it was interrupted, and what else its record holds."""
    output = study.run_folder(run)
    options: RunOptions = {
        "resume": (output / "config.yaml").is_file(),
        "device": "cpu" if torch.device(machine.device).type == "cpu" else None,
        "progress": machine.progress,
    }
    values: dict[str, Any] = {}
    if run.stage is not None:
        assert run.over is not None
        below = study.run_folder(run.over)
        retriever = load_pretrained(below / "best").to(machine.device)
        config = replace(run.stage, retriever=str(below.resolve()))
        with closing(open_splits(run.config)) as splits:
            result = train_reranker(config, retriever, splits, output=output, **options)
        report = result.reranked
    else:
        config, teacher = run.config, None
        if run.over is not None:
            system = _system(run.over, study, machine)
            teacher = Teacher(system.pipeline, run.over.config.data.keep_last_frame, run.over.key)
            if run.over.kind == "train":  # a folder that a resumed run can open; else the name of the row stays
                config = replace(config, train=replace(config.train, teacher=str(system.folder.resolve())))
        result = train(config, output=output, teacher=teacher, **options)
        report = _reported(run, study, machine) if run_corpus(run.config).is_benchmark else result.report
        if config.train.average:
            values["averaged"] = list(config.train.kept_epochs(result.best_epoch))
        values |= {"best_epoch": result.best_epoch, "selection": result.best_score}
    steps = sum(line["steps"] for line in result.history)
    return {"report": report, "steps": steps, "epochs": result.epochs, **values}


def _reported(run: Run, study: Study, machine: Machine) -> EvaluationReport | None:
    """The report of what a run evaluates, on the split that it reports; None of one that draws a picture."""
    corpus, split = run_corpus(run.config), run.config.data.eval_split
    how = EvaluationConfig.of_run(
        run.config.train, ties=run.details.get("ties", "worst"), caption_sets=corpus.is_benchmark
    )
    if run.kind == "untrained":
        with pack(corpus, split, cache_dir=cache_folder(run.config) / "packed") as packed:
            return evaluate_untrained(run.details["score"], packed, how)
    if run.kind == "plot":
        from prvr.plot import draw, save_figure

        assert run.over is not None
        name, settings = run.details["plot"], dict(run.details["settings"])
        system = _system(run.over, study, machine)
        figure = draw(name, system, run.config, split, settings, device=machine.device)
        save_figure(figure, study.picture_file(run))
        return None
    if run.kind == "evaluate" and run.over is not None:
        check_features(run.over.config, run.config)
    if run.folder is not None and not run.folder.is_dir():
        raise DataError(
            f"{run.folder}: no such folder. Convert the authors' checkpoint into it: prvr convert checkpoint FILE "
            f"--dataset NAME --output {run.folder}"
        )
    system = _system(run, study, machine)
    with system.open_split(split, run.config) as packed:
        return evaluate(system.pipeline, packed, how, device=machine.device)


def _system(run: Run, study: Study, machine: Machine) -> System:
    """The trained system of a run, with what the evaluations of it change."""
    model, diffusion, stages = {}, {}, []
    while run.kind == "evaluate":  # of one over another, what the upper one changes stays
        assert run.over is not None
        own, run = run.details, run.over
        model, diffusion, stages = own["model"] | model, own["diffusion"] | diffusion, [*own["stages"], *stages]
    folder = study.run_folder(run)
    if run.kind == "stage":
        assert run.over is not None
        stages.append({"kind": "diffusion", "run": str(folder.resolve()), **diffusion})
        folder = study.run_folder(run.over)
    elif diffusion:
        raise InputError(f"{run.key}: the row below trains no stage, so it has no settings of `diffusion`")
    return open_system(folder, stages, device=machine.device, model=model)
