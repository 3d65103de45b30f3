"""ActivityNet Captions as paragraph retrieval: all sentences of a video, joined, are its one query."""

from pathlib import Path

from prvr.data.benchmarks.annotations import Annotations, captioned, find_file, read_json
from prvr.errors import DataError

__all__ = ["read_activitynet"]

SPLITS = {"train": ("train.json", "train_ids.json"), "test": ("val_1.json", "val_ids.json")}


def read_activitynet(folder: Path) -> Annotations:
    """Reads `train.json` and `val_1.json`, which is what papers test on: the split "test".

    A file maps `v_ID` to `duration`, `timestamps` and `sentences`. Where `train_ids.json` or `val_ids.json` stands
    beside it, that array says which videos take part, and in which order.

    Raises:
        DataError: a file is missing or of another form.
    """
    splits = {}
    for split, (captions, ids) in SPLITS.items():
        path = find_file(folder, captions)
        try:
            by_video = {video: [str(line) for line in v["sentences"]] for video, v in read_json(path, dict).items()}
        except (KeyError, TypeError) as error:
            raise DataError(f"{path}: expected {{v_ID: {{sentences: [...]}}}} ({error!r}).") from error
        listed = read_json(folder / ids, list) if (folder / ids).is_file() else list(by_video)
        splits[split] = (map(str, listed), by_video)
    return captioned(folder, splits, paragraphs=True)
