"""DiDeMo: videos of 25 to 30 s from Flickr; all descriptions of a video, joined, are its one query."""

from collections import defaultdict
from pathlib import Path

from prvr.data.benchmarks.annotations import Annotations, captioned, find_file, read_json, read_list
from prvr.errors import DataError

__all__ = ["read_didemo"]


def read_didemo(folder: Path) -> Annotations:
    """Reads `train_data.json`, `val_data.json`, `test_data.json` and the lists `train_list.txt`, ..., `test_list.txt`.

    A file is an array of entries with `video` (a file name), `description` and the annotators' `times`, which are not
    used: the descriptions of a video are joined in file order.

    Raises:
        DataError: a file is missing or of another form.
    """
    splits = {}
    for split in ("train", "val", "test"):
        path = find_file(folder, f"{split}_data.json")
        by_video: dict[str, list[str]] = defaultdict(list)
        try:
            for entry in read_json(path, list):
                by_video[str(entry["video"])].append(str(entry["description"]))
        except (KeyError, TypeError) as error:
            raise DataError(f"{path}: expected entries with video and description ({error!r}).") from error
        splits[split] = (read_list(find_file(folder, f"{split}_list.txt")), by_video)
    return captioned(folder, splits, paragraphs=True)
