"""Stages that add the score of another model: a second retriever, or the joint encoder of images and text alone."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from prvr.config import load_config
from prvr.config.strict import MANY, STRICT
from prvr.corpora.corpus_encoders import CorpusEncoders, corpus_encoders, read_sentences
from prvr.data.corpus import Corpus
from prvr.data.pack import PackSettings, repack
from prvr.data.packed import PackedSplit, QueryBatch, VideoBatch
from prvr.data.sampling import pad
from prvr.errors import DataError, InputError
from prvr.models import AnyRetriever, load_pretrained
from prvr.models.pretrained import model_files
from prvr.scoring import max_scores, normalised
from prvr.stages.scores import ScoreMatrix
from prvr.types import Direction, FirstStage, Rescore, Scores, VideoEmbedding
from prvr.video import TextFeaturizer, check_joint, open_featurizer

_BOTH: frozenset[Direction] = frozenset(["t2v", "v2t"])
_CORPORA = "a toy corpus (prvr data make) or one of your own captions (prvr convert captions)"


@dataclass(frozen=True, config=STRICT)
class RetrieverSettings:
    """How the score of the second retriever is used."""

    top_k: Annotated[int, Field(ge=1, le=MANY)] | Literal["all"] = 50
    """How many candidates of each row are re-scored, or all."""
    weight: float = Field(default=1.0, ge=0, le=1e6)
    """What its score counts."""
    combine: Literal["add", "replace"] = "add"
    """add: the score so far plus `weight` times the new one; replace: the new one alone orders the candidates."""
    keep_last_frame: bool = True
    """How its frames are sampled: `data.keep_last_frame` of the run that trained it."""


@dataclass(frozen=True, config=STRICT)
class ZeroShotSettings:
    """How the score of the joint encoder is used."""

    top_k: Annotated[int, Field(ge=1, le=MANY)] | Literal["all"] = "all"
    """How many candidates of each row are re-scored, or all."""
    weight: float = Field(default=1.0, ge=0, le=1e6)
    """What the cosine of the sentence with the frame that it fits best counts beside the score so far."""


class RetrieverStage:
    """Adds the score of a second retriever, for example one that compares every word with every frame.

    Args:
        encoder: the second retriever, trained; it encodes texts and videos itself.
        settings: how its score is used.
    """

    kind = "retriever"
    directions = _BOTH
    rows: frozenset[str] = frozenset()

    def __init__(self, encoder: AnyRetriever, settings: RetrieverSettings | None = None) -> None:
        self.encoder, self.settings = encoder, settings or RetrieverSettings()

    @property
    def top_k(self) -> int | None:
        """How many candidates are re-scored; None = all."""
        return _limit(self.settings.top_k)

    def check(self, first: FirstStage) -> None:
        """Any first stage will do."""

    def open_split(self, split: PackedSplit) -> PackedSplit:
        """The same videos and queries, sampled as this retriever reads them."""
        config = self.encoder.config
        settings = PackSettings.of(config, self.settings.keep_last_frame)
        return repack(split, settings, feature_dim=config.video_dim, query_dim=config.query_dim)

    def prepare(self, direction: Direction, score: Callable[[Any], Tensor]) -> None:
        """Nothing needs to be known of the gallery."""

    def bind(self, direction: Direction, matrix: ScoreMatrix, prepared: None) -> Rescore:
        """The function that adds or puts in the scores of this retriever."""
        return weighted(matrix, direction, self.settings.weight, keep=self.settings.combine == "add")

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the retriever as its `save_pretrained` does."""
        self.encoder.save_pretrained(folder)
        return asdict(self.settings)

    @classmethod
    def build(cls, settings: RetrieverSettings, run: Path | None, encode: Any) -> "RetrieverStage":
        """A stage with the retriever of a run, sampled as that run sampled its frames.

        Raises:
            InputError: no run is named.
            DataError: it is neither a run nor a folder of save_pretrained.
        """
        if run is None:
            raise InputError("a retriever stage needs `run`, a run of `prvr train` or a folder of save_pretrained")
        weights, file = model_files(run)
        if file is not None:
            settings = replace(settings, keep_last_frame=load_config(str(file)).data.keep_last_frame)
        return cls.load(weights, settings)

    @classmethod
    def load(cls, folder: Path, settings: RetrieverSettings) -> "RetrieverStage":
        """Read what `save` wrote.

        Raises:
            DataError: the files are missing or damaged.
        """
        return cls(load_pretrained(folder).eval(), settings)


class ZeroShotStage:
    """Adds the zero-shot score: the cosine of the sentence with the frame of the video that it fits best.

    Both are vectors of one joint embedding space of images and text, such as CLIP's, as they were extracted.

    Args:
        settings: how the score is used.
    """

    kind = "zero_shot"
    directions = _BOTH
    rows: frozenset[str] = frozenset()

    def __init__(self, settings: ZeroShotSettings | None = None) -> None:
        self.encoder, self.settings = JointScorer(), settings or ZeroShotSettings()

    @property
    def top_k(self) -> int | None:
        """How many candidates are re-scored; None = all."""
        return _limit(self.settings.top_k)

    def check(self, first: FirstStage) -> None:
        """Any first stage will do."""

    def open_split(self, split: PackedSplit) -> "JointSplit":
        """The joint vectors of the same videos and captions.

        Raises:
            DataError: the corpus of the split is not known, or has no joint embedding space.
        """
        source = split.source
        return JointSplit(source.corpus, source.split, split.video_ids)

    def prepare(self, direction: Direction, score: Callable[[Any], Tensor]) -> None:
        """Nothing needs to be known of the gallery."""

    def bind(self, direction: Direction, matrix: ScoreMatrix, prepared: None) -> Rescore:
        """The function that adds the zero-shot scores."""
        return weighted(matrix, direction, self.settings.weight, keep=True)

    def save(self, folder: Path) -> dict[str, Any]:
        """The joint encoder is opened by its name: there is nothing to write."""
        return asdict(self.settings)

    @classmethod
    def build(cls, settings: ZeroShotSettings, run: Path | None, encode: Any) -> "ZeroShotStage":
        """A stage with these settings; there is nothing to train.

        Raises:
            InputError: a run is named.
        """
        if run is not None:
            raise InputError(f"a zero_shot stage has no run, got {run}: leave it out")
        return cls(settings)

    @classmethod
    def load(cls, folder: Path, settings: ZeroShotSettings) -> "ZeroShotStage":
        """A stage with these settings."""
        return cls(settings)


class JointScorer(nn.Module):
    """A joint embedding space as a first stage: texts and frames are vectors of it already, and nothing is learned."""

    def encode_text(self, words: Float[Tensor, "q 1 d"], word_mask: Bool[Tensor, "q 1"]) -> Float[Tensor, "q d"]:
        """The vectors of sentences, `(q, 1, d)` to `(q, d)`."""
        return words[:, 0]

    def encode_video(
        self, clips: Float[Tensor, "v c d"], frames: Float[Tensor, "v l d"], frame_mask: Bool[Tensor, "v l"]
    ) -> VideoEmbedding:
        """The vectors of frames as they are; clips are not read."""
        return VideoEmbedding(frames=frames, frame_mask=frame_mask)

    def score(self, text: Float[Tensor, "q d"], video: VideoEmbedding) -> Scores:
        """The cosine of each sentence with the frame of each video that it fits best.

        Raises:
            DataError: the videos have no frames.
        """
        if video.frames is None:
            raise DataError("the zero-shot score reads frames, and these videos have none")
        found, _ = max_scores(text, video.frames, video.frame_mask, dots=False, unit=video.unit)
        return Scores(found)

    def for_scoring(self, video: VideoEmbedding) -> VideoEmbedding:
        """The same videos with frames of unit length."""
        return normalised(video)


class JointSplit:
    """Sentences and frames of a split as vectors of the joint embedding space, all frames as they are stored.

    It gives batches as a `prvr.data.PackedSplit` does: a sentence stands where the words would.

    Args:
        corpus: a toy corpus of this version, or one of `prvr convert captions` with frames of a CLIP or SigLIP.
        split: `train`, `val` or `test`.
        video_ids: the videos that take part, in order; None = all of the split.
        texts: any sentences; None = the captions of these videos.
        text: the text side of the encoder of the frames; None = opened by its name, where it is needed.

    Attributes:
        sentences: `(q, d)` vectors of the texts.

    Raises:
        DataError: the corpus has no such split, does not say which encoder its features are of, or has no joint space;
            or `text` is of another model.
    """

    def __init__(
        self,
        corpus: Corpus,
        split: str,
        video_ids: tuple[str, ...] | None = None,
        texts: tuple[str, ...] | None = None,
        text: TextFeaturizer | None = None,
    ) -> None:
        content = corpus.split(split)
        self.corpus, self.encoders = corpus, joint_encoders(corpus)
        self.video_ids = tuple(content.video_ids) if video_ids is None else video_ids
        taken = set(self.video_ids)
        chosen = [i for i, caption in enumerate(content.captions) if caption.video_id in taken]
        rows = read_sentences(corpus, split) if texts is None and text is None else None
        if rows is not None:
            self.sentences = torch.from_numpy(rows)[chosen]
        else:
            side = text or open_featurizer(self.encoders.frames)
            check_joint(side.identity, self.encoders.frames)
            wanted = [content.captions[i].text for i in chosen] if texts is None else texts
            self.sentences = torch.from_numpy(np.stack([side.sentence(sentence) for sentence in wanted]))
        self.query_ids = tuple(content.captions[i].id for i in chosen) if texts is None else tuple(texts)

    def frames(self) -> Iterator[Float[Tensor, "l d"]]:
        """The frames of each video in order, `(l, d)`.

        Raises:
            DataError: the features have another width than the corpus says.
        """
        with self.corpus.open_features() as features:
            if features.dim != self.encoders.dim:
                raise DataError(
                    f"{self.corpus.feature_folder}: features of width {features.dim}, corpus.json says "
                    f"{self.encoders.dim}. Make the corpus again."
                )
            for video in self.video_ids:
                yield torch.from_numpy(features.read(video)[:, : self.encoders.joint_dim]).float()

    def video_batches(self, size: int) -> Iterator[VideoBatch]:
        """All videos in order, `size` at a time."""
        frames = self.frames()
        for start in range(0, len(self.video_ids), size):
            rows, mask = pad(list(islice(frames, size)))
            clips = rows.new_zeros(len(rows), 1, rows.shape[-1])
            yield VideoBatch(clips, rows, mask, torch.arange(start, start + len(rows)))

    def query_batches(self, size: int) -> Iterator[QueryBatch]:
        """All sentences in order, `size` at a time."""
        for start in range(0, len(self.sentences), size):
            rows = self.sentences[start : start + size, None]
            mask = torch.ones(len(rows), 1, dtype=torch.bool)
            yield QueryBatch(rows, mask, torch.arange(start, start + len(rows)))


def joint_encoders(corpus: Corpus) -> CorpusEncoders:
    """The encoders of a corpus whose frames lie in one space with sentences.

    Raises:
        DataError: the corpus does not name them, or they have no space in common.
    """
    path = corpus.folder / "corpus.json"
    encoders = corpus_encoders(corpus)
    if encoders is None:
        raise DataError(
            f"{path}: does not say which encoder its features are of. Zero-shot retrieval needs {_CORPORA}."
        )
    if not encoders.joint_dim:
        raise DataError(
            f"{path}: its frames are of {encoders.frames} and its captions of {encoders.text}: no space in common was "
            "found when it was made. Extract with a CLIP or SigLIP, and convert where that model can be opened."
        )
    return encoders


def _limit(top_k: int | Literal["all"]) -> int | None:
    return None if top_k == "all" else top_k


def weighted(matrix: ScoreMatrix, direction: Direction, weight: float, *, keep: bool) -> Rescore:
    """Adds `weight` times the scores of a matrix to those so far, or puts them in their place."""

    def rescore(scores: Tensor, rows: slice, columns: Tensor | None) -> Tensor:
        if columns is None or columns.shape[1] == matrix.shape(direction)[1]:
            whole = matrix.rows(direction, rows)
            new = whole if columns is None else whole.gather(1, columns)
        else:
            new = matrix.pairs(direction, rows, columns)
        return weight * new.to(scores) + (scores if keep else 0)

    return rescore
