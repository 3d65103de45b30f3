"""Training: one `Trainer` for retrievers and for stages over them, with its runs, checkpoints and optimisers."""

from prvr.errors import TrainingError, deferred
from prvr.training.baseline import kernel_baseline
from prvr.training.optimizer import BertAdam, build_optimizer
from prvr.training.processes import EpochProgress, Terminated, no_progress, terminal_bar
from prvr.training.retrieval import RetrievalTask, RunResult, resume, train
from prvr.training.run_folder import RunOptions
from prvr.training.splits import Splits, open_split, open_splits
from prvr.training.task import Task
from prvr.training.trainer import Trainer

__all__ = [
    "BertAdam",
    "EpochProgress",
    "RetrievalTask",
    "RunOptions",
    "RunResult",
    "Splits",
    "Task",
    "Terminated",
    "Trainer",
    "TrainingError",
    "build_optimizer",
    "kernel_baseline",
    "no_progress",
    "open_split",
    "open_splits",
    "resume",
    "terminal_bar",
    "train",
]

__getattr__ = deferred(__name__, {"prvr": "Teacher"})  # an earlier place of its name
