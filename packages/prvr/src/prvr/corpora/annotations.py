"""Readers of public benchmarks: their registry, what they return, and how annotation files are found and read."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prvr.config import Registry
from prvr.errors import DataError
from prvr.reading import LARGE, parse_json, read_bytes, short

if TYPE_CHECKING:
    from prvr.data import Corpus


@dataclass(frozen=True, slots=True)
class CaptionedVideo:
    """A video of a benchmark and its captions.

    Args:
        id: as the annotation files have it.
        captions: its queries in file order, with single spaces; in a paragraph set one, all its sentences joined.
    """

    id: str
    captions: tuple[str, ...]


@dataclass(frozen=True)
class Annotations:
    """The splits of a benchmark.

    Args:
        splits: by name (train, val, test), the videos in the order of the split's list, each with a caption or more.
        uncaptioned: by split, listed videos without a caption; they are in no split.
        wordless: how many captions without a letter or digit were left out.
    """

    splits: Mapping[str, tuple[CaptionedVideo, ...]]
    uncaptioned: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    wordless: int = 0


@dataclass(frozen=True)
class Benchmark:
    """A public text-to-video benchmark; its name and its title stand in the registry.

    Args:
        read: reads its annotation files, from their folder.
        max_words: rows of text features kept, as CLIP4Clip and its successors set it.
        preset: the configuration that is trained on it.
    """

    read: Callable[[Path], Annotations]
    max_words: int
    preset: str


@dataclass(frozen=True)
class Conversion:
    """What a conversion has written.

    Args:
        path: the folder of the corpus, or the file that was written into one.
        counts: numbers by split, by what is counted: `counts["videos"]["train"]`.
        notes: what was left out or changed, a sentence each.
    """

    path: Path
    counts: Mapping[str, Mapping[str, int | float]]
    notes: Sequence[str] = ()


def lengths(by_split: Mapping[str, Sized]) -> dict[str, int]:
    """The number of items of each split."""
    return {split: len(items) for split, items in by_split.items()}


BENCHMARKS: Registry[Benchmark] = Registry("benchmark")


def benchmark(name: str) -> Benchmark:
    """The benchmark of a name.

    Raises:
        InputError: there is none; names those that are known.

    Examples:
        >>> benchmark("didemo").max_words
        64
    """
    return BENCHMARKS[name].part


def benchmark_of(corpus: "Corpus") -> Benchmark | None:
    """The benchmark that a corpus was made from; None where it was made from none, or does not say.

    Raises:
        DataError: `corpus.json` cannot be read.
    """
    name = str(corpus.about.get("benchmark"))
    return benchmark(name) if name in BENCHMARKS else None


def captioned(
    source: Path | str,
    splits: Mapping[str, tuple[Iterable[str], Mapping[str, Iterable[str]]]],
    *,
    paragraphs: bool = False,
) -> Annotations:
    """Joins lists of videos with their captions.

    Args:
        source: the folder of the annotation files, for messages.
        splits: by name, the videos of the split's list and the captions by video; captions of others are ignored.
        paragraphs: join the captions of a video into one.

    Raises:
        DataError: a split without a captioned video, or a video in two splits.

    Examples:
        >>> splits = {"test": (["a", "b"], {"a": ["a  dog", "", "it runs"]})}
        >>> annotations = captioned("annotations", splits, paragraphs=True)
        >>> annotations.splits["test"], annotations.uncaptioned, annotations.wordless
        ((CaptionedVideo(id='a', captions=('a dog it runs',)),), {'test': ('b',)}, 1)
    """
    captioned_splits: dict[str, tuple[CaptionedVideo, ...]] = {}
    without: dict[str, tuple[str, ...]] = {}
    wordless = 0
    owner: dict[str, str] = {}
    for split, (ids, by_video) in splits.items():
        videos, empty = [], []
        for video_id in dict.fromkeys(ids):
            if owner.setdefault(video_id, split) != split:
                raise DataError(f"{source}: video {short(video_id)} is in {owner[video_id]} and in {split}.")
            lines = [" ".join(text.split()) for text in by_video.get(video_id, ())]
            texts = [line for line in lines if any(letter.isalnum() for letter in line)]
            wordless += len(lines) - len(texts)
            if texts:
                videos.append(CaptionedVideo(video_id, (" ".join(texts),) if paragraphs else tuple(texts)))
            else:
                empty.append(video_id)
        if not videos:
            raise DataError(f"{source}: none of the {len(empty)} videos of {split} has a caption.")
        captioned_splits[split] = tuple(videos)
        if empty:
            without[split] = tuple(empty)
    return Annotations(captioned_splits, without, wordless)


def find_file(folder: Path, *names: str) -> Path:
    """The first of several files that is in a folder, whatever the case of its letters.

    Raises:
        DataError: none does.
    """
    paths = {path.name.lower(): path for path in folder.iterdir()} if folder.is_dir() else {}
    path = next((paths[name.lower()] for name in names if name.lower() in paths), None)
    if path is None:
        files = ", ".join(sorted(paths)[:8]) or "nothing"
        raise DataError(f"{folder}: expected {' or '.join(names)}, got {files}. Download the annotation files into it.")
    if not path.is_file():
        raise DataError(f"{path}: expected a regular file. Download it again.")
    return path


def read_text(path: Path) -> str:
    """The text of a file: UTF-8, with a mark at its start or without; ISO-8859-1 where it is no UTF-8."""
    content = read_bytes(path, LARGE)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:  # some of these files are that old
        return content.decode("iso-8859-1")


def read_lines(path: Path) -> list[str]:
    """The lines of a file that are not blank."""
    # not splitlines: a caption may hold U+2028, U+0085 and the like
    return [line for line in (line.removesuffix("\r") for line in read_text(path).split("\n")) if line.strip()]


def read_list(path: Path) -> list[str]:
    """The video ids of a file, one a line, each once.

    Raises:
        DataError: there is none.
    """
    ids = list(dict.fromkeys(line.strip() for line in read_lines(path)))
    if not ids:
        raise DataError(f"{path}: no video ids, expected one per line. Download it again.")
    return ids


def read_json(path: Path, kind: type) -> Any:
    """The content of a JSON file.

    Args:
        path: the file.
        kind: `dict` or `list`.

    Raises:
        DataError: not JSON, or of another kind.
    """
    try:
        content = parse_json(read_text(path), str(path))
    except DataError as error:
        raise DataError(f"{error} Truncated? Download it again.") from error
    if not isinstance(content, kind):
        wanted, got = "object" if kind is dict else "array", type(content).__name__
        raise DataError(f"{path}: expected a JSON {wanted}, got {got}. Is it another file?")
    return content
