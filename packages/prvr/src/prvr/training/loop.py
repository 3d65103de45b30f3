"""Training a retriever from a configuration into a run folder."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, is_initialized

from prvr.config import Config, load_config
from prvr.errors import TrainingError
from prvr.models import AnyRetriever, build_retriever
from prvr.objective import Objective
from prvr.training.data import Splits, open_splits
from prvr.training.job import Job
from prvr.training.processes import in_main
from prvr.training.progress import EpochProgress, no_progress
from prvr.training.result import RunResult
from prvr.training.run import RunFolder
from prvr.training.signals import Terminated, listening
from prvr.training.state import derived_seed

__all__ = ["resume", "train"]

logger = logging.getLogger(__name__)


def train(
    config: Config,
    *,
    output: Path | str,
    resume: bool = False,
    splits: Splits | None = None,
    retriever: AnyRetriever | None = None,
    objective: Objective | None = None,
    device: str | None = None,
    progress: EpochProgress = no_progress,
    trackers: Sequence[Any] = (),
) -> RunResult:
    """Trains a retriever, keeps the best epoch, and evaluates it on the reported split.

    Protocol "paper" selects the epoch on the reported split itself, as the published numbers did; "holdout" selects on
    training videos set aside and scores the reported split once, at the end. All draws follow from `config.train.seed`:
    on the CPU two runs agree bitwise, and so do a straight and a resumed one. Torch's global generator is reseeded.

    SIGTERM and Ctrl-C let the current step finish and save the run before they end it, a second Ctrl-C ends it at once;
    in the main thread only, and only where the program has no handler of its own.

    Args:
        config: everything that is chosen.
        output: the run folder, new or empty; see `prvr.training.run` for what it holds.
        resume: go on with the run in `output` from its last checkpoint: the end of an epoch, or a step inside one.
        splits: the data; None = what `config.data` names.
        retriever, objective: the model, which is trained in place; None = what `config` describes.
        device: "cpu", or None for accelerate's choice.
        progress: shows the steps of an epoch, for example `terminal_bar`.
        trackers: accelerate trackers, for example ["tensorboard"].

    Raises:
        TrainingError: `output` is not empty, cannot be resumed or not be written, another process trains there, or a
            loss or gradient is not finite.
        Terminated: SIGTERM arrived, and the run is saved; a SystemExit with code 143.
        KeyboardInterrupt: Ctrl-C; after the first one the run is saved.
        prvr.data.DataError: bad data.
    """
    run = RunFolder(Path(output))
    with ExitStack() as stack:
        accelerator = stack.enter_context(_accelerator(config, run, device, trackers))
        in_main(accelerator, lambda: stack.enter_context(run.owned(resume)))
        state = run.open(config, resume)
        if splits is None:
            splits = stack.enter_context(closing(open_splits(config)))
        accelerator.wait_for_everyone()  # all have looked into the folder before anything is written there
        if accelerator.is_main_process:
            run.write_config(config)
        if trackers:
            accelerator.init_trackers(config.name)
        torch.manual_seed(derived_seed(config.train.seed, "weights"))
        if retriever is None:
            retriever = build_retriever(config.model)
        if objective is None:
            objective = Objective(config.loss, config.model, retriever.registers)
        stop = stack.enter_context(listening())
        if not accelerator.is_main_process:
            progress = no_progress
        job = Job(config, run, splits, accelerator, retriever, objective, progress, stop)
        if state is not None:
            job.restore(state)
        try:
            result = job.run_epochs()
            stop.raise_if_received()  # it is all done, but whoever asked should not see the program go on
            return result
        except KeyboardInterrupt:
            logger.warning("%s: interrupted; %s", run.path, job.saved)
            raise
        except Terminated:
            logger.warning("%s: terminated; %s", run.path, job.saved)
            raise


@contextmanager
def _accelerator(config: Config, run: RunFolder, device: str | None, trackers: Sequence[Any]) -> Iterator[Accelerator]:
    mine = not is_initialized()
    accelerator = Accelerator(
        cpu=device == "cpu",
        mixed_precision=config.train.precision,
        log_with=list(trackers) or None,
        project_dir=str(run.path),
    )
    try:
        yield accelerator
    finally:
        accelerator.end_training()
        if mine:  # accelerate keeps device and precision for the whole process: the next run may want others
            AcceleratorState._reset_state(reset_partial_state=True)


def resume(output: Path | str, **options: Any) -> RunResult:
    """Goes on with the run in `output`, with its own configuration; `options` as in `train`."""
    path = Path(output) / "config.yaml"
    if not path.is_file():
        raise TrainingError(f"{path}: no such file, there is no run to resume. Start one with `prvr train`.")
    return train(load_config(path), output=output, resume=True, **options)
