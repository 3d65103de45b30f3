"""Scores of right and wrong pairs, in and out of domain (DiffusionRet, figure 4)."""

from pathlib import Path
from textwrap import wrap

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure

from prvr.data.packed import PackedSplit
from prvr.evaluation import ranked_rows
from prvr.evaluation.transfer import target_config
from prvr.plot.drawing import PlotInput
from prvr.plot.figures import RIGHT, WRONG, new_figure
from prvr.plot.plots import ScoresSettings
from prvr.stages import EncodedSplit, Pipeline, ScoreMatrix


def auc(right: Float[np.ndarray, " p"], wrong: Float[np.ndarray, " n"]) -> float:
    """How often a right pair scores above a wrong one, ties counting half; 0.5 is chance, 1 is perfect.

    Examples:
        >>> auc(np.array([0.5, 0.9]), np.array([0.5, 0.1]))
        0.875
    """
    places = [np.searchsorted(np.sort(wrong), right, side) for side in ("left", "right")]
    return float(np.mean(places) / len(wrong))


def overlap(right: Float[np.ndarray, " p"], wrong: Float[np.ndarray, " n"], edges: Float[np.ndarray, " b"]) -> float:
    """The share in [0, 1] that the histograms of two kinds of scores have in common.

    Args:
        right, wrong: the scores.
        edges: the edges of the bins, ascending.
    """
    shares = [np.histogram(values, edges)[0] / len(values) for values in (right, wrong)]
    return float(np.minimum(*shares).sum())


@torch.no_grad()
def pair_scores(
    pipeline: Pipeline, split: PackedSplit, encoded: EncodedSplit, *, most: int = 200_000
) -> tuple[Float[np.ndarray, " p"], Float[np.ndarray, " n"]]:
    """Scores of all right pairs of a split after all stages of a pipeline, and of a sample of the wrong ones.

    Args:
        pipeline: in evaluation mode.
        split: a packed split.
        encoded: what `prvr.evaluation.encode_split` gave for it.
        most: wrong pairs kept; each is kept with the same probability.
    """
    keep = min(1.0, most / max(1, len(split.query_ids) * len(split)))
    numbers = torch.Generator("cpu").manual_seed(0)
    pairs = []
    matrix = ScoreMatrix(pipeline.first, encoded, split.relevant)
    for rows, scores in ranked_rows(pipeline, encoded, "t2v"):
        values, right = scores.cpu(), matrix.positives("t2v", rows).cpu()
        drawn = torch.rand(values.shape, generator=numbers) < keep
        pairs.append((values[right], values[~right & drawn]))
    right, wrong = (torch.cat(values).double().numpy() for values in zip(*pairs, strict=True))
    return right, wrong


def draw_scores(inputs: PlotInput, settings: ScoresSettings) -> Figure:
    """The scores of right and wrong pairs on a run's own corpus and on others, after each stage of the system.

    A histogram of right (green) and wrong (grey) pairs for each, all over the same range.
    """
    data = inputs.config.data
    split = None if inputs.split == data.eval_split else inputs.split  # an explicit one, on every corpus
    corpora = [(data.collection, inputs.config, inputs.split)]
    for target in settings.transfer:
        config, name = target_config(inputs.config, Path(target), split)
        corpora.append((f"{data.collection} -> {config.data.collection}", config, name))
    parts, domains = inputs.system.parts(), {}
    for corpus, config, name in corpora:
        with inputs.encoded(config, name) as (packed, encoded):
            for part, pipeline in parts.items():
                label = f"{corpus}, {part}" if len(parts) > 1 else corpus
                domains[label] = pair_scores(pipeline, packed, encoded)
    scores = np.concatenate([values for pairs in domains.values() for values in pairs])
    edges = np.linspace(scores.min(), scores.max() + 1e-9, settings.bins + 1)
    figure = new_figure(3.4 * len(domains), 3.5)
    (panels,) = figure.subplots(1, len(domains), sharey=True, squeeze=False)
    for axes, (name, (right, wrong)) in zip(panels, domains.items(), strict=True):
        for values, colour, label in ((wrong, WRONG, "wrong pairs"), (right, RIGHT, "right pairs")):
            share = np.full(len(values), 100 / len(values))
            axes.hist(values, edges, weights=share, color=colour, alpha=0.7, label=label)
        title = "\n".join(wrap(name, 36, max_lines=2)).replace("$", r"\$")
        numbers = f"AUC {auc(right, wrong):.3f}, overlap {100 * overlap(right, wrong, edges):.0f} %"
        axes.set_title(f"{title}\n{numbers}", fontsize="medium")
        axes.set(xlabel="score", xlim=(edges[0], edges[-1]))
    panels[0].set_ylabel("% of pairs")
    panels[0].legend(fontsize="small", loc="upper left")
    return figure
