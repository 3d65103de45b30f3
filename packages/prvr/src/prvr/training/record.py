"""The record of a run, `environment.yaml` in its folder: versions, device, hashes of captions and features."""

import logging
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from accelerate import Accelerator

from prvr import __version__
from prvr.config import Config, read_yaml_file
from prvr.data.features import feature_files
from prvr.data.hashes import digest, hash_file, hash_sample
from prvr.errors import TrainingError
from prvr.training.checkpoint import write_file
from prvr.training.processes import in_main
from prvr.training.run_folder import RECORD, Run
from prvr.training.splits import run_corpus

logger = logging.getLogger(__name__)


def data_digests(config: Config) -> dict[str, str | None]:
    """The hashes by which the captions and the features of a configuration are recognised.

    Returns:
        corpus: of the captions of the training and the reported split. features: of samples of them; None for a corpus
        that prvr draws, whose features follow from their version, up to the rounding of the machine.

    Raises:
        prvr.data.DataError: the files are missing.
        prvr.training.TrainingError: `data.root` is missing.
    """
    corpus, data = run_corpus(config), config.data
    captions = {split: corpus.caption_file(split) for split in ("train", data.eval_split)}
    features: dict[str, Any] = {}
    if data.root is not None:
        features = {file.name: hash_sample(file) for file in (*feature_files(corpus.feature_folder), corpus.query_file)}
        if (stream := config.model.stream) is not None:
            features["stream"] = [hash_sample(file) for file in feature_files(corpus.stream_folder(stream.feature))]
    return {
        "corpus": digest({split: hash_file(file) for split, file in captions.items() if file.is_file()})[:16],
        "features": digest(features)[:16] if features else None,
    }


def environment(accelerator: Accelerator, precision: str) -> dict[str, Any]:
    """The versions and the device of this process, as plain values."""
    on_gpu = accelerator.device.type == "cuda"
    return {
        "prvr": __version__,
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "device": accelerator.device.type,
        "device_name": torch.cuda.get_device_name() if on_gpu else platform.processor() or platform.machine(),
        "processes": accelerator.num_processes,
        "threads": torch.get_num_threads(),
        "precision": precision,
        "float32_matmul": torch.get_float32_matmul_precision(),
    }


def changed_data(folder: Path, config: Config) -> list[str]:
    """The kinds of data, captions or features, that have changed since a run was trained on them.

    Args:
        folder: of the run; one without a record has nothing to compare.
        config: says where they are now.
    """
    file = folder / RECORD
    record = read_yaml_file(file) if file.is_file() else {}
    names = {"corpus": "captions", "features": "features"}
    current = data_digests(config) if record.get("corpus") is not None else {}
    return [names[key] for key, value in current.items() if record.get(key) != value]


def keep_record(run: Run, precision: str, config: Config | None) -> None:
    """Writes the record of a new run; of a run that is resumed, compares the record with the present.

    Args:
        run: the run.
        precision: of its configuration.
        config: its configuration, if it reads the data that this names.

    Raises:
        TrainingError: the run was begun on other captions or features.
    """

    def keep() -> None:
        file, current = run.folder.path / RECORD, environment(run.accelerator, precision)
        logger.info("%s", ", ".join(f"{key} {value}" for key, value in current.items() if value is not None))
        if run.state is None or not file.is_file():
            values = current | ({} if config is None else data_digests(config))
            write_file(file, yaml.safe_dump(values, sort_keys=False, allow_unicode=True).encode())
            return
        if config is not None and (changed := changed_data(file.parent, config)):
            raise TrainingError(
                f"{file}: the run was begun on other {' and '.join(changed)} of {config.data.collection} than those in "
                "its folder now. Restore them, or start a new run in another folder."
            )
        if changes := _changes(read_yaml_file(file), current):
            logger.warning("%s: continued with another environment: %s", file.parent, "; ".join(changes))

    in_main(run.accelerator, keep)


def _changes(before: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    return [f"{key} {before.get(key)} -> {value}" for key, value in current.items() if before.get(key) != value]
