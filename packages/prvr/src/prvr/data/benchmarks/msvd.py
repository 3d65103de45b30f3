"""MSVD: 1,970 short videos with about 40 captions each, all of which count in the test."""

import pickle
import pickletools
from io import BytesIO
from pathlib import Path
from typing import Any

from prvr.data.benchmarks.annotations import Annotations, captioned, find_file, read_json, read_list
from prvr.errors import DataError
from prvr.reading import SMALL, read_bytes, short

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
        by_video, letters = dict[str, list[str]](), 0
        for video, captions in found.items():
            lines = [_words(caption) for caption in captions]
            letters += sum(1 + sum(1 + len(word) for word in words) for words in lines)
            if letters > SMALL:  # lists that are shared may stand for more than memory holds
                raise TypeError(f"more than {SMALL} letters")
            by_video[str(video)] = [" ".join(words) for words in lines]
    except (AttributeError, TypeError) as error:
        raise DataError(f"{path}: expected {{video: [[word, ...], ...]}} ({error}).") from error
    splits = {split: read_list(find_file(folder, f"{split}_list.txt")) for split in ("train", "val", "test")}
    for split, ids in splits.items():
        lost = [video for video in ids if video not in by_video]
        if lost:
            raise DataError(
                f"{path}: nothing about {len(lost)} videos of {split}_list.txt, among them {short(lost[:3])}."
            )
    return captioned(folder, {split: (ids, by_video) for split, ids in splits.items()})


def _words(caption: object) -> list[str]:
    if isinstance(caption, str):
        return [caption]
    if isinstance(caption, list) and all(isinstance(word, str) for word in caption):
        return caption
    raise TypeError(f"a caption is of type {type(caption).__name__}")


class _PlainUnpickler(pickle.Unpickler):
    """Builds lists, dictionaries, texts and numbers and nothing else: without a global nothing can be called."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}, captions are plain lists and texts")

    def persistent_load(self, pid: Any, /) -> Any:
        raise pickle.UnpicklingError("it refers to something outside of it")


def _check_operations(content: bytes) -> None:
    """Refuses what would take more memory or time than the file is worth.

    The unpickler makes room for as many objects as the largest number that one is given: a flipped bit would take
    gigabytes. And a key of nested tuples that share their parts takes forever to hash.
    """
    for operation, argument, _ in pickletools.genops(content):
        if operation.name in ("GLOBAL", "STACK_GLOBAL", "INST"):
            return  # the unpickler refuses it, and says what it is
        if operation.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > len(content):
            raise ValueError("it numbers more objects than it holds")
        if operation.name.startswith("TUPLE") or operation.name == "FROZENSET":
            raise ValueError("it holds tuples, captions are lists")


def _read_pickle(path: Path) -> Any:
    content = read_bytes(path)
    try:
        _check_operations(content)
        found = _PlainUnpickler(BytesIO(content), encoding="utf-8").load()
    except (
        pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError, AttributeError, TypeError, OverflowError,
        RecursionError, MemoryError,
    ) as error:  # fmt: skip
        raise DataError(f"{path}: not a pickle of plain captions ({error}). Download it again.") from error
    if not isinstance(found, dict):
        raise DataError(f"{path}: expected a dictionary from video to captions, got {type(found).__name__}.")
    return found
