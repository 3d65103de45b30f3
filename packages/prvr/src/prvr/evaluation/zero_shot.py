"""Retrieval without training: the joint encoder of frames and sentences alone."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from prvr.corpora.corpus_encoders import corpus_encoders
from prvr.data import Corpus, DataError, PackedSplit
from prvr.evaluation.metrics import RECALLS, RetrievalMetrics, chance_recall
from prvr.evaluation.rank import EvaluationConfig, report_from_scores
from prvr.evaluation.report import EvaluationReport
from prvr.evaluation.significance import Difference, paired_test
from prvr.stages.joint_space import JointSplit
from prvr.video import TextFeaturizer

_SURE = 0.05  # p-value from which on a difference is one
_DEGENERATE = 0.5  # share of tied queries from which on it must be said


@dataclass(frozen=True)
class Beside:
    """A trained model beside what needs no training, on the same queries, text to video.

    Args:
        split: collection and split.
        chance: R@1, 5, 10, 100 and SumR when every order of the gallery is equally likely, in percent.
        zero_shot: metrics of the joint encoder alone.
        model: metrics of the trained model.
        sumr: what the model has more than zero-shot, paired by query and resampled by video.
        above_chance: whether zero-shot, and the model, are shown to be better than chance.
        warnings: what is wrong with the features, in sentences.
    """

    split: str
    chance: tuple[float, ...]
    zero_shot: RetrievalMetrics
    model: RetrievalMetrics
    sumr: Difference
    above_chance: tuple[bool, bool] = (True, True)
    warnings: tuple[str, ...] = ()

    @property
    def zero_shot_wins(self) -> bool:
        """Whether zero-shot is shown to be better than the model, and better than chance."""
        return self.sumr.p_value < _SURE and self.sumr.value < 0 and self.above_chance[0]

    @property
    def verdict(self) -> str:
        """In a few sentences, win or lose: a difference that chance gives once in 20 times is none.

        Better than the other is only what is better than chance too.

        Examples:
            >>> from prvr.evaluation.significance import Interval
            >>> metrics = RetrievalMetrics.from_ranks(torch.tensor([1, 2]))
            >>> worse = Difference(-20.0, Interval(-31.0, -9.0), 0.004)
            >>> print(Beside("films test", (1.0,) * 5, metrics, metrics, worse).verdict)
            Zero-shot is better than this model: SumR -20.0 (95% -31.0 .. -9.0, p = 0.004). Search with zero-shot.
        """
        interval, p = self.sumr.interval, self.sumr.p_value
        found = f"SumR {self.sumr.value:+.1f} (95% {interval.low:+.1f} .. {interval.high:+.1f}, "
        found += "p < 0.001)" if p < 0.001 else f"p = {p:.3f})"
        differ, won = p < _SURE, self.sumr.value > 0
        if not any(self.above_chance):
            said = f"Neither this model nor zero-shot is shown to be better than chance (SumR {self.chance[-1]:.1f})."
        elif differ and not self.above_chance[won]:
            said = (
                f"{'This model' if won else 'Zero-shot'} is not shown to be better than chance: {found} says nothing."
            )
        elif not differ:
            said = f"Training made no difference that chance would not: {found} against zero-shot."
        elif won:
            said = f"This model is better than zero-shot: {found}."
        else:
            said = f"Zero-shot is better than this model: {found}. Search with zero-shot."
        degenerate = [
            f"{name} scores a wrong video exactly as high as the right one for {metrics.tied:.0%} of the sentences."
            for name, metrics in (("Zero-shot", self.zero_shot), ("This model", self.model))
            if metrics.tied >= _DEGENERATE
        ]
        return " ".join([said, *degenerate, *self.warnings])


def zero_shot_scores(
    corpus: Corpus, split: str, texts: Sequence[str] | None = None, *, text: TextFeaturizer | None = None
) -> Float[Tensor, "q v"]:
    """The cosine of a sentence with the frame of each video that it fits best.

    `max_i cos(t_q, f_vi)`, over all frames of a video as they are stored, not sampled. The encoder of the toy
    world has seen single frames and words for looks only: words for actions mean nothing to it; and no encoder of
    single frames knows what comes after what.

    Args:
        corpus: a toy one of this version, or one of `prvr convert captions` whose frames are of a CLIP or SigLIP.
        split: ``train``, ``val``, ``test``.
        texts: any sentences; default: the captions of the split.
        text: the text side of the encoder of the frames; default: opened by its name, where it is needed. The captions
            of `prvr convert captions` were read when the corpus was made.

    Returns:
        `(q, v)` in [-1, 1], sentences by videos in the order of the packed split: `prvr.evaluation.report_from_scores`
        takes it as it is.

    Raises:
        prvr.data.DataError: the corpus has no such split, does not say which encoder its features are of, or that one
            has no space in common with sentences; or `text` is of another model.
        ValueError: a text without a word, or with too many.
    """
    joint = JointSplit(corpus, split, texts=None if texts is None else tuple(texts), text=text)
    return torch.stack([(joint.text_vectors @ F.normalize(some, dim=-1).T).amax(1) for some in joint.frames()], 1)


def beside_zero_shot(report: EvaluationReport, corpus: Corpus, split: PackedSplit) -> Beside:
    """A report beside zero-shot and chance.

    Args:
        report: the evaluation of a model on all of a split.
        corpus: the corpus of the split, as in [zero_shot_scores][prvr.evaluation.zero_shot.zero_shot_scores].
        split: the same split, packed.

    Raises:
        prvr.data.DataError: the corpus has no zero-shot score, or the report is of other queries.
    """
    scores = zero_shot_scores(corpus, str(split.files.about["split"]))
    alone = report_from_scores(scores, split, EvaluationConfig(ties=report.ties, seed=report.seed))
    if (alone.query_ids, alone.video_ids) != (report.query_ids, report.video_ids):
        raise DataError(f"{report.split}: another gallery or other queries than {split.name}. Evaluate all of a split.")
    relevant = torch.tensor([len(videos) for videos in split.relevant])
    chance = [chance_recall(len(split), relevant, k) for k in RECALLS]
    return Beside(
        split=report.split,
        chance=(*chance, sum(chance)),
        zero_shot=alone.text_to_video,
        model=report.text_to_video,
        sumr=paired_test(alone.ranks, report.ranks, report.query_to_video, seed=report.seed)["sumr"],
        above_chance=(alone.above_chance, report.above_chance),
        warnings=split.constant,
    )


def has_zero_shot(corpus: Corpus) -> bool:
    """Whether a corpus names a joint encoder: `zero_shot_scores` works on it.

    Raises:
        prvr.data.DataError: `corpus.json` is damaged, or of another version.
    """
    encoders = corpus_encoders(corpus)
    return encoders is not None and encoders.joint_dim > 0
