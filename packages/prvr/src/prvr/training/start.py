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


def start(
    config: Config,
    run: Run,
    retriever: AnyRetriever | None = None,
    objective: Objective | None = None,
) -> tuple[AnyRetriever, Objective]:
    """The retriever and the objective that a run trains, with the weights that it starts from.

    Args:
        config: the configuration of the run.
        run: its state and its `best/`, where a fit is, see `fit_start`.
        retriever, objective: None = what `config` describes; an objective that is given keeps `train.start_from` out.

    Raises:
        prvr.data.DataError: there is no model of the name in `train.start_from`, or it is damaged.
        TrainingError: it has other tensors.
    """
    if retriever is None:
        retriever = _retriever(config, run)
    if objective is None:
        objective = Objective(config.loss, config.model, retriever.registers, retriever.moment_heads)
        if config.train.start_from is not None and run.state is None:
            _load(config.train.start_from, retriever, objective)
    return retriever, objective


def fitted_retriever(
    config: Config, splits: Splits, device: torch.device | str, level: int = logging.INFO
) -> AnyRetriever:
    """A new retriever with the kernel path that `fit_path` fits to the training split; `level` is that of its log."""
    model, path = fit_path(config, splits.train, device, selection=splits.choosing(config), level=level)
    retriever = build_retriever(model)
    retriever.get_submodule("path").load_state_dict(path)
    return retriever


def fit_start(config: Config, run: Run, splits: Splits) -> None:
    """Fits the retriever that a run starts from to its training split, and saves it in `best/`.

    Does nothing where `model.start` asks for no fit, or the run has trained before.
    """

    def fit() -> None:
        with run.stop.at_once():  # nothing is trained yet
            torch.manual_seed(derived_seed(config.train.seed, "weights"))
            retriever = fitted_retriever(config, splits, run.accelerator.device)
        replace_folder(run.folder.best, retriever.save_pretrained)

    if fitted(config) and not _is_saved(run):
        in_main(run.accelerator, fit)


def _is_saved(run: Run) -> bool:
    """Whether a run has saved a state, and what it started from or its best epoch."""
    return run.folder.state.exists() and run.folder.best.is_dir()


def _retriever(config: Config, run: Run) -> AnyRetriever:
    """A new retriever, or that of `best/` where a run starts from a fit, or is resumed and cannot make one again.

    A resumed run has saved what it started from: a backbone need not be there again.
    """
    torch.manual_seed(derived_seed(config.train.seed, "weights"))
    has_parts = getattr(config.model, "clip", None) is not None or config.model.own_modules
    if fitted(config) or (_is_saved(run) and has_parts):
        return load_pretrained(run.folder.best)
    return build_retriever(config.model)


def _load(name: str, retriever: AnyRetriever, objective: Objective) -> None:
    """Loads the weights of a model, and the parameters of its losses where they are the same."""
    folder, _ = model_files(shipped_model(name) or Path(name).expanduser())
    load_best(folder, retriever, other_heads=True)
    losses = "objective.safetensors"
    if not objective.state_dict() or not (folder / losses).is_file():
        return
    try:
        load_best(folder, objective, losses)
    except TrainingError as error:
        logger.warning("%s The losses start anew.", error)
