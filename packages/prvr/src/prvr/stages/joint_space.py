"""Scores without training as a stage: cosines in the joint space of an encoder of images and text, such as CLIP."""

import logging
from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from prvr.config.strict import MANY, STRICT
from prvr.corpora.corpus_encoders import CorpusEncoders, corpus_encoders, read_sentences
from prvr.data.corpus import Corpus
from prvr.data.layout import Caption
from prvr.data.packed import PackedSplit
from prvr.data.sampling import growing_means, pad
from prvr.encoders import TextFeaturizer, check_joint, open_featurizer
from prvr.errors import DataError, InputError
from prvr.extensions import extensions
from prvr.scoring import max_scores, normalised
from prvr.stages.matrix import ScoreMatrix
from prvr.stages.stage import STAGES, Rescore, Stage, add_scores
from prvr.types import MEANS, Direction, JointRows, Scores, VideoEmbedding

logger = logging.getLogger(__name__)


def moments_of(frames: Float[np.ndarray, "t d"], beta: float = 0.7) -> Any:
    """The moments of a video that `prvr.published.tf_prvr.moments_of` finds, with `vectors` and `spans`."""
    (moments,) = extensions("moments", others=False)
    return moments(frames, beta)


def joint_rows(frames: Float32[np.ndarray, "t d"], rows: JointRows) -> Float32[np.ndarray, "m d"]:
    """The rows of a video that a sentence is compared with: by `growing_means`, or its moments by `moments_of`."""
    return growing_means(frames) if rows.beta is None else moments_of(frames, rows.beta).vectors.astype(np.float32)


@dataclass(frozen=True, config=STRICT)
class ZeroShotSettings:
    """The use of a score of the joint encoder."""

    top_k: Annotated[int, Field(ge=1, le=MANY)] | Literal["all"] = "all"
    """The number of candidates of each row that are re-scored, or all."""
    weight: float = Field(default=1.0, ge=0, le=1e6)
    """The weight of the score, which is added to the score so far."""


@dataclass(frozen=True, config=STRICT)
class TrainingFreeSettings(ZeroShotSettings):
    """The use of the score of moments."""

    beta: float = Field(default=0.7, ge=0, lt=1)
    """How far the segments of a video share their features before moments are made of them; 0: not at all."""


class JointStage(Stage):
    """Adds a score of the joint encoder: the cosine of the text with the row of the video that it fits best.

    Both are vectors of the joint space of the features, as they were extracted. `inputs` says what the rows are.

    Args:
        settings: the use of the score.
    """

    inputs: JointRows

    def __init__(self, settings: ZeroShotSettings | None = None) -> None:
        self.encoder = JointScorer()
        self.settings = settings or ZeroShotSettings()
        self.top_k = None if self.settings.top_k == "all" else self.settings.top_k

    def open_split(self, split: PackedSplit) -> "JointSplit":
        """The joint vectors of the same videos and captions.

        Raises:
            DataError: the corpus of the split is unknown, or has no joint space.
        """
        source = split.source
        return JointSplit(source.corpus, source.split, split.video_ids, inputs=self.inputs)

    def bind(self, direction: Direction, matrix: ScoreMatrix, prepared: None) -> Rescore:
        """The function that adds the scores."""
        return add_scores(matrix, direction, self.settings.weight)


class ZeroShotStage(JointStage):
    """Adds the zero-shot score: the cosine of the text with the best matching frame or mean of frames of the video.

    See `prvr.data.sampling.growing_means`.
    """

    kind = "zero_shot"
    inputs = MEANS


class TrainingFreeStage(JointStage):
    """Adds the training-free score: the cosine of the text with the best matching moment of the video.

    Moments are those of `moments_of`.

    Args:
        settings: the use of the score.
    """

    kind = "training_free"

    def __init__(self, settings: TrainingFreeSettings | None = None) -> None:
        settings = settings or TrainingFreeSettings()
        super().__init__(settings)
        self.inputs = JointRows(settings.beta)


STAGES.register("zero_shot", ZeroShotStage, "Adds the score of the joint encoder alone.", ZeroShotSettings)
STAGES.register("training_free", TrainingFreeStage, "Adds the score of the encoder's moments.", TrainingFreeSettings)


class JointScorer(nn.Module):
    """A joint space as a retriever without parameters: its inputs are joint vectors of texts and frames."""

    def encode_text(self, words: Float[Tensor, "q 1 d"], word_mask: Bool[Tensor, "q 1"]) -> Float[Tensor, "q d"]:
        """The vectors of texts, `(q, 1, d)` to `(q, d)`."""
        return words[:, 0]

    def encode_video(
        self, clips: Float[Tensor, "v c d"], frames: Float[Tensor, "v l d"], frame_mask: Bool[Tensor, "v l"]
    ) -> VideoEmbedding:
        """The vectors of frames unchanged; clips are ignored."""
        return VideoEmbedding(frames=frames, frame_mask=frame_mask)

    def score(self, text: Float[Tensor, "q d"], video: VideoEmbedding) -> Scores:
        """The cosine of each text with the best matching frame of each video.

        Raises:
            DataError: the videos have no frames.
        """
        if video.frames is None:
            raise DataError("the zero-shot score needs frames, and these videos have none")
        return Scores(max_scores(text, video.frames, video.frame_mask, dots=False, unit=video.unit)[0])

    def for_scoring(self, video: VideoEmbedding) -> VideoEmbedding:
        """The same videos with frames of unit length."""
        return normalised(video)


def _first_words(side: TextFeaturizer, caption: Caption) -> Float32[np.ndarray, " d"]:
    """The vector of a caption; of one that is too long for the encoder, that of its first half, or quarter, ..."""
    words = caption.text.split()
    count = len(words)
    while True:
        try:
            sentence = side.sentence(" ".join(words[:count]))
        except InputError:
            if count < 2:
                raise
            count //= 2
        else:
            if count < len(words):
                logger.warning("caption %s: of %d words the joint encoder reads %d", caption.id, len(words), count)
            return sentence


class JointSplit:
    """Joint vectors of the captions and of the videos of a split, see `joint_rows`.

    Its batches are those of a `prvr.data.PackedSplit` in which every query has one word, the vector of its text.

    Args:
        corpus: a toy corpus of this version, or one of `prvr convert captions` with frames of a CLIP or SigLIP.
        split: `train`, `val` or `test`.
        video_ids: some videos of the split, in order; None for all.
        inputs: what a video is compared by.

    Attributes:
        text_vectors: `(q, d)` joint vectors of the captions; the encoder of the frames makes them, where they were not
            encoded when the corpus was created.

    Raises:
        DataError: the corpus has no such split, does not name the encoder of its features, or has no joint space; or
            this encoder is gone, or is another model now.
    """

    def __init__(
        self,
        corpus: Corpus,
        split: str,
        video_ids: tuple[str, ...] | None = None,
        inputs: JointRows = MEANS,
    ) -> None:
        content = corpus.split(split)
        self.corpus, self.encoders = corpus, joint_encoders(corpus)
        self.inputs = inputs
        self.video_ids = tuple(content.video_ids) if video_ids is None else video_ids
        videos = set(self.video_ids)
        indices = [i for i, caption in enumerate(content.captions) if caption.video_id in videos]
        if (rows := read_sentences(corpus, split)) is None:
            side = open_featurizer(self.encoders.frames)
            check_joint(side.identity, self.encoders.frames)
            self.text_vectors = torch.from_numpy(np.stack([_first_words(side, content.captions[i]) for i in indices]))
        else:
            self.text_vectors = torch.from_numpy(rows)[indices]

    def frames(self) -> Iterator[Float[Tensor, "l d"]]:
        """The rows of each video in order, `(l, d)`, see `joint_rows`.

        Raises:
            DataError: the features have another width than `corpus.json` says.
        """
        with self.corpus.open_features() as features:
            if features.dim != self.encoders.dim:
                raise DataError(
                    f"{self.corpus.feature_folder}: features have width {features.dim}, but corpus.json says "
                    f"{self.encoders.dim}. Create the corpus again."
                )
            for video in self.video_ids:
                frames = np.asarray(features.read(video)[:, : self.encoders.joint_dim], np.float32)
                yield torch.from_numpy(joint_rows(frames, self.inputs))

    def video_batches(self, size: int) -> Iterator[tuple[Tensor, ...]]:
        """All videos in order, `size` at a time."""
        frames = self.frames()
        for index in torch.arange(len(self.video_ids)).split(size):
            rows, mask = pad(list(islice(frames, len(index))))
            yield rows.new_zeros(len(rows), 1, rows.shape[-1]), rows, mask, index

    def query_batches(self, size: int) -> Iterator[tuple[Tensor, ...]]:
        """All captions in order, `size` at a time."""
        for index in torch.arange(len(self.text_vectors)).split(size):
            yield self.text_vectors[index, None], torch.ones(len(index), 1, dtype=torch.bool), index


def joint_encoders(corpus: Corpus) -> CorpusEncoders:
    """The encoders of a corpus with a joint space of frames and texts.

    Raises:
        DataError: the corpus does not name its encoders, or they have no joint space.
    """
    path = corpus.folder / "corpus.json"
    encoders = corpus_encoders(corpus)
    if encoders is None or not encoders.joint_dim:
        features = "features of an unknown encoder" if encoders is None else f"{encoders.frames} and {encoders.text}"
        raise DataError(
            f"{path}: no joint space of frames and captions ({features}). Zero-shot retrieval needs a toy corpus "
            "(prvr data make), or captions converted by prvr convert captions over features of a CLIP or SigLIP."
        )
    return encoders
