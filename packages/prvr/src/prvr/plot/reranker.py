"""What a re-ranker does, step by step: it orders candidates from noise (DiffusionRet, figures 5 and A), and its
text-frame attention chooses frames (figure B).
"""

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from prvr.errors import InputError
from prvr.evaluation import ranked_rows
from prvr.plot.drawing import PlotInput, number_of
from prvr.plot.figures import RIGHT, WRONG, brief, evenly, new_figure
from prvr.plot.plots import AttentionSettings, TrajectorySettings
from prvr.published.diffusionret.candidate_reranker import reranker_inputs
from prvr.stages import best_columns


def draw_trajectory(inputs: PlotInput, settings: TrajectorySettings) -> Figure:
    """The values of x_k for the candidates of one query as bars, for some noise levels k; right ones are green.

    The candidates are chosen by the stages before the re-ranker, best first. It starts from the noise of
    `CandidateReranker.rerank`.

    Raises:
        InputError: the re-ranker has no diffusion, or there are not so many candidates.
    """
    stage, before = inputs.diffusion()
    reranker = stage.rerankers["t2v"].to(inputs.device)
    config, seed = reranker.config, stage.settings.seed if settings.seed is None else settings.seed
    if config.process != "diffusion":
        raise InputError(f"process={config.process!r}: the control takes one step without noise, it has no trajectory")
    with inputs.encoded() as (packed, encoded):
        query = number_of(settings.query, "query", packed.query_names, packed.query_ids)
        caption, relevant = packed.captions[query], packed.relevant[query]
        ((_, scores),) = ranked_rows(before, encoded, "t2v", only=[query])
        top_k = settings.candidates or min(stage.top_k or len(packed), len(packed))
        (chosen,) = best_columns(scores, top_k)
        embeddings = reranker_inputs(encoded, config)
        initial = torch.randn(1, top_k, generator=torch.Generator("cpu").manual_seed(seed))
        chain = reranker.sample(
            embeddings.text[query : query + 1],
            embeddings.frames[chosen][None],
            embeddings.mask[chosen][None],
            initial=initial.to(embeddings.text),
            num_steps=settings.steps or stage.settings.num_steps,
            return_chain=True,
        )
    values = torch.cat([initial, chain[:, 0].cpu().float()]).numpy()
    right = np.isin(chosen.cpu().numpy(), list(relevant))
    steps = evenly(len(values), settings.panels)
    figure = new_figure(2.1 * len(steps), 2.8)
    for axes, step in zip(figure.subplots(1, len(steps)), steps, strict=True):
        axes.bar(range(1, top_k + 1), values[step], color=np.where(right, RIGHT, WRONG).tolist(), width=0.9)
        level = round(config.steps * (1 - step / len(chain)))
        axes.set(title=f"$x_{{{level}}}$", xlabel="candidate")
        axes.axhline(0, color="black", linewidth=0.5)
        axes.tick_params(labelsize="small")
    result = f"none of these {top_k} candidates is right"
    if right.any():
        place = 1 + (values[-1, ~right] >= values[-1, right].max()).sum()
        first = 1 + right.argmax()
        result = f"the best right candidate: place {first} by the scores, place {place} by what is generated"
    figure.suptitle(f"{brief(caption, 100)}\n{result}", fontsize="medium")
    return figure


def draw_attention(inputs: PlotInput, settings: AttentionSettings) -> Figure:
    """The text-frame attention of a system's re-ranker over one video of a split.

    A row for each text that was written for the video, dark where it takes much of a frame; the moment that it speaks
    of is framed in green.
    """
    reranker = inputs.diffusion()[0].rerankers["t2v"].to(inputs.device)
    with inputs.encoded() as (packed, encoded):
        video = number_of(settings.video, "video", packed.video_ids)
        embeddings = reranker_inputs(encoded, reranker.config)
        queries = packed.queries_of(video)
        frames, mask = embeddings.frames[video][None], embeddings.mask[video][None]
        text = embeddings.text[torch.from_numpy(queries)][None]
        weights = reranker.pool.weights(text, frames, mask)[0, :, mask[0]].cpu().numpy()  # pyright: ignore[reportCallIssue]
        name, duration = packed.video_ids[video], float(packed.durations[video])
        labels = [brief(packed.captions[query], 60) for query in queries]
        times = packed.windows[0, queries]
    timed = np.isfinite(duration)
    rows, columns = weights.shape
    figure = new_figure(10.0, 1.3 + 0.45 * rows)
    axes = figure.subplots()
    image = axes.imshow(
        weights, aspect="auto", cmap="Blues", vmin=0, interpolation="nearest",
        extent=(0, duration if timed else columns, rows - 0.5, -0.5),
    )  # fmt: skip
    framed = ""
    for row, (start, end) in enumerate(times.tolist()):
        if timed and np.isfinite(start):
            axes.add_patch(Rectangle((start, row - 0.45), end - start, 0.9, fill=False, edgecolor=RIGHT, linewidth=2))
            framed = "; framed: the moment it was written for"
    axes.set_yticks(range(rows), labels, fontsize="small")
    axes.set_xlabel("seconds" if timed else "frame")
    axes.set_title(f"{brief(name)}: how much of each frame a text takes{framed}", fontsize="medium")
    figure.colorbar(image, ax=axes, label="weight")
    return figure
