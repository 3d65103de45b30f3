"""A corpus in the public on-disk layout: which file is which, and the queries and videos of each split."""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from prvr.data.features import FeatureReader, open_features, open_query_features
from prvr.data.layout import Caption, MomentTimes, read_captions, read_moments, read_own_ids, read_relevance, read_tags
from prvr.errors import DataError
from prvr.reading import read_object

logger = logging.getLogger(__name__)

TEXT_FILES: Mapping[str, Callable[[Path], dict[str, Any]]] = {
    "moments": read_moments,
    "relevance": read_relevance,
    "tags": read_tags,
    "own_ids": read_own_ids,
}
"""The readers of the files by caption that a corpus may have, by what they hold."""
PUBLIC_FEATURES = {"tvr": "i3d_resnet", "activitynet": "i3d", "charades": "i3d_rgb_lgi"}


@dataclass(frozen=True)
class Split:
    """One split: its queries in file order, its gallery in order of first appearance, and what is known of both."""

    name: str
    captions: tuple[Caption, ...]
    moments: Mapping[str, MomentTimes] = field(default_factory=dict)
    relevance: Mapping[str, Collection[str]] = field(default_factory=dict)
    tags: Mapping[str, frozenset[str]] = field(default_factory=dict)
    own_ids: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def video_ids(self) -> tuple[str, ...]:
        """The gallery."""
        return tuple(dict.fromkeys(caption.video_id for caption in self.captions))

    @cached_property
    def _gallery(self) -> frozenset[str]:
        return frozenset(self.video_ids)

    def relevant(self, caption: Caption) -> frozenset[str]:
        """Videos of this gallery that match a caption: its own, and those that the corpus names besides."""
        return self._gallery.intersection(self.relevance.get(caption.id, ())) | {caption.video_id}


@dataclass(frozen=True)
class Corpus:
    """The files of one collection (see [open_corpus][prvr.data.corpus.open_corpus])."""

    folder: Path
    name: str
    feature_folder: Path
    query_file: Path

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits that have a caption file."""
        ending = ".caption.txt"
        files = (self.folder / "TextData").glob(f"*{ending}")
        return tuple(sorted(p.name[len(self.name) : -len(ending)] for p in files if p.name.startswith(self.name)))

    def caption_file(self, split: str) -> Path:
        """Path of a split's captions."""
        return self.folder / "TextData" / f"{self.name}{split}.caption.txt"

    def text_file(self, kind: str) -> Path:
        """Path of one of `TEXT_FILES`, or of `dense_labels`, which a corpus may lack."""
        return self.folder / "TextData" / f"{self.name}_{kind}.jsonl"

    @property
    def about(self) -> dict[str, Any]:
        """What `corpus.json` says of where the corpus comes from; empty where there is no such file.

        Raises:
            DataError: it cannot be read.
        """
        try:
            return read_object(self.folder / "corpus.json", "Make the corpus again.")
        except FileNotFoundError:
            return {}

    @property
    def is_benchmark(self) -> bool:
        """Whether `corpus.json` names a text-to-video benchmark, whose papers also rank sets of captions.

        Raises:
            DataError: it cannot be read.
        """
        return isinstance(self.about.get("benchmark"), str)

    def split(self, name: str) -> Split:
        """Reads the captions, moments, relevance sets, tags and own ids of a split.

        Raises:
            DataError: no such split, or a bad line in one of its files.
        """
        if not self.caption_file(name).is_file():
            raise DataError(f"{self.caption_file(name)}: no such file. {self.name} has the splits {list(self.splits)}.")
        captions = read_captions(self.caption_file(name))
        records = {kind: read(path) for kind, read in TEXT_FILES.items() if (path := self.text_file(kind)).is_file()}
        return Split(name, captions, **records)

    def dense_labels(self) -> dict[str, dict[str, int]]:
        """All right videos of queries and their levels, as `prvr convert labels` has added them, or nothing.

        Raises:
            DataError: a bad line in the file.
        """
        path = self.text_file("dense_labels")
        return read_relevance(path) if path.is_file() else {}

    def open_features(self, stream: str | None = None) -> FeatureReader:
        """Opens the frame features, or those of a second stream.

        Raises:
            DataError: there are none, or they are damaged.
        """
        return open_features(self.feature_folder if stream is None else self.stream_folder(stream))

    def stream_folder(self, stream: str) -> Path:
        """The folder or HDF5 file of a second stream.

        Raises:
            DataError: there is none of this name.
        """
        features = self.folder / "FeatureData"
        if not (features / stream).exists():
            names = _folders(features) + _matrices(features)
            raise DataError(
                f"{features / stream}: no such folder or file. Under FeatureData: {names}. Set data.feature, "
                "or model.stream.feature for a second stream, to one of them."
            )
        return features / stream

    def open_queries(self) -> FeatureReader:
        """Opens the query features."""
        return open_query_features(self.query_file)

    def dims(self) -> tuple[int, int]:
        """Widths of the frame features and of the query features."""
        with self.open_features() as videos, self.open_queries() as queries:
            return videos.dim, queries.dim


def open_corpus(root: Path | str, collection: str, *, feature: str | None = None) -> Corpus:
    """Finds the files of a collection under ``root/collection``, in the public layout.

    The query features are ``roberta_{collection}_query_feat.hdf5``; where no such file exists, those with the name of
    the file of frame features, or the only ones.

    Args:
        root: folder that holds the collections.
        collection: ``tvr``, ``activitynet``, ``charades``, or any other name.
        feature: folder or HDF5 file under ``FeatureData``; default: the only folder, the one that the public code
            uses, or ``frames``; without a folder, the only file.

    Raises:
        DataError: the folder, the frame features or the query features are missing or ambiguous.
    """
    folder = Path(root).expanduser() / collection
    if not folder.is_dir():
        raise DataError(
            f"{folder}: no such folder. Expected ROOT/{collection}/FeatureData and TextData; "
            f"under ROOT: {_folders(folder.parent)}."
        )
    name = feature or _choose_feature(folder / "FeatureData", collection)
    features = Corpus(folder, collection, folder, folder).stream_folder(name)
    query_file = folder / "TextData" / f"roberta_{collection}_query_feat.hdf5"
    if features.is_file() or not query_file.is_file():
        same = (query_file.with_name(f"{features.stem}{end}{features.suffix}") for end in ("", "_text"))
        files = [file for file in same if features.is_file() and file.is_file()]
        files = files or sorted((folder / "TextData").glob("*_query_feat.hdf5"))
        if len(files) != 1:
            raise DataError(
                f"{query_file}: no such file. Download the query features (in TextData: {[p.name for p in files]})."
            )
        logger.info("query features: %s", files[0].name)
        query_file = files[0]
    return Corpus(folder, collection, features, query_file)


def open_texts(folder: Path | str) -> Corpus:
    """A corpus of which only the files in `TextData` are read, so that its features need not be there.

    Raises:
        DataError: it has no captions.
    """
    folder = Path(folder).expanduser().absolute()
    corpus = Corpus(folder, folder.name, folder / "FeatureData", folder / "TextData")
    if not corpus.splits:
        raise DataError(f"{folder / 'TextData'}: no {folder.name}SPLIT.caption.txt in it. Expected ROOT/COLLECTION.")
    return corpus


def _folders(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []


def _matrices(folder: Path) -> list[str]:
    """The HDF5 files of a folder."""
    return sorted(p.name for p in folder.glob("*.h*5") if p.is_file())


def _choose_feature(folder: Path, collection: str) -> str:
    names = _folders(folder) or _matrices(folder)
    if len(names) == 1:
        return names[0]
    for name in (PUBLIC_FEATURES.get(collection, "frames"), "frames", *PUBLIC_FEATURES.values()):
        if name in names:
            return name
    mend = "Set data.feature to one of them." if names else "Name the folder of a corpus, ROOT/COLLECTION."
    raise DataError(f"{folder}: expected one folder or HDF5 file of frame features, got {names}. {mend}")
