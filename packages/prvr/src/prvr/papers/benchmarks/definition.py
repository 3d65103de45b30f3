"""What a public benchmark is: the registry of all, what their readers return, and how these find files and captions."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from prvr.config import Registry
from prvr.corpora.annotations import read_lines
from prvr.data.layout import MomentTimes
from prvr.errors import DataError
from prvr.reading import short


@dataclass(frozen=True, slots=True)
class CaptionedVideo:
    """A video of a benchmark and its captions.

    Args:
        id: as the annotation files have it.
        captions: its queries in file order, with single spaces; in a paragraph set one, all its sentences joined.
        moments: of each caption, in a benchmark of untrimmed videos.
    """

    id: str
    captions: tuple[str, ...]
    moments: tuple[MomentTimes, ...] = ()


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


class AnnotatedSentence(NamedTuple):
    """A sentence of an annotation file.

    Args:
        video: the id of its video.
        text: as it is written there.
        moment: when it is true, in a benchmark of untrimmed videos.
    """

    video: str
    text: str
    moment: MomentTimes | None = None


class AnnotatedSplit(NamedTuple):
    """What annotation files say of a split.

    Args:
        name: train, val or test.
        sentences: in the order of the files; those of videos that are not in the split are ignored.
        videos: the ids of its list; None where there is no list: those of the sentences.
    """

    name: str
    sentences: Iterable[AnnotatedSentence]
    videos: Iterable[str] | None = None


@dataclass(frozen=True)
class Benchmark:
    """A public text-to-video benchmark; its name and its title stand in the registry.

    Args:
        splits: reads its annotation files, from their folder.
        max_words: rows of text features kept, as CLIP4Clip and its successors set it.
        preset: the configuration that is trained on it.
        untrimmed: videos are long and each sentence is a query, with its moment: partially relevant video retrieval.
        paragraphs: all sentences of a video, joined, are its one query.
    """

    splits: Callable[[Path], Iterable[AnnotatedSplit]]
    max_words: int
    preset: str
    untrimmed: bool = False
    paragraphs: bool = False

    def read(self, folder: Path) -> Annotations:
        """The videos of each split with their captions, from the annotation files in a folder.

        Raises:
            DataError: a file is missing or of another form, a split has no captioned video, or a video is in two.

        Examples:
            >>> sentences = [AnnotatedSentence("a", text) for text in ("a  dog", "", "it runs")]
            >>> split = AnnotatedSplit("test", sentences, ["a", "b"])
            >>> annotations = Benchmark(lambda folder: [split], 32, "best-toy", paragraphs=True).read(Path())
            >>> annotations.splits["test"], annotations.uncaptioned, annotations.wordless
            ((CaptionedVideo(id='a', captions=('a dog it runs',), moments=()),), {'test': ('b',)}, 1)
        """
        captioned: dict[str, tuple[CaptionedVideo, ...]] = {}
        without: dict[str, tuple[str, ...]] = {}
        wordless = 0
        owner: dict[str, str] = {}
        for split, sentences, listed in list(self.splits(folder)):  # every file is read before any is judged
            by_video = defaultdict[str, list[AnnotatedSentence]](list)
            for sentence in sentences:
                by_video[str(sentence.video)].append(sentence)
            videos, empty = [], []
            for video in dict.fromkeys(by_video if listed is None else listed):
                if owner.setdefault(video, split) != split:
                    raise DataError(f"{folder}: video {short(video)} is in {owner[video]} and in {split}.")
                lines = [(" ".join(str(text).split()), moment) for _, text, moment in by_video.get(video, ())]
                said = [(text, moment) for text, moment in lines if any(map(str.isalnum, text))]
                wordless += len(lines) - len(said)
                if said:
                    texts = tuple(text for text, _ in said)
                    moments = tuple(moment for _, moment in said if moment is not None)
                    videos.append(CaptionedVideo(video, (" ".join(texts),) if self.paragraphs else texts, moments))
                else:
                    empty.append(video)
            if not videos:
                raise DataError(f"{folder}: none of the {len(empty)} videos of {split} has a caption.")
            captioned[split] = tuple(videos)
            if empty:
                without[split] = tuple(empty)
        return Annotations(captioned, without, wordless)


BENCHMARKS: Registry[Benchmark] = Registry("benchmark")


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


def read_list(path: Path) -> list[str]:
    """The video ids of a file, one a line, each once.

    Raises:
        DataError: there is none.
    """
    ids = list(dict.fromkeys(line.strip() for line in read_lines(path)))
    if not ids:
        raise DataError(f"{path}: no video ids, expected one per line. Download it again.")
    return ids
