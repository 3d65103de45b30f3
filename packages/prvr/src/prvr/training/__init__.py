"""Training: runs, their checkpoints and the optimisers."""

from prvr.errors import TrainingError
from prvr.training.data import Splits, cache_folder, open_split, open_splits
from prvr.training.loop import resume, train
from prvr.training.optimizer import BertAdam, build_optimizer, parameter_groups
from prvr.training.progress import EpochProgress, no_progress, terminal_bar
from prvr.training.result import RunResult
from prvr.training.signals import Terminated

__all__ = [
    "BertAdam",
    "EpochProgress",
    "RunResult",
    "Splits",
    "Terminated",
    "TrainingError",
    "build_optimizer",
    "cache_folder",
    "no_progress",
    "open_split",
    "open_splits",
    "parameter_groups",
    "resume",
    "terminal_bar",
    "train",
]
