"""Zero-shot retrieval, by the joint encoder of frames and texts alone, and a model compared with baselines."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

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
from prvr.types import MEANS, UNTRAINED, JointRows, Untrained

_LEVEL = 0.05
"""Differences with a smaller p-value are significant."""
_DEGENERATE = 0.5
"""From this share of tied queries on, the verdict mentions them."""


@dataclass(frozen=True)
class Comparison:
    """A trained model compared with baselines on the same queries, text to video.

    Args:
        split: collection and split.
        chance: R@1, 5, 10, 100 and SumR of a random order of the gallery, in percent.
        baselines: metrics of `zero-shot` and `training-free`, the joint encoder alone by frames and by moments, and of
            kernel regression (`prvr.training.kernel_baseline`); of those that there are.
        model: metrics of the trained model.
        sumr: SumR of the model minus SumR of a baseline, paired by query and resampled by video; all but
            `training-free`.
        above_chance: those that are shown to be better than chance, among them `model`.
        warnings: problems of the features, in sentences.
    """

    split: str
    chance: tuple[float, ...]
    baselines: Mapping[str, RetrievalMetrics]
    model: RetrievalMetrics
    sumr: Mapping[str, Difference]
    above_chance: Collection[str] = ("model", "zero-shot", "kernel")
    warnings: tuple[str, ...] = ()

    @property
    def model_wins(self) -> bool:
        """Whether to search with the model: it is shown to be better than zero-shot and chance, or is all there is."""
        zero_shot = self.sumr.get("zero-shot")
        return zero_shot is None or (
            zero_shot.p_value < _LEVEL and zero_shot.value > 0 and "model" in self.above_chance
        )

    @property
    def kernel_wins(self) -> bool:
        """Whether kernel regression is shown to be better than the model, and than chance."""
        return any(
            sumr.p_value < _LEVEL and sumr.value < 0 and name in self.above_chance
            for name, sumr in self.sumr.items()
            if name != "zero-shot"
        )

    @property
    def verdict(self) -> str:
        """The result of the comparison in a few sentences.

        Examples:
            >>> from prvr.evaluation.significance import Interval
            >>> metrics = RetrievalMetrics.from_ranks(torch.tensor([1, 2]))
            >>> worse = Difference(-20.0, Interval(-31.0, -9.0), 0.004)
            >>> for name in ("zero-shot", "kernel"):
            ...     print(Comparison("tvr test", (1.0,) * 5, {name: metrics}, metrics, {name: worse}).verdict)
            Zero-shot is better than this model: SumR -20.0 (95% -31.0 .. -9.0, p = 0.004). Search with zero-shot.
            Kernel regression is better than this model: SumR -20.0 (95% -31.0 .. -9.0, p = 0.004).
        """
        tied = {_label(name): self.baselines[name].tied for name in self.sumr} | {"this model": self.model.tied}
        degenerate = [
            f"{_capital(name)} gives the right video and a wrong one equal scores for {share:.0%} of the queries."
            for name, share in tied.items()
            if share >= _DEGENERATE
        ]
        return " ".join([*map(self._sentences, self.sumr), *degenerate, *self.warnings])

    def _sentences(self, baseline: str) -> str:
        """The result beside a baseline, and what follows from it."""
        sumr, name = self.sumr[baseline], _label(baseline)
        difference = f"SumR {sumr.value:+.1f} (95% {sumr.interval.low:+.1f} .. {sumr.interval.high:+.1f}, "
        difference += "p < 0.001)" if sumr.p_value < 0.001 else f"p = {sumr.p_value:.3f})"
        wins = sumr.value > 0
        better, worse = ("this model", name) if wins else (name, "this model")
        advice = "" if self.model_wins or baseline != "zero-shot" else " Search with zero-shot."
        if not {baseline, "model"} & {*self.above_chance}:
            verdict = f"Neither this model nor {name} is significantly better than chance (SumR {self.chance[-1]:.1f})."
        elif sumr.p_value >= _LEVEL:
            verdict = f"This model does not differ significantly from {name}: {difference}."
        elif ("model" if wins else baseline) not in self.above_chance:
            verdict = f"{_capital(better)} is not significantly better than chance, so {difference} is not meaningful."
        else:
            verdict = f"{_capital(better)} is better than {worse}: {difference}."
        return verdict + advice


def _label(baseline: str) -> str:
    return "kernel regression" if baseline.startswith("kernel") else baseline


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def zero_shot_scores(corpus: Corpus, split: str, inputs: JointRows = MEANS) -> Float[Tensor, "q v"]:
    """The cosine of each caption with the best matching row of each video, `max_i cos(t_q, r_vi)`.

    Rows are all stored frames, without sampling, and means of them: `prvr.data.sampling.growing_means`. An encoder of
    single frames does not know the order of frames, and that of the toy corpus does not know words for actions.

    Args:
        corpus: a toy corpus of this version, or one of `prvr convert captions` with frames of a CLIP or SigLIP.
        split: `train`, `val` or `test`.
        inputs: `moments` for the training-free score: the best matching moment in place of these rows.

    Returns:
        `(q, v)` in [-1, 1], captions by videos in the order of the packed split, for `report_from_scores`.

    Raises:
        prvr.data.DataError: as `prvr.stages.joint_space.JointSplit`.
    """
    joint = JointSplit(corpus, split, inputs=inputs)
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
        >>> from prvr.data import open_corpus, pack
        >>> split = pack(open_corpus("data", "toy-tiny"), "test", cache_dir="data/cache")  # doctest: +SKIP
        >>> evaluate_untrained("training-free", split).text_to_video.r1  # doctest: +SKIP
        10.0
    """
    scores = zero_shot_scores(split.source.corpus, split.source.split, UNTRAINED[name])
    return report_from_scores(scores, split, config)


def untrained_baselines(report: EvaluationReport, split: PackedSplit) -> dict[str, EvaluationReport]:
    """Zero-shot and training-free, evaluated as a report was; neither for a corpus without a joint encoder.

    Args:
        report: the evaluation of a model.
        split: its split, packed.

    Raises:
        prvr.data.DataError: the corpus is damaged, or of another version.
    """
    if not has_zero_shot(split.source.corpus):
        return {}
    config = EvaluationConfig(ties=report.ties, seed=report.seed)
    return {
        "zero-shot": evaluate_untrained("zero-shot", split, config),
        "training-free": evaluate_untrained("training-free", split, replace(config, bootstrap=0)),
    }


def compare_baselines(
    report: EvaluationReport, split: PackedSplit, baselines: Mapping[str, EvaluationReport]
) -> Comparison:
    """A report compared with chance and with baselines.

    Args:
        report: the evaluation of a model on the whole split.
        split: the split, packed.
        baselines: their evaluations on it, by the names of [Comparison][prvr.evaluation.zero_shot.Comparison].

    Raises:
        prvr.data.DataError: the report has other queries.
    """
    for baseline in baselines.values():
        if (baseline.query_ids, baseline.video_ids) != (report.query_ids, report.video_ids):
            raise DataError(
                f"{report.split}: its queries or videos are not those of {split.name}. Evaluate the whole split."
            )
    relevant = torch.tensor([len(videos) for videos in split.relevant])
    chance = [chance_recall(len(split), relevant, k) for k in RECALLS]
    return Comparison(
        split=report.split,
        chance=(*chance, sum(chance)),
        baselines={name: baseline.text_to_video for name, baseline in baselines.items()},
        model=report.text_to_video,
        sumr={
            name: paired_test(baseline.ranks, report.ranks, report.query_to_video, seed=report.seed)["sumr"]
            for name, baseline in baselines.items()
            if name != "training-free"
        },
        above_chance=[name for name, each in {**baselines, "model": report}.items() if each.above_chance],
        warnings=split.constant,
    )


def has_zero_shot(corpus: Corpus) -> bool:
    """Whether a corpus names a joint encoder, so that `zero_shot_scores` works on it.

    Raises:
        prvr.data.DataError: `corpus.json` is damaged, or of another version.
    """
    encoders = corpus_encoders(corpus)
    return encoders is not None and encoders.joint_dim > 0
