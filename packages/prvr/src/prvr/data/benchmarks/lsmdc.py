"""LSMDC: short clips of films, one sentence each; in training a clip may have several. 1,000 clips are tested."""

from collections import defaultdict
from pathlib import Path

from prvr.data.benchmarks.annotations import Annotations, captioned, find_file, read_lines
from prvr.errors import DataError

__all__ = ["read_lsmdc"]

# "publictect" is how the file is called where it is given out
FILES = {
    "train": ("LSMDC16_annos_training.csv",),
    "val": ("LSMDC16_annos_val.csv",),
    "test": ("LSMDC16_challenge_1000_publictect.csv", "LSMDC16_challenge_1000_publictest.csv"),
}
COLUMNS = ("clip id", "start aligned", "end aligned", "start extracted", "end extracted", "sentence")


def read_lsmdc(folder: Path) -> Annotations:
    """Reads `LSMDC16_annos_training.csv`, `LSMDC16_annos_val.csv` and `LSMDC16_challenge_1000_publictect.csv`.

    They are called CSV, but their six columns are separated by tabs, without a header, and a quotation mark is a
    letter like any other. A clip id that stands there several times is one video with several captions.

    Raises:
        DataError: a file is missing or of another form.
    """
    splits = {}
    for split, names in FILES.items():
        path = find_file(folder, *names)
        by_video: dict[str, list[str]] = defaultdict(list)
        for number, line in enumerate(read_lines(path), 1):
            fields = line.strip().split("\t")
            if len(fields) != len(COLUMNS):
                raise DataError(
                    f"{path}, line {number} of those with text: {len(fields)} columns separated by tabs, expected "
                    f"{len(COLUMNS)}: {', '.join(COLUMNS)}."
                )
            by_video[fields[0].strip()].append(fields[-1])
        splits[split] = (list(by_video), by_video)
    return captioned(folder, splits)
