"""Zero-shot retrieval, by the joint encoder of frames and texts alone, and a model compared with it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from prvr.corpora.corpus_encoders import corpus_encoders
from prvr.data import Corpus, DataError, PackedSplit
from prvr.encoders import TextFeaturizer
from prvr.evaluation.metrics import RECALLS, RetrievalMetrics, chance_recall
from prvr.evaluation.rank import EvaluationConfig, report_from_scores
from prvr.evaluation.report import EvaluationReport
from prvr.evaluation.significance import Difference, paired_test
from prvr.stages.joint_space import JointSplit
from prvr.types import UNTRAINED, JointInputs, Untrained

_LEVEL = 0.05
"""Differences with a smaller p-value are significant."""
_DEGENERATE = 0.5
"""From this share of tied queries on, the verdict mentions them."""


@dataclass(frozen=True)
class ZeroShotComparison:
    """A trained model compared with zero-shot retrieval on the same queries, text to video.

    Args:
        split: collection and split.
        chance: R@1, 5, 10, 100 and SumR of a random order of the gallery, in percent.
        zero_shot, training_free: metrics of the joint encoder alone, by frames and by moments.
        model: metrics of the trained model.
        sumr: SumR of the model minus SumR of zero-shot, paired by query and resampled by video.
        above_chance: whether zero-shot, and the model, are shown to be better than chance.
        warnings: problems of the features, in sentences.
    """

    split: str
    chance: tuple[float, ...]
    zero_shot: RetrievalMetrics
    training_free: RetrievalMetrics
    model: RetrievalMetrics
    sumr: Difference
    above_chance: tuple[bool, bool] = (True, True)
    warnings: tuple[str, ...] = ()

    @property
    def model_wins(self) -> bool:
        """Whether the model is shown to be better than zero-shot, and better than chance."""
        return self.sumr.p_value < _LEVEL and self.sumr.value > 0 and self.above_chance[1]

    @property
    def verdict(self) -> str:
        """The result of the comparison in a few sentences.

        Examples:
            >>> from prvr.evaluation.significance import Interval
            >>> metrics = RetrievalMetrics.from_ranks(torch.tensor([1, 2]))
            >>> worse = Difference(-20.0, Interval(-31.0, -9.0), 0.004)
            >>> print(ZeroShotComparison("films test", (1.0,) * 5, metrics, metrics, metrics, worse).verdict)
            Zero-shot is better than this model: SumR -20.0 (95% -31.0 .. -9.0, p = 0.004). Search with zero-shot.
        """
        value, interval, p = self.sumr.value, self.sumr.interval, self.sumr.p_value
        difference = f"SumR {value:+.1f} (95% {interval.low:+.1f} .. {interval.high:+.1f}, "
        difference += "p < 0.001)" if p < 0.001 else f"p = {p:.3f})"
        better, worse = ("This model", "zero-shot") if value > 0 else ("Zero-shot", "this model")
        if not any(self.above_chance):
            verdict = (
                f"Neither this model nor zero-shot is shown to be better than chance (SumR {self.chance[-1]:.1f})."
            )
        elif p >= _LEVEL:
            verdict = f"This model does not differ significantly from zero-shot: {difference}."
        elif not self.above_chance[value > 0]:
            verdict = f"{better} is not shown to be better than chance, so {difference} is not meaningful."
        else:
            verdict = f"{better} is better than {worse}: {difference}."
        choice = [] if self.model_wins else ["Search with zero-shot."]
        degenerate = [
            f"{name} gives the right video and a wrong one equal scores for {metrics.tied:.0%} of the queries."
            for name, metrics in (("Zero-shot", self.zero_shot), ("This model", self.model))
            if metrics.tied >= _DEGENERATE
        ]
        return " ".join([verdict, *choice, *degenerate, *self.warnings])


def zero_shot_scores(
    corpus: Corpus,
    split: str,
    texts: Sequence[str] | None = None,
    *,
    text: TextFeaturizer | None = None,
    inputs: JointInputs = "joint",
) -> Float[Tensor, "q v"]:
    """The cosine of each text with the best matching row of each video, `max_i cos(t_q, r_vi)`.

    Rows are all stored frames, without sampling, and means of them: `prvr.data.sampling.growing_means`. An encoder of
    single frames does not know the order of frames, and that of the toy corpus does not know words for actions.

    Args:
        corpus: a toy corpus of this version, or one of `prvr convert captions` with frames of a CLIP or SigLIP.
        split: `train`, `val` or `test`.
        texts: any texts; None for the captions of the split.
        text: the text side of the encoder of the frames; None opens it by its name if it is needed. The captions of
            `prvr convert captions` were encoded when the corpus was created.
        inputs: `moments` for the training-free score: the best matching moment in place of these rows.

    Returns:
        `(q, v)` in [-1, 1], texts by videos in the order of the packed split, for `report_from_scores`.

    Raises:
        prvr.data.DataError: the corpus has no such split, does not name the encoder of its features, or has no joint
            space; or `text` is of another model.
        ValueError: a text without a word, or with too many.
    """
    joint = JointSplit(corpus, split, texts=None if texts is None else tuple(texts), text=text, inputs=inputs)
    return torch.stack([(joint.text_vectors @ F.normalize(rows, dim=-1).T).amax(1) for rows in joint.frames()], 1)


def evaluate_untrained(name: Untrained, split: PackedSplit, config: EvaluationConfig | None = None) -> EvaluationReport:
    """The report of a retriever without parameters on a whole split.

    Args:
        name: `zero-shot` or `training-free`, as in [zero_shot_scores][prvr.evaluation.zero_shot.zero_shot_scores].
        split: a packed split.
        config: the settings of the evaluation.

    Raises:
        prvr.data.DataError: the corpus of the split has no joint space.

    Examples:
        >>> from prvr.data import pack, write_corpus
        >>> split = pack(write_corpus("data", "tiny"), "test", cache_dir="data/cache")  # doctest: +SKIP
        >>> evaluate_untrained("training-free", split).text_to_video.r1  # doctest: +SKIP
        10.0
    """
    scores = zero_shot_scores(split.source.corpus, split.source.split, inputs=UNTRAINED[name])
    return report_from_scores(scores, split, config)


def compare_zero_shot(report: EvaluationReport, corpus: Corpus, split: PackedSplit) -> ZeroShotComparison:
    """A report compared with zero-shot retrieval and chance.

    Args:
        report: the evaluation of a model on the whole split.
        corpus: the corpus of the split, as in [zero_shot_scores][prvr.evaluation.zero_shot.zero_shot_scores].
        split: the same split, packed.

    Raises:
        prvr.data.DataError: the corpus has no zero-shot score, or the report has other queries.
    """
    config, name = EvaluationConfig(ties=report.ties, seed=report.seed), str(split.files.about["split"])
    alone = report_from_scores(zero_shot_scores(corpus, name), split, config)
    if (alone.query_ids, alone.video_ids) != (report.query_ids, report.video_ids):
        raise DataError(
            f"{report.split}: its queries or videos are not those of {split.name}. Evaluate the whole split."
        )
    relevant = torch.tensor([len(videos) for videos in split.relevant])
    chance = [chance_recall(len(split), relevant, k) for k in RECALLS]
    return ZeroShotComparison(
        split=report.split,
        chance=(*chance, sum(chance)),
        zero_shot=alone.text_to_video,
        training_free=report_from_scores(
            zero_shot_scores(corpus, name, inputs="moments"), split, replace(config, bootstrap=0)
        ).text_to_video,
        model=report.text_to_video,
        sumr=paired_test(alone.ranks, report.ranks, report.query_to_video, seed=report.seed)["sumr"],
        above_chance=(alone.above_chance, report.above_chance),
        warnings=split.constant,
    )


def has_zero_shot(corpus: Corpus) -> bool:
    """Whether a corpus names a joint encoder, so that `zero_shot_scores` works on it.

    Raises:
        prvr.data.DataError: `corpus.json` is damaged, or of another version.
    """
    encoders = corpus_encoders(corpus)
    return encoders is not None and encoders.joint_dim > 0
