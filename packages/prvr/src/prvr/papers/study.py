"""A study: the folder that holds what the runs of tables have found.

study.yaml                  what the user has chosen for all rows: keys, corpora, and where checkpoints are
results/KEY.json            the report of a run, with KEY_ranks.npz, the rank of each query; or KEY.png, a picture
results/KEY.yaml            what the run was: its settings, versions, corpus; written last
runs/KEY/                   the run folder with its weights; may be deleted, and is made again where a row needs it

Tables are rebuilt from study.yaml and results/ alone, which are small.
"""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from prvr import __version__
from prvr.config import Config, read_yaml_file
from prvr.data.atomic import owned, write_file
from prvr.data.hashes import digest, hash_file
from prvr.errors import DataError, PrvrError
from prvr.evaluation.report import EvaluationReport
from prvr.papers.runs import Choices, Run
from prvr.training.data import run_corpus


class BusyError(PrvrError):
    """Another process is at the same run."""


@dataclass(frozen=True)
class Result:
    """What a finished run has left.

    Args:
        run: its record, as in `results/KEY.yaml`.
        report: of an evaluation; None for a picture, and where the training diverged.
        picture: the file of a picture; None for an evaluation.
    """

    record: Mapping[str, Any]
    report: EvaluationReport | None = None
    picture: Path | None = None


class Study:
    """The results of runs in a folder.

    Args:
        folder: new, or a study.

    Raises:
        DataError: it holds something else.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder).expanduser()
        self.results, self.runs = self.folder / "results", self.folder / "runs"
        self._file = self.folder / "study.yaml"
        if self.folder.is_dir() and any(self.folder.iterdir()) and not self._file.is_file():
            raise DataError(f"{self.folder}: holds no study.yaml and is not empty. Name a new folder, or a study.")

    @property
    def exists(self) -> bool:
        """Whether something was run here."""
        return self._file.is_file()

    def choices(self, given: Choices) -> Choices:
        """What holds for all rows: what the study was begun with, and what the command line gives.

        Raises:
            DataError: they contradict each other, which would mix incomparable rows in one table.
        """
        if not self.exists:
            return given
        known = read_yaml_file(self._file)
        for what in ("keys", "corpora"):
            begun, asked = known.get(what) or {}, dict(getattr(given, what))
            if asked and asked != begun:
                shown = " ".join(f"{key}={value}" for key, value in begun.items()) or "none"
                raise DataError(
                    f"{self.folder}: was begun with other {what} ({shown}). Leave them out, or name another folder."
                )
        root = given.root if given.root is not None else known.get("root")
        checkpoints = given.checkpoints
        if checkpoints is None and known.get("checkpoints") is not None:
            checkpoints = Path(known["checkpoints"])
        return Choices(known.get("keys") or {}, known.get("corpora") or {}, root, checkpoints)

    def begin(self, choices: Choices) -> None:
        """Writes study.yaml, if the folder is new, or corpora or checkpoints have moved."""
        values: dict[str, Any] = {"keys": dict(choices.keys), "corpora": dict(choices.corpora), "root": choices.root}
        if choices.checkpoints is not None:
            values["checkpoints"] = str(choices.checkpoints)
        if not self.exists or read_yaml_file(self._file) != values:
            _write_yaml(self._file, values)

    def result(self, run: Run) -> Result | None:
        """What a run has left; None where it is not finished.

        Raises:
            DataError: a file is damaged, or belongs to a run with other settings.
        """
        path = self.results / f"{run.key}.yaml"
        if not path.is_file():
            return None
        record = read_yaml_file(path)
        then: Mapping[str, Any] = record.get("settings") or {}
        changed = [key for key, value in run.settings.items() if key in then and then[key] != value]
        if changed:
            raise DataError(
                f"{path}: was made with other defaults of {', '.join(changed)}. Move it away to run it again, or use "
                f"the version that made it, {record.get('prvr')}."
            )
        if "diverged" in record:
            return Result(record)
        picture = path.with_suffix(".png")
        if run.kind == "plot":
            return Result(record, picture=picture) if picture.is_file() else None
        return Result(record, report=EvaluationReport.from_json(path.with_suffix(".json")))

    def diverged(self, run: Run) -> bool:
        """Whether a run is finished without a result to use: its training, or one that it builds on, diverged."""
        found = self.result(run)
        return found is not None and "diverged" in found.record

    def seeds(self, run: Run) -> list[int]:
        """The seeds with which a run is finished, ascending."""
        endings = (path.stem.rpartition("-")[2] for path in self.results.glob(f"{run.arm}-*.yaml"))
        return sorted(int(ending) for ending in endings if ending.isdigit())

    def selection(self, run: Run) -> float | None:
        """SumR on the split that selects of what a run has trained; None where no finished run says it.

        A training that diverged is worse than every other one.
        """
        path = self.results / f"{run.trained.key}.yaml"
        record = read_yaml_file(path) if path.is_file() else {}
        return -math.inf if "diverged" in record else record.get("selection")

    def cost(self, run: Run) -> float | None:
        """Processor seconds of a training step; None where the folder of the run is not at hand.

        Seconds are those of a machine, so they stay with the run folder and out of `results/`.
        """
        path = self.run_folder(run.trained) / "metrics.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
        counted = [line for line in lines if "steps" in line]  # not those of an earlier version
        seconds = sum(line["seconds"]["processor"] for line in counted)
        return seconds / sum(line["steps"] for line in counted) if counted else None

    def save(self, run: Run, report: EvaluationReport | None, **about: Any) -> None:
        """Writes what a run has found, the record last; a picture stands in `picture_file` already.

        Args:
            run: the finished run.
            report: of an evaluation.
            about: what else the record says.
        """
        if report is not None:
            report.to_json(self.results / f"{run.key}.json")
        record = {
            "kind": run.kind,
            "seed": run.seed,
            "over": None if run.over is None else run.over.key,
            "prvr": __version__,
            "torch": torch.__version__.partition("+")[0],
            "corpus": corpus_digest(run.config),
            **({} if run.folder is None else {"weights": weights_digest(run.folder)}),
            **about,
            "settings": run.settings,
        }
        _write_yaml(self.results / f"{run.key}.yaml", record)

    def picture_file(self, run: Run) -> Path:
        """Where the picture of a run stands."""
        return self.results / f"{run.key}.png"

    def run_folder(self, run: Run) -> Path:
        """The run folder of a run that trains; the folder of the weights for others."""
        return run.folder if run.folder is not None else self.runs / run.key / "run"

    def has_weights(self, run: Run) -> bool:
        """Whether the weights of a run that trains are there."""
        folder = self.run_folder(run)
        return (folder / "best").is_dir() and (folder / "evaluation.json").is_file()

    @contextmanager
    def claimed(self, run: Run) -> Iterator[None]:
        """Owns a run for the length of the `with` statement.

        Raises:
            BusyError: another process is at it.
        """
        folder = self.runs / run.key
        with ExitStack() as stack:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(owned(folder, f"{folder}: another process is at this run.", BusyError))
            except OSError as error:
                raise DataError(f"{folder}: cannot be written ({error}). Choose another folder.") from error
            yield

    def expect_same_inputs(self, run: Run) -> None:
        """Refuses a run if a seed of it was measured on another corpus, or with another checkpoint, than at hand.

        Raises:
            DataError: one was.
        """
        for path in sorted(self.results.glob(f"{run.arm}-*.yaml")):
            record = read_yaml_file(path)
            if record.get("corpus") != corpus_digest(run.config):
                raise DataError(
                    f"{path}: was measured on another corpus than {run.config.data.collection} in "
                    f"{run.config.data.root or 'the cache'}. Name another folder for this study."
                )
            if run.folder is not None and run.folder.is_dir() and record.get("weights") != weights_digest(run.folder):
                raise DataError(
                    f"{path}: was measured with another checkpoint than that in {run.folder}. Delete it to evaluate "
                    "this one, or name another folder for this study."
                )


def corpus_digest(config: Config) -> str:
    """A hash of the captions of the training and the reported split, by which a corpus is recognised.

    Raises:
        prvr.data.DataError: the files are missing.
        prvr.training.TrainingError: `data.root` is missing.
    """
    corpus = run_corpus(config)
    files = {split: corpus.caption_file(split) for split in ("train", config.data.eval_split)}
    return digest({split: hash_file(file) for split, file in files.items() if file.is_file()})[:16]


def weights_digest(folder: Path) -> str:
    """A hash of the weights in a folder, and of the configurations beside them, by which a checkpoint is recognised."""
    files = sorted(path for path in folder.rglob("*") if path.suffix == ".safetensors" or path.name == "config.json")
    return digest({file.relative_to(folder).as_posix(): hash_file(file) for file in files})[:16]


def _write_yaml(path: Path, values: Mapping[str, Any]) -> None:
    text = yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True)
    write_file(path, lambda file: file.write(text.encode()))
