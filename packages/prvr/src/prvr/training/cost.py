"""What a model costs: the parameters of its parts and the operations that they ask for, counted without computing them.

`torch.utils.flop_counter` counts matrix products and convolutions, 2 operations for each multiplication with its
addition; the rest of the arithmetic is a small share of theirs. Tensors are on the meta device, so that models of any
size take about a second, and no data are read.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from prvr.config import AnyModelConfig, Config, ModelConfig
from prvr.models import AnyRetriever, ClipRetriever, build_retriever
from prvr.objective import Objective
from prvr.stages import CandidateReranker, Direction, RerankerConfig
from prvr.types import Batch

_PARTS = {
    "text encoder": ("query", "frame_query", "project_words", "read_words", "weigh_words"),
    "CLIP, text": ("backbone.text_model", "backbone.text_projection"),
    "clip branch": ("clips", "clip_rows"),
    "frame branch": ("frames", "frame_pool", "project_frames", "temporal", "weigh_frames"),
    "CLIP, pictures": ("backbone.vision_model", "backbone.visual_projection"),
    "fusion": (),
    "registers: condition": ("guide", "registers"),
    "registers: prior": ("registers.prior",),
    "registers: denoiser": ("registers.diffusion",),
    "scores": ("",),
}
"""Parts of retrievers, and the modules of each by path. A module belongs to the longest path that its own starts with,
a `fusion` of either branch to the fusion."""
_PART_OF_PATH = {path: part for part, paths in _PARTS.items() for path in paths}


@dataclass(frozen=True)
class PartCost:
    """The parameters of a part, and its operations (2 for each multiplication with its addition).

    Args:
        part: its name.
        parameters: how many numbers it learns.
        query: operations to encode one query; of a re-ranker, to re-rank the candidates of one query.
        video: operations to encode one video; of a re-ranker, to re-rank the candidates of one video.
        pair: operations to score one encoded query with one encoded video.
        step: operations of a training step, forward and backward, on the line "training step" for all parts together.
    """

    part: str
    parameters: int = 0
    query: int = 0
    video: int = 0
    pair: int = 0
    step: int = 0

    @classmethod
    def total(cls, parts: Sequence["PartCost"]) -> "PartCost":
        """The sum of several parts."""
        return cls("total", *(sum(numbers) for numbers in zip(*(astuple(part)[1:] for part in parts), strict=True)))


def describe(
    config: Config | AnyModelConfig, *, frames: int | None = None, words: int | None = None, captions: int = 5
) -> tuple[PartCost, ...]:
    """What each part of a retriever and its losses costs.

    A step of training is one of `config.train.batch_size` videos; with `train.chunk_videos` encoders read each batch
    twice, which is not counted. There is no padding.

    Args:
        config: the configuration of a run; of a model alone, losses and training steps are left out.
        frames: frames of each video; default: the most that the model reads.
        words: words of each query; default: the most that the model reads.
        captions: captions of each video in a step; `data.captions_per_video` limits them.

    Returns:
        The parts that have parameters or operations, then the losses and the training step.

    Raises:
        prvr.data.DataError: `model.clip` names a CLIP that cannot be loaded.

    Examples:
        >>> from prvr.config import load_config
        >>> parts = {cost.part: cost for cost in describe(load_config("hlformer-tvr"))}
        >>> sorted(parts)
        ['clip branch', 'frame branch', 'fusion', 'losses', 'scores', 'text encoder', 'training step']
        >>> parts["text encoder"].parameters
        1936128
    """
    model = config.model if isinstance(config, Config) else config
    lengths = min(frames or model.max_frames, model.max_frames), min(words or model.max_words, model.max_words)
    with torch.random.fork_rng(devices=[]):
        retriever = _retriever(model)
        objective = Objective(config.loss, model, retriever.registers) if isinstance(config, Config) else nn.Module()
    retriever, objective = retriever.to("meta"), objective.to("meta")

    def batch(videos: int, queries: int) -> Batch:
        owner = torch.arange(queries) * videos // queries
        return meta_batch(model, [lengths[0]] * videos, [lengths[1]] * queries, owner)

    training: list[PartCost] = []
    if isinstance(config, Config):
        videos = config.train.batch_size
        whole = batch(videos, videos * min(captions, config.data.captions_per_video or captions))
        step = _operations(lambda: objective(retriever(whole), whole, negatives="hard")["total"].backward())
        training = [PartCost("losses", _size(objective)), PartCost("training step", step=step)]
    retriever.eval().requires_grad_(False)
    ledger = _Ledger(retriever)
    (more, _), (both, (text, video, _)) = (ledger.count(retriever.encode, batch(1, queries)) for queries in (2, 1))
    pair, _ = ledger.count(retriever.score, text, video)
    return *ledger.costs(query=more - both, video=both - (more - both), pair=pair), *training


def describe_reranker(
    config: RerankerConfig,
    direction: Direction,
    rows: int,
    *,
    top_k: int | None = None,
    num_steps: int | None = None,
    step: tuple[int, int] | None = None,
) -> PartCost:
    """What DiffusionRet's generator costs as a stage of a pipeline, its pooling of frames included.

    Args:
        config: the configuration of the re-ranker.
        direction: "t2v" re-ranks the videos of a query, "v2t" the queries of a video.
        rows: frames of each video, or whatever stands for them (`config.tokens`).
        top_k: candidates that are re-ranked; default: `config.candidates`.
        num_steps: steps of the sampler; default: as the configuration says.
        step: queries of a training step and candidates of each; None: the operations of a step are left out.

    Examples:
        >>> config = RerankerConfig(width=512)
        >>> describe_reranker(config, "t2v", rows=12).parameters
        2362369
    """
    with torch.random.fork_rng(devices=[]):
        reranker = CandidateReranker(config, direction).to("meta")

    def inputs(size: int, candidates: int) -> tuple[Tensor, Tensor, Tensor]:
        texts, videos = ((size,), (size, candidates)) if direction == "t2v" else ((size, candidates), (size,))
        mask = torch.ones(*videos, rows, dtype=torch.bool, device="meta")
        text, frames = (torch.empty(*sizes, config.width, device="meta") for sizes in (texts, mask.shape))
        return text, frames, mask

    counts: dict[str, int] = {}
    if step is not None:
        batch, right = inputs(*step), torch.zeros(step, dtype=torch.bool, device="meta")
        counts["step"] = _operations(lambda: reranker.loss(right, *batch).backward())
    reranker.eval().requires_grad_(False)
    row = inputs(1, top_k or config.candidates)
    asks = "query" if direction == "t2v" else "video"
    counts[asks] = _operations(lambda: reranker.sample(*row, num_steps=num_steps))
    name = f"diffusion, {'text to video' if direction == 't2v' else 'video to text'}"
    return PartCost(name, _size(reranker), **counts)


def meta_batch(model: AnyModelConfig, frames: Sequence[int], words: Sequence[int], owner: Tensor) -> Batch:
    """A batch that has shapes and no numbers.

    Args:
        model: what the batch is for.
        frames: the number of frames of each video.
        words: the number of words of each query.
        owner: `(q,)` the video of each query, in order.
    """
    lengths, word_counts = torch.tensor(frames), torch.tensor(words)
    sizes = (len(lengths), int(lengths.max())), (len(word_counts), int(word_counts.max()))
    return Batch(
        clips=torch.empty(len(lengths), model.num_clips, model.video_dim, device="meta"),
        frames=torch.empty(*sizes[0], model.video_dim, device="meta"),
        frame_mask=torch.arange(sizes[0][1]) < lengths[:, None],
        words=torch.empty(*sizes[1], model.query_dim, device="meta"),
        word_mask=torch.arange(sizes[1][1]) < word_counts[:, None],
        query_to_video=owner,
        video_ids=tuple(map(str, range(len(lengths)))),
        teacher=torch.empty(len(word_counts), len(lengths)),
        teacher_frames=torch.empty(len(word_counts), sizes[0][1]),
    ).to("meta")


def _operations(function: Callable[[], Any]) -> int:
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


class _Ledger:
    """Counts operations by the part of a retriever whose module asked for them."""

    def __init__(self, retriever: nn.Module) -> None:
        self._parameters, self._counts, self._counted = Counter[str](), Counter[str](), 0
        self._running = ["scores"]  # the modules that are running, by part: what is counted belongs to the last
        self._counter = FlopCounterMode(display=False)
        for path, module in retriever.named_modules():
            part = _part_of(path)
            self._parameters[part] += sum(parameter.numel() for parameter in module.parameters(recurse=False))
            module.register_forward_pre_hook(partial(self._enter, part))
            module.register_forward_hook(self._leave)

    def _book(self) -> None:
        total = self._counter.get_total_flops()
        self._counts[self._running[-1]] += total - self._counted
        self._counted = total

    def _enter(self, part: str, *_: Any) -> None:
        self._book()
        self._running.append(part)

    def _leave(self, *_: Any) -> None:
        self._book()
        self._running.pop()

    def count(self, function: Callable[..., Any], *args: Any) -> tuple[Counter[str], Any]:
        """The operations of a call by part, and its result."""
        self._counts, self._counted = Counter(), 0
        with FlopCounterMode(display=False) as self._counter:
            result = function(*args)
            self._book()
        return self._counts, result

    def costs(self, **counts: Mapping[str, int]) -> tuple[PartCost, ...]:
        """The parts that have parameters or operations."""
        costs = (
            PartCost(part, self._parameters[part], **{name: count[part] for name, count in counts.items()})
            for part in dict.fromkeys([*_PARTS, *self._parameters])
        )
        return tuple(cost for cost in costs if cost != PartCost(cost.part))


def _part_of(path: str) -> str:
    """The part of a module of a retriever; one that `_PARTS` does not name has the name of its attribute."""
    if "fusion" in path.split("."):
        return "fusion"
    prefix = max((key for key in _PART_OF_PATH if f"{path}.".startswith(f"{key}.")), key=len, default=None)
    return path.split(".")[0] if prefix is None else _PART_OF_PATH[prefix]


def _retriever(model: AnyModelConfig) -> AnyRetriever:
    """A retriever of the right shapes; a CLIP is loaded only where nothing else says what it is."""
    if isinstance(model, ModelConfig) or model.clip is None:
        return build_retriever(model)
    retriever: Any = build_retriever(model) if isinstance(model.clip, str) else ClipRetriever(model)
    retriever.backbone.set_attn_implementation("eager")  # the others look whether a mask is needed, at numbers
    return retriever
