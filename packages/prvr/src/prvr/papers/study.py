"""A study: the results of the runs of tables, in a folder that grows or in one file.

study.yaml                  what the user has chosen for all rows: keys, corpora, and where checkpoints are
results/KEY.json            the report of a run, with KEY_ranks.npz, the rank of each query; or KEY.png, a picture
results/KEY.yaml            what the run was: its settings, versions, corpus; written last
runs/KEY/                   the run folder with its weights; may be deleted, and is made again where a row needs it

Tables are rebuilt from study.yaml and results/ alone. `pack` writes these as one file, NAME.tar.xz, which is read
wherever a study is; to add runs to it, unpack it with `tar -xf`.
"""

import lzma
import math
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
from pydantic import Field

from prvr import __version__
from prvr.config import config_to_dict, dump_config, read_yaml_file, validated
from prvr.data.atomic import HALF_WRITTEN, owned, write_file
from prvr.data.hashes import digest, hash_file
from prvr.errors import DataError, PrvrError
from prvr.evaluation.report import EvaluationReport
from prvr.papers.runs import Choices, Run
from prvr.reading import short
from prvr.training.record import data_digests

PACKED = ".tar.xz"
"""The ending of a packed study."""

_MEMBER = re.compile(r"study\.yaml|results/[\w-]+\.(json|npz|png|yaml)")
"""The names inside a packed study."""

_MOST_BYTES = 2**28
"""The size of a packed study when it is unpacked: some ten thousand runs."""


class BusyError(PrvrError):
    """Another process is carrying out the same run."""


@dataclass(frozen=True)
class _Record:
    """The fields that are read from `results/KEY.yaml`; others may be present."""

    kind: str
    settings: Mapping[str, Any]
    over: Annotated[str, Field(pattern=r"^[\w-]+$")] | None = None
    selection: float | None = None


@dataclass(frozen=True)
class Result:
    """What a finished run has left.

    Args:
        record: `results/KEY.yaml`.
        report: of an evaluation; None for a picture, and where the training diverged.
        picture: the file of a picture; None for an evaluation.
    """

    record: Mapping[str, Any]
    report: EvaluationReport | None = None
    picture: Path | None = None

    @property
    def diverged(self) -> bool:
        """Whether the training, or one that it builds on, diverged: there is nothing to use."""
        return "diverged" in self.record


class Study:
    """The results of runs, in a folder or in a packed file.

    Args:
        path: a new folder, the folder of a study, or a file of `pack`, which is unpacked into a temporary folder and
            read only.

    Raises:
        DataError: the folder holds something else, or the file is missing or damaged.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = self.folder = Path(path).expanduser()
        self._temporary: TemporaryDirectory[str] | None = None
        if self.path.name.endswith(PACKED):
            self._temporary = TemporaryDirectory(prefix="prvr-study-")
            self.folder = Path(self._temporary.name)
            _unpack(self.path, self.folder)
        self.results, self.runs = self.folder / "results", self.folder / "runs"
        self._file = self.folder / "study.yaml"
        others = [path for path in self.folder.iterdir() if path.suffix != HALF_WRITTEN] if self.folder.is_dir() else []
        if others and not self.exists:  # another process may be writing study.yaml
            raise DataError(f"{self.path}: contains no study.yaml and is not empty. Choose a new folder, or a study.")

    @property
    def exists(self) -> bool:
        """Whether something was run here."""
        return self._file.is_file()

    def choices(self, options: Choices) -> Choices:
        """What holds for all rows: the choices that the study was started with, and those of the command line.

        Raises:
            DataError: they contradict each other, which would mix incomparable rows in one table.
        """
        if not self.exists:
            return options
        stored = validated(Choices, read_yaml_file(self._file), str(self._file))
        for what in ("keys", "corpora"):
            before, now = getattr(stored, what), getattr(options, what)
            if now and now != before:
                text = " ".join(f"{key}={value}" for key, value in before.items()) or "none"
                raise DataError(
                    f"{self.path}: was started with other {what} ({text}). Leave them out, or choose another folder."
                )
        checkpoints = options.checkpoints or stored.checkpoints
        return replace(stored, root=options.root or stored.root, checkpoints=checkpoints)

    def begin(self, choices: Choices) -> None:
        """Writes study.yaml, if the folder is new, or corpora or checkpoints have moved.

        Raises:
            DataError: the study is packed, or the folder cannot be written.
        """
        self._expect_folder()
        values = config_to_dict(choices)
        if choices.checkpoints is None:
            del values["checkpoints"]
        if not self.exists or read_yaml_file(self._file) != values:
            write_file(self._file, dump_config(values).encode())

    def result(self, run: Run) -> Result | None:
        """The result of a run; None where it is not finished.

        Raises:
            DataError: a file is damaged, or belongs to a run with other settings.
        """
        return self.stored(run.arm, run.seed, run.settings)

    def stored(self, arm: str, seed: int, settings: Mapping[str, Any] = {}) -> Result | None:
        """The result with a key; None where there is none.

        Args:
            arm, seed: the key.
            settings: those that the run must have had, as far as its record names them.

        Raises:
            DataError: a file is damaged, or belongs to a run with other settings.
        """
        key = f"{arm}-{seed}"
        record, picture = self._record(key), self.results / f"{key}.png"
        before = record.get("settings", {})
        if changed := [name for name, value in settings.items() if before.get(name, value) != value]:
            raise DataError(
                f"{self._record_file(key)}: has other values of {', '.join(changed)}. Move it away to run it again, "
                f"or use prvr {record.get('prvr')}, which wrote it."
            )
        if not record or "diverged" in record:
            return Result(record) if record else None
        if record["kind"] == "plot":
            return Result(record, picture=picture) if picture.is_file() else None
        return Result(record, EvaluationReport.from_json(self.results / f"{key}.json"))

    def seeds(self, arm: str) -> list[int]:
        """The seeds with which an arm is finished, ascending."""
        names = (path.stem.rpartition("-") for path in self.results.glob(f"{arm}-*.yaml"))
        return sorted(int(seed) for name, _, seed in names if name == arm and seed.isdigit())

    def selection(self, arm: str, seed: int) -> float | None:
        """SumR on the split that selects of what a run has trained; None where no finished run says it.

        A training that diverged is worse than every other one.
        """
        keys = [f"{arm}-{seed}"]
        record = self._record(keys[0])
        while record.get("over") not in (None, *keys) and record["kind"] != "train":
            keys.append(record["over"])
            record = self._record(keys[-1])
        return -math.inf if "diverged" in record else record.get("selection")

    def save(self, run: Run, report: EvaluationReport | None, **values: Any) -> None:
        """Writes the result of a run, the record last; a picture is in `picture_file` already.

        Args:
            run: the finished run.
            report: of an evaluation.
            values: what else the record holds.
        """
        if report is not None:
            report.to_json(self.results / f"{run.key}.json")
        weights = None if run.folder is None else weights_digest(run.folder)
        inputs = {**data_digests(run.config), "weights": weights}
        record = {
            "kind": run.kind,
            "seed": run.seed,
            "over": None if run.over is None else run.over.key,
            "prvr": __version__,
            "torch": torch.__version__.partition("+")[0],
            **{name: value for name, value in inputs.items() if value is not None},
            **values,
            "settings": run.settings,
        }
        write_file(self._record_file(run.key), dump_config(record).encode())

    def picture_file(self, run: Run) -> Path:
        """The file of the picture of a run."""
        return self.results / f"{run.key}.png"

    def run_folder(self, run: Run) -> Path:
        """The run folder of a run that trains; the folder of the weights for others."""
        return run.folder or self.runs / run.key / "run"

    def has_weights(self, run: Run) -> bool:
        """Whether the weights of a run that trains are there."""
        folder = self.run_folder(run)
        return (folder / "best").is_dir() and (folder / "evaluation.json").is_file()

    @contextmanager
    def claimed(self, run: Run) -> Iterator[None]:
        """Owns a run for the length of the `with` statement.

        Raises:
            BusyError: another process is carrying it out.
        """
        self._expect_folder()
        folder = self.runs / run.key
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"{folder}: cannot be written ({error}). Choose another folder.") from error
        with owned(folder, f"{folder}: another process is at this run.", BusyError):
            yield

    def expect_same_inputs(self, runs: Sequence[Run]) -> None:
        """Refuses runs if another row or seed was measured on other captions or features than at hand.

        Raises:
            DataError: one was, or a seed of one of them with another checkpoint.
        """
        configs = {_data_key(run.settings): run.config for run in runs}
        digests = {key: data_digests(config) for key, config in configs.items()}
        features = {key[:3]: now["features"] for key, now in digests.items()}
        checkpoints = {run.arm: run.folder for run in runs if run.folder is not None and run.folder.is_dir()}
        for path in sorted(self.results.glob("*.yaml")):
            record = _read_record(path)
            key = _data_key(record["settings"])
            if key in configs and record.get("corpus") != digests[key]["corpus"]:
                data = configs[key].data
                raise DataError(
                    f"{path}: was measured on another corpus than {data.collection} in {data.root or 'the cache'}. "
                    "Choose another folder for this study."
                )
            before, now = record.get("features"), features.get(key[:3])
            if None not in (before, now) and before != now:
                raise DataError(
                    f"{path}: was measured with other features of {key[0]} than those in its folder now. Restore them, "
                    "or choose another folder for this study."
                )
            folder = checkpoints.get(path.stem.rpartition("-")[0])
            if folder is not None and record.get("weights") != weights_digest(folder):
                raise DataError(
                    f"{path}: was measured with another checkpoint than that in {folder}. Delete it to evaluate "
                    "this one, or choose another folder for this study."
                )

    def pack(self, file: Path) -> None:
        """Writes study.yaml and the results as one file; equal studies give equal files.

        Args:
            file: ends in .tar.xz; an existing file is replaced.

        Raises:
            DataError: nothing was run here, the name ends otherwise, or the file cannot be written.
        """
        if not self.exists:
            raise DataError(f"{self.path}: is not a study. `prvr papers run` makes one.")
        if not file.name.endswith(PACKED):
            raise DataError(f"{file}: expected a name that ends in {PACKED}")
        paths = [path for ending in ("json", "npz", "png", "yaml") for path in sorted(self.results.glob(f"*.{ending}"))]
        buffer = BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:xz", preset=9) as archive:
            for path in (self._file, *paths):
                content = path.read_bytes()
                member = tarfile.TarInfo(path.relative_to(self.folder).as_posix())  # no owner, no time
                member.size = len(content)
                archive.addfile(member, BytesIO(content))
        write_file(file, buffer.getvalue())

    def _record_file(self, key: str) -> Path:
        return self.results / f"{key}.yaml"

    def _record(self, key: str) -> dict[str, Any]:
        """The record with a key; empty where there is none.

        Raises:
            ConfigError: it is damaged.
        """
        return _read_record(path) if (path := self._record_file(key)).is_file() else {}

    def _expect_folder(self) -> None:
        if self._temporary is not None:
            raise DataError(f"{self.path}: a packed study cannot be changed. Unpack it: tar -xf {self.path}")


def _unpack(file: Path, folder: Path) -> None:
    """Writes study.yaml and the results of a packed study into a folder."""
    try:
        with lzma.open(file) as stream:
            content = stream.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise DataError(f"{file}: larger than {_MOST_BYTES:,} bytes when unpacked, so it is not a study.")
        with tarfile.open(fileobj=BytesIO(content)) as archive:
            members = archive.getmembers()
            for member in members:
                if not (_MEMBER.fullmatch(member.name) and member.isreg()) or member.issparse():
                    raise DataError(f"{file}: contains {short(member.name)}, which is not a file of a study.")
            archive.extractall(folder, members, filter="data")
    except (OSError, EOFError, tarfile.TarError, lzma.LZMAError) as error:
        raise DataError(f"{file}: cannot be read ({error}). Expected a file of `prvr papers pack`.") from error


def _read_record(path: Path) -> dict[str, Any]:
    record = read_yaml_file(path)
    validated(_Record, record, str(path))
    return record


def _data_key(settings: Mapping[str, Any]) -> tuple[Any, ...]:
    """What names the data of a run: the corpus, its features, those of a second stream, and the reported split."""
    names = ("data.collection", "data.feature", "model.stream.feature", "data.eval_split")
    return tuple(settings.get(name) for name in names)


def weights_digest(folder: Path) -> str:
    """A hash of the weights in a folder, and of the configurations beside them, by which a checkpoint is recognised."""
    files = sorted(path for path in folder.rglob("*") if path.suffix == ".safetensors" or path.name == "config.json")
    return digest({file.relative_to(folder).as_posix(): hash_file(file) for file in files})[:16]
