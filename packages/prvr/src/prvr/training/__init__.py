"""Training: one `Trainer` for retrievers and for re-rankers over them, with its runs, checkpoints and optimisers."""

from prvr.errors import TrainingError
from prvr.training.data import Splits, cache_folder, open_split, open_splits
from prvr.training.optimizer import BertAdam, build_optimizer, parameter_groups
from prvr.training.progress import EpochProgress, no_progress, terminal_bar
from prvr.training.reranker import RerankerResult, RerankerTask, train_reranker
from prvr.training.reranker_run import (
    RerankerRunConfig,
    is_reranker_run,
    read_reranker_config,
    reranker_run_config,
    save_rerankers,
)
from prvr.training.retrieval import RetrievalTask, RunResult, resume, train
from prvr.training.signals import Terminated
from prvr.training.task import Task
from prvr.training.teacher import Teacher
from prvr.training.trainer import RunOptions, Trainer, train_task

__all__ = [
    "BertAdam",
    "EpochProgress",
    "RerankerResult",
    "RerankerRunConfig",
    "RerankerTask",
    "RetrievalTask",
    "RunOptions",
    "RunResult",
    "Splits",
    "Task",
    "Teacher",
    "Terminated",
    "Trainer",
    "TrainingError",
    "build_optimizer",
    "cache_folder",
    "is_reranker_run",
    "no_progress",
    "open_split",
    "open_splits",
    "parameter_groups",
    "read_reranker_config",
    "reranker_run_config",
    "resume",
    "save_rerankers",
    "terminal_bar",
    "train",
    "train_reranker",
    "train_task",
]
