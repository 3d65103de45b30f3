"""MSVD: 1,970 short videos with about 40 captions each, all of which count in the test."""

import pickle
from pathlib import Path
from typing import Any

from prvr.data.benchmarks.annotations import Annotations, captioned, find_file, read_json, read_list
from prvr.data.errors import DataError

__all__ = ["read_msvd"]


def read_msvd(folder: Path) -> Annotations:
    """Reads `raw-captions.pkl` and the lists `train_list.txt`, `val_list.txt` and `test_list.txt`.

    The captions are a dictionary from video to captions, each a list of words; `raw-captions.json` may hold the same.
    Of the pickle only lists, dictionaries, texts and numbers are read; one that asks for more is refused.

    Raises:
        DataError: a file is missing or of another form, or a listed video is not among the captions.
    """
    path = find_file(folder, "raw-captions.pkl", "raw-captions.json", "raw_captions.pkl", "raw_captions.json")
    found = read_json(path, dict) if path.suffix == ".json" else _read_pickle(path)
    try:
        by_video = {str(video): [_sentence(words) for words in captions] for video, captions in found.items()}
    except (AttributeError, TypeError) as error:
        raise DataError(f"{path}: expected {{video: [[word, ...], ...]}} ({error}).") from error
    splits = {split: read_list(find_file(folder, f"{split}_list.txt")) for split in ("train", "val", "test")}
    for split, ids in splits.items():
        lost = [video for video in ids if video not in by_video]
        if lost:
            raise DataError(f"{path}: nothing about {len(lost)} videos of {split}_list.txt, among them {lost[:3]}.")
    return captioned({split: (ids, by_video) for split, ids in splits.items()})


def _sentence(words: object) -> str:
    if isinstance(words, str):
        return words
    if isinstance(words, list | tuple) and all(isinstance(word, str) for word in words):
        return " ".join(words)
    raise TypeError(f"a caption is {str(words)[:40]!r}")


class _PlainUnpickler(pickle.Unpickler):
    """Builds lists, dictionaries, texts and numbers and nothing else: without a global nothing can be called."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}, captions are plain lists and texts")

    def persistent_load(self, pid: Any, /) -> Any:
        raise pickle.UnpicklingError("it refers to something outside of it")


def _read_pickle(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            found = _PlainUnpickler(file, encoding="utf-8").load()
    except (pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError, AttributeError, TypeError) as error:
        raise DataError(f"{path}: not a pickle of plain captions ({error}). Download it again.") from error
    if not isinstance(found, dict):
        raise DataError(f"{path}: expected a dictionary from video to captions, got {type(found).__name__}.")
    return found
