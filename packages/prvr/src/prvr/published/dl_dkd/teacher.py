"""Teachers: a trained system, whose scores are learned, and that of DL-DKD, a joint space such as CLIP's."""

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from prvr.config import Config, TrainConfig
from prvr.corpora.corpus_encoders import corpus_encoders
from prvr.data import Corpus, PackedSplit, open_corpus, segment_mean
from prvr.data.packing import repack
from prvr.errors import DataError, InputError, TrainingError
from prvr.evaluation import EvaluationConfig, ranked_rows
from prvr.evaluation.encode import device_of, evaluation_mode
from prvr.reading import short
from prvr.scoring import unit_rows
from prvr.stages import Pipeline
from prvr.stages.joint_space import JointSplit
from prvr.systems import open_system
from prvr.training.checkpoint import damaged
from prvr.training.run_folder import Run

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Teacher:
    """A trained system whose scores another one learns from.

    A stage over the best candidates alone keeps them ahead of the others by a constant (`prvr.stages.merge_top_k`),
    which a softmax takes for a large difference: a stage that teaches should have `top_k=all`.

    Args:
        pipeline: gives the scores; a retriever alone is one without stages.
        keep_last_frame: how its frames are sampled: `data.keep_last_frame` of the run that trained its first stage.
        name: for messages.
    """

    pipeline: Pipeline
    keep_last_frame: bool = True
    name: str = "the teacher"

    @classmethod
    def open(cls, name: str) -> "Teacher":
        """The system that a name stands for.

        Args:
            name: as of `prvr.systems.open_system`, for example a run of `prvr train`, or a folder that `prvr pipeline`
                has saved, which holds stages as well.

        Raises:
            DataError: there is no such model, or it is damaged.
        """
        system = open_system(name)
        return cls(system.pipeline, system.config is None or system.config.data.keep_last_frame, name)

    def scores(
        self, split: PackedSplit, train: TrainConfig, *, device: torch.device | str | None = None
    ) -> Float[Tensor, "q v"]:
        """Its scores, after all stages, of every query of a split with every video.

        Args:
            split: what is learned from; its videos are sampled again as the teacher reads them.
            train: the seed, and how much is encoded at a time.
            device: where to compute; default: where the parameters of the teacher are. Modes and the random state are
                as before afterwards.

        Returns:
            `(q, v)` float16 on the host: 2 bytes for each pair, 3 GB for TVR.

        Raises:
            DataError: the features have another width than the teacher reads, or the split has no corpus.
            InputError: a score is not finite.
        """
        first = self.pipeline.first
        where = device_of(first, device)
        logger.info(
            "computing teacher scores with %s (%d queries x %d videos)", self.name, len(split.query_ids), len(split)
        )
        sampled = repack(split, first.config, self.keep_last_frame)
        encoded = EvaluationConfig.of_run(train).encode(self.pipeline, sampled, where)
        scores = torch.empty(len(split.query_ids), len(split), dtype=torch.float16)
        with evaluation_mode(self.pipeline, where, train.seed):
            for rows, values in ranked_rows(self.pipeline, encoded, "t2v", train.eval_queries):
                scores[rows] = values.to("cpu", torch.float16)
                finite = scores[rows].isfinite().all(1)
                if not bool(finite.all()):
                    query = split.query_ids[rows.start + int(finite.int().argmin())]
                    raise InputError(
                        f"{self.name}: its scores of query {query!r} are not finite, or above 65504. Look for NaN in "
                        "its weights and in the features, or let another system teach."
                    )
        return scores


def teacher_scores(config: Config, run: Run, split: PackedSplit, teacher: Teacher | None) -> Float[Tensor, "q v"]:
    """The scores that `loss.distillation` learns from, or `(q, l)` cosines for `loss.frame_distillation`.

    Args:
        config: the configuration of the run.
        run: its device and its saved state, which holds the scores of one query.
        split: what is learned from.
        teacher: None = the one that `train.teacher` names. No system teaches frames.

    Raises:
        TrainingError: the run was saved with another teacher. Scores of the same one differ by the rounding of another
            device.
    """
    name = config.train.teacher
    with run.stop.at_once():  # nothing is trained yet
        if config.loss.taught == "frame_distillation":
            if teacher is not None:
                raise InputError("loss.frame_distillation needs a joint space as its teacher: set train.teacher")
            scores = frame_cosines(name, split, config.model.max_frames, config.data.keep_last_frame)
        else:
            scores = (teacher or Teacher.open(str(name))).scores(split, config.train, device=run.accelerator.device)
    if run.state is not None:
        constants = run.state.get("constants")
        saved = constants.get("teacher") if isinstance(constants, dict) else None
        if not isinstance(saved, Tensor) or saved.is_complex():
            raise damaged(run.folder.state, f"constants: got {short(constants)}, expected scores of the teacher.")
        now, before = (x[:1].float().nan_to_num(neginf=0.0) for x in (scores, saved))
        if now.shape != before.shape or bool(((now - before).abs() > 0.01 * (before.amax() - before.amin())).any()):
            raise TrainingError(
                f"{run.folder.state}: the teacher ({config.train.teacher}) gives other scores than the one this run "
                "began with. Restore it, or set train.teacher to the place it was moved to."
            )
    return scores


def frame_cosines(teacher: str | None, split: PackedSplit, length: int, keep_last: bool = True) -> Float[Tensor, "q l"]:
    """The cosine of each query with each frame of its video in a joint space.

    Frames of the joint space are sampled to as many as the split has of the video.

    Args:
        teacher: the folder `ROOT/COLLECTION` of a corpus that has the same videos and captions: with a joint space, or
            with one vector for each caption, as wide as frames, as `prvr convert features` makes it. None: the corpus
            of the split, which has a joint space.
        split: what is learned from.
        length: l, the most frames of any video.
        keep_last: see `prvr.data.sampling.segment_mean`.

    Returns:
        `(q, l)` float16, -inf past the end of a video.

    Raises:
        DataError: no such corpus, it lacks videos or captions, or it has no joint space.
    """
    source, folder = split.source, Path(teacher or ".").expanduser().absolute()
    corpus = source.corpus if teacher is None else open_corpus(folder.parent, folder.name)
    cosines = torch.full((len(split.query_ids), length), -torch.inf, dtype=torch.float16)
    with corpus.open_features() as features:
        texts = sentence_vectors(corpus, source.split, split, features.dim)
        for video, identity in enumerate(split.video_ids):
            frames = torch.from_numpy(features.read(identity)[:, : texts.shape[1]]).float()
            rows, queries = segment_mean(frames, int(split.frame_counts[video]), keep_last), split.queries_of(video)
            products = unit_rows(texts[queries]) @ unit_rows(rows).mT
            if not bool(products.isfinite().all()):
                raise DataError(f"{corpus.folder}: vectors of {identity!r} are not finite. Encode them again.")
            cosines[queries, : len(rows)] = products.half()
    return cosines


def sentence_vectors(corpus: Corpus, name: str, split: PackedSplit, width: int) -> Float[Tensor, "q d"]:
    """The captions of a split in the joint space of a corpus, whose frames begin with their d joint features.

    Args:
        corpus: the corpus that has the joint space.
        name: its split.
        split: which captions.
        width: the width of its frames.

    Raises:
        DataError: it lacks captions, or it has no joint space.
    """
    encoders = corpus_encoders(corpus)
    if encoders is not None and encoders.joint_dim:
        videos = set(split.video_ids)
        captions = [caption.id for caption in corpus.split(name).captions if caption.video_id in videos]
        row_of = {identity: row for row, identity in enumerate(captions)}
        if lacking := set(split.query_ids) - row_of.keys():
            raise DataError(f"{corpus.folder}: {name} lacks {len(lacking)} captions, among them {min(lacking)!r}.")
        vectors = JointSplit(corpus, name, split.video_ids).text_vectors
        return vectors[[row_of[identity] for identity in split.query_ids]]
    with corpus.open_queries() as captions:
        if width != captions.dim:
            raise DataError(
                f"{corpus.folder}: frames are {width} wide and captions {captions.dim}: no joint space. Name a "
                "corpus in train.teacher that has one: frames and sentences of one encoder, by prvr convert features"
            )
        texts = [captions.read(identity) for identity in split.query_ids]
    for video, rows in zip(split.query_to_video, texts, strict=True):
        if len(rows) != 1:
            raise DataError(
                f"{corpus.query_file}: captions of {split.video_ids[video]!r} have several rows, expected one each, "
                "that of the sentence. Name a corpus in train.teacher that has them"
            )
    return torch.from_numpy(np.concatenate(texts)).float()
