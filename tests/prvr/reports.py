"""Evaluation reports made from ranks, for tests of what is done with a report."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from rich.console import Console

from prvr.evaluation import EvaluationReport, RetrievalMetrics


def make_report(ranks: Sequence[int], query_to_video: Sequence[int], **changes: Any) -> EvaluationReport:
    """A report of these ranks in both directions; `changes` are its other fields."""
    metrics, videos = RetrievalMetrics.from_ranks(torch.tensor(ranks)), max(query_to_video) + 1
    values: dict[str, Any] = {
        "split": "tvr test", "ties": "worst", "seed": 0, "chance": 1.0, "text_to_video": metrics,
        "video_to_text": metrics, "text_to_text": None, "intervals": {}, "groups": (), "tags": (),
        "query_ids": tuple(f"v{video}#enc#{i}" for i, video in enumerate(query_to_video)),
        "video_ids": tuple(f"v{video}" for video in range(videos)), "query_to_video": np.array(query_to_video),
        "ranks": np.array(ranks), "video_ranks": np.ones(videos, np.int64),
    }  # fmt: skip
    return EvaluationReport(**(values | changes))


def printed(table: Any, width: int = 80) -> str:
    """A table as a terminal of this width shows it."""
    console = Console(width=width, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined]
