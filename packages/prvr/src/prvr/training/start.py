"""What a run starts from: a saved retriever, that of its own first state or of a fit in closed form, or a new one."""

import logging
from pathlib import Path

import torch

from prvr.config import Config
from prvr.errors import TrainingError
from prvr.models import AnyRetriever, build_retriever, load_pretrained
from prvr.models.pretrained import model_files, shipped_model
from prvr.objective import Objective
from prvr.training.checkpoint import derived_seed, load_best, replace_folder
from prvr.training.closed_form import fit_path
from prvr.training.processes import in_main
from prvr.training.run_folder import Run
from prvr.training.splits import Splits, fitted

logger = logging.getLogger(__name__)


def fit_start(config: Config, run: Run, splits: Splits) -> None:
    """Fits the kernel path of `model.start: kernel` to the training split, and saves it with new blocks in `best/`.

    Nothing is done for another start, or where `best/` belongs to the state that a run continues from.
    """
    if not fitted(config) or _is_saved(run):
        return

    def fit() -> None:
        with run.stop.at_once():  # nothing is trained yet
            torch.manual_seed(derived_seed(config.train.seed, "weights"))
            retriever = fitted_retriever(config, splits, run.accelerator.device)
        replace_folder(run.folder.best, retriever.save_pretrained)

    in_main(run.accelerator, fit)


def fitted_retriever(
    config: Config, splits: Splits, device: torch.device | str, level: int = logging.INFO
) -> AnyRetriever:
    """A new retriever with the kernel path that `fit_path` fits to the training split; `level` is that of its log."""
    model, path = fit_path(config, splits.train, device, selection=splits.choosing(config), level=level)
    retriever = build_retriever(model)
    retriever.get_submodule("path").load_state_dict(path)
    return retriever


def start(config: Config, run: Run) -> AnyRetriever:
    """The retriever that a run starts from: that of `best/`, where `fit_start` or the run has saved it, or a new one.

    A resumed run has saved what it started from: a backbone need not be there again.
    """
    has_parts = getattr(config.model, "clip", None) is not None or config.model.own_modules
    torch.manual_seed(derived_seed(config.train.seed, "weights"))
    if fitted(config) or (_is_saved(run) and has_parts):
        return load_pretrained(run.folder.best)
    return build_retriever(config.model)


def load_start(name: str, retriever: AnyRetriever, objective: Objective) -> None:
    """Loads the weights of `train.start_from`, and the parameters of its losses where they are the same.

    Raises:
        DataError: there is no such model, or it is damaged.
        TrainingError: it has other tensors.
    """
    folder, _ = model_files(shipped_model(name) or Path(name).expanduser())
    load_best(folder, retriever, other_heads=True)
    losses = "objective.safetensors"
    if not objective.state_dict() or not (folder / losses).is_file():
        return
    try:
        load_best(folder, objective, losses)
    except TrainingError as error:
        logger.warning("%s The losses start anew.", error)


def _is_saved(run: Run) -> bool:
    return run.folder.state.exists() and run.folder.best.is_dir()
