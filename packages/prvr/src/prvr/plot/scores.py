"""Scores of right and wrong pairs, in and out of domain (DiffusionRet, figure 4), and recall by the share of the video
that the moment takes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float

from prvr.data.packed import PackedSplit
from prvr.evaluation import ranked_rows
from prvr.evaluation.transfer import target_config
from prvr.plot.drawing import PlotInput
from prvr.plot.figures import RIGHT, WRONG, new_figure
from prvr.plot.plots import ScoresSettings
from prvr.stages import EncodedSplit, FirstStage, Pipeline, ScoreMatrix
from prvr.stages.pipelines import as_pipeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class PairScores:
    """Scores of queries with right and with wrong videos, at least one of each.

    Args:
        positive: scores of right pairs.
        negative: scores of wrong pairs, all of them or a sample.
    """

    positive: Float[np.ndarray, " p"]
    negative: Float[np.ndarray, " n"]

    @property
    def auc(self) -> float:
        """How often a right pair scores above a wrong one, ties counting half; 0.5 is chance, 1 is perfect.

        Examples:
            >>> PairScores(np.array([0.5, 0.9]), np.array([0.5, 0.1])).auc
            0.875
        """
        ordered = np.sort(self.negative)
        below, level = (np.searchsorted(ordered, self.positive, side) for side in ("left", "right"))
        return float((below + level).mean() / (2 * len(ordered)))

    def overlap(self, edges: Float[np.ndarray, " b"]) -> float:
        """The share that the two histograms have in common, in [0, 1].

        Args:
            edges: the edges of the bins, ascending.
        """
        shares = [np.histogram(values, edges)[0] / len(values) for values in (self.positive, self.negative)]
        return float(np.minimum(*shares).sum())


@torch.no_grad()
def pair_scores(
    system: FirstStage | Pipeline,
    split: PackedSplit,
    encoded: EncodedSplit,
    *,
    most: int = 200_000,
    block: int = 256,
    seed: int = 0,
) -> PairScores:
    """Scores of all right pairs of a split, and of a sample of the wrong ones.

    Args:
        system: a retriever or a pipeline, in evaluation mode; the scores are those after its stages.
        split: a packed split.
        encoded: what `prvr.evaluation.encode_split` gave for it.
        most: wrong pairs kept; each is kept with the same probability.
        block: queries scored at a time.
        seed: the seed of the sample.
    """
    keep = min(1.0, most / max(1, len(split.query_ids) * len(split)))
    numbers = torch.Generator("cpu").manual_seed(seed)
    positive, negative = [], []
    pipeline = as_pipeline(system)
    matrix = ScoreMatrix(pipeline.first, encoded, split.relevant)
    for rows, scores in ranked_rows(pipeline, encoded, "t2v", block):
        values, right = scores.cpu(), matrix.positives("t2v", rows).cpu()
        drawn = torch.rand(values.shape, generator=numbers) < keep
        positive.append(values[right])
        negative.append(values[~right & drawn])
    return PairScores(torch.cat(positive).double().numpy(), torch.cat(negative).double().numpy())


def scores_figure(domains: Mapping[str, PairScores], *, bins: int = 50) -> "Figure":
    """A histogram of right (green) and wrong (grey) pairs for each domain, all over the same range.

    Args:
        domains: scores by the name of the corpus, at least one.
        bins: the number of bins of each histogram.
    """
    every = [values for pairs in domains.values() for values in (pairs.positive, pairs.negative)]
    edges = np.linspace(min(x.min() for x in every), max(x.max() for x in every) + 1e-9, bins + 1)
    figure = new_figure(3.4 * len(domains), 3.5)
    panels = np.atleast_1d(figure.subplots(1, len(domains), sharey=True))
    for axes, (name, pairs) in zip(panels, domains.items(), strict=True):
        for values, colour, label in ((pairs.negative, WRONG, "wrong pairs"), (pairs.positive, RIGHT, "right pairs")):
            share = np.full(len(values), 100 / len(values))
            axes.hist(values, edges, weights=share, color=colour, alpha=0.7, label=label)
        title = "\n".join(wrap(name, 36, max_lines=2)).replace("$", r"\$")
        axes.set_title(f"{title}\nAUC {pairs.auc:.3f}, overlap {100 * pairs.overlap(edges):.0f} %", fontsize="medium")
        axes.set(xlabel="score", xlim=(edges[0], edges[-1]))
    panels[0].set_ylabel("% of pairs")
    panels[0].legend(fontsize="small", loc="upper left")
    return figure


def draw_scores(inputs: PlotInput, settings: ScoresSettings) -> "Figure":
    """The scores of right and wrong pairs on a run's own corpus and on others, after each stage of the system."""
    source = inputs.config.data.collection
    split = None if inputs.split == inputs.config.data.eval_split else inputs.split  # an explicit one, on every corpus
    corpora = [(source, inputs.config, inputs.split)]
    for target in settings.transfer:
        config, name = target_config(inputs.config, Path(target), split)
        corpora.append((f"{source} -> {config.data.collection}", config, name))
    parts, domains = inputs.system.parts(), {}
    for corpus, config, name in corpora:
        with inputs.encoded(config, name) as (packed, encoded):
            for part, pipeline in parts.items():
                label = f"{corpus}, {part}" if len(parts) > 1 else corpus
                domains[label] = pair_scores(pipeline, packed, encoded)
    return scores_figure(domains, bins=settings.bins)
