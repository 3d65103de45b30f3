"""Training: one `Trainer` for retrievers and for re-rankers over them, with its runs, checkpoints and optimisers."""

from prvr.errors import TrainingError
from prvr.stages.pipelines import is_reranker_run
from prvr.training.baseline import kernel_baseline
from prvr.training.optimizer import BertAdam, build_optimizer
from prvr.training.processes import EpochProgress, Terminated, no_progress, terminal_bar
from prvr.training.reranker_config import (
    RerankerRunConfig,
    read_reranker_config,
    reranker_run_config,
)
from prvr.training.rerankers import RerankerResult, save_rerankers, train_reranker
from prvr.training.retrieval import RetrievalTask, RunResult, resume, train
from prvr.training.run_folder import RunOptions
from prvr.training.splits import Splits, Teacher, open_split, open_splits
from prvr.training.task import Task
from prvr.training.trainer import Trainer

__all__ = [
    "BertAdam",
    "EpochProgress",
    "RerankerResult",
    "RerankerRunConfig",
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
    "is_reranker_run",
    "kernel_baseline",
    "no_progress",
    "open_split",
    "open_splits",
    "read_reranker_config",
    "reranker_run_config",
    "resume",
    "save_rerankers",
    "terminal_bar",
    "train",
    "train_reranker",
]
