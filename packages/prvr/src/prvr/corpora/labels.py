"""Dense labels of a corpus: all right videos of each query, as others have published them."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prvr.corpora.annotations import read_json, read_lines, read_text
from prvr.data.atomic import write_file
from prvr.data.corpus import open_texts
from prvr.data.layout import Caption, read_captions
from prvr.errors import DataError
from prvr.reading import parse_json, short


@dataclass(frozen=True)
class LabelsReport:
    """The dense labels of a corpus, as numbers of queries in each split that has some.

    Args:
        file: the file that was written.
        captions: all queries.
        labelled: queries with a dense label; the others keep the label that they have.
        without_own: labelled queries whose own video is not among their right ones; it is not added.
        videos: right videos of all labelled queries together.
    """

    file: Path
    captions: Mapping[str, int]
    labelled: Mapping[str, int]
    without_own: Mapping[str, int]
    videos: Mapping[str, int]


def convert_labels(folder: Path | str, files: Sequence[Path | str]) -> LabelsReport:
    """Writes dense labels, all right videos of each query, into `TextData/COLLECTION_dense_labels.jsonl`.

    Args:
        folder: `ROOT/COLLECTION`.
        files: JSON lines, or a JSON array, of objects with `query_id`, a caption id of the corpus, and `gt_video_ids`,
            videos of the same split. A query with an empty list counts as one without a label.

    Raises:
        DataError: the corpus has no captions, or such labels already; a file is missing or of another form; it names
            queries or videos that are not there, or a query twice.

    Examples:
        >>> convert_labels("data/tvr", ["tvr_test_dense.json"])  # doctest: +SKIP
    """
    corpus = open_texts(folder)
    target = corpus.text_file("dense_labels")
    if target.exists():
        raise DataError(f"{target}: exists already. Move it away to make it anew.")
    labels, repeated = dict[str, tuple[str, ...]](), list[str]()
    for query, videos in (label for file in files for label in _records(Path(file).expanduser())):
        repeated += [query] * (query in labels)
        labels[query] = videos
    labels = {query: videos for query, videos in labels.items() if videos}
    splits = {split: read_captions(corpus.caption_file(split)) for split in corpus.splits}
    strange = labels.keys() - {caption.id for captions in splits.values() for caption in captions}
    lost, found = list[str](), defaultdict[str, list[Caption]](list)
    for split, captions in splits.items():
        gallery = {caption.video_id for caption in captions}
        for caption in captions:
            if caption.id in labels:
                lost += [video for video in labels[caption.id] if video not in gallery]
                found[split].append(caption)
    problems = {
        "query ids that are in no split": sorted(strange),
        "video ids that are not in the split of their query": sorted(set(lost)),
        "repeated query ids": repeated,
    }
    said = [f"{what}: {len(ids)}, among them {short(ids[:3], 200)}" for what, ids in problems.items() if ids]
    if said or not labels:
        raise DataError(f"{', '.join(map(str, files))}: {'; '.join(said) or 'no label'}. Are these labels of {folder}?")
    lines = (json.dumps({"cap_id": query, "vids": sorted(set(videos))}) for query, videos in labels.items())
    content = "".join(f"{line}\n" for line in lines)
    write_file(target, lambda file: file.write(content.encode()))
    return LabelsReport(
        file=target,
        captions={split: len(splits[split]) for split in found},
        labelled={split: len(some) for split, some in found.items()},
        without_own={split: sum(c.video_id not in labels[c.id] for c in some) for split, some in found.items()},
        videos={split: sum(len(set(labels[c.id])) for c in some) for split, some in found.items()},
    )


def _records(path: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Query and right videos of each record."""
    if read_text(path).lstrip().startswith("["):
        rows = [(f"record {number}", row) for number, row in enumerate(read_json(path, list), 1)]
    else:
        lines = enumerate(read_lines(path), 1)
        rows = [(f"line {number}", parse_json(line, f"{path}, line {number}")) for number, line in lines]
    for where, row in rows:
        query, videos = (row.get(key) if isinstance(row, dict) else None for key in ("query_id", "gt_video_ids"))
        if not isinstance(query, str) or not isinstance(videos, list) or not all(isinstance(v, str) for v in videos):
            raise DataError(
                f"{path}, {where}: got {short(row)}, expected an object with query_id, a caption id, and gt_video_ids, "
                "a list of video ids."
            )
        yield query, tuple(videos)
