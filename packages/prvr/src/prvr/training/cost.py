"""What a model costs: the parameters of its parts and the arithmetic that they ask for, counted without computing it.

Matrix products and convolutions are counted, 2 operations for each multiplication with its addition; the rest of the
arithmetic is a small share of theirs. Tensors are on the meta device, so that models of any size take less than a
second, and no data are read.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from prvr.config import AnyModelConfig, Config, ModelConfig
from prvr.models import AnyRetriever, ClipRetriever, Retriever, TokenRetriever, build_retriever
from prvr.objective import Objective
from prvr.stages import CandidateReranker, Direction, RerankerConfig
from prvr.types import Batch

_PARTS = {
    "query": "text encoder",
    "frame_query": "text encoder",
    "project_words": "text encoder",
    "read_words": "text encoder",
    "weigh_words": "text encoder",
    "backbone.text_model": "CLIP, text",
    "backbone.text_projection": "CLIP, text",
    "clips": "clip branch",
    "frames": "frame branch",
    "frame_pool": "frame branch",
    "project_frames": "frame branch",
    "temporal": "frame branch",
    "weigh_frames": "frame branch",
    "backbone.vision_model": "CLIP, pictures",
    "backbone.visual_projection": "CLIP, pictures",
    "fusion": "fusion",
    "guide": "registers: condition",
    "registers": "registers: condition",
    "registers.prior": "registers: prior",
    "registers.diffusion": "registers: denoiser",
    "": "scores",
}
"""Parts of retrievers by the paths of their modules; what lies inside belongs to the longest path that it starts with,
but a `fusion` of either branch to the fusion."""


@dataclass(frozen=True)
class PartCost:
    """The parameters of a part, and its operations (2 for each multiplication with its addition).

    Args:
        part: its name.
        parameters: how many numbers it learns.
        query: operations to encode one query; of a re-ranker, to re-rank the candidates of one query.
        video: operations to encode one video; of a re-ranker, to re-rank the candidates of one video.
        pair: operations to score one encoded query with one encoded video.
        step: operations of a training step, forwards and backwards.
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
        names = ("parameters", "query", "video", "pair", "step")
        return cls("total", **{name: sum(getattr(part, name) for part in parts) for name in names})


def describe(
    config: Config | AnyModelConfig, *, frames: int | None = None, words: int | None = None, captions: int = 5
) -> tuple[PartCost, ...]:
    """What each part of a retriever and its losses costs, on the CPU within a second and without data.

    A step of training is one of `config.train.batch_size` videos; with `train.chunk_videos` encoders read each batch
    twice, which is not counted. Padding is not computed, or computed, as the configuration says; here there is none.

    Args:
        config: the configuration of a run; of a model alone, losses and training steps are left out.
        frames: frames of each video; default: the most that the model reads.
        words: words of each query; default: the most that the model reads.
        captions: captions of each video in a step; `data.captions_per_video` limits them.

    Returns:
        The parts that have parameters or operations, the losses last.

    Raises:
        prvr.data.DataError: `model.clip` names a CLIP that cannot be loaded.

    Examples:
        >>> from prvr.config import load_config
        >>> parts = {cost.part: cost for cost in describe(load_config("hlformer-tvr"))}
        >>> sorted(parts)
        ['clip branch', 'frame branch', 'fusion', 'losses', 'scores', 'text encoder']
        >>> parts["text encoder"].parameters
        1936128
    """
    model = config.model if isinstance(config, Config) else config
    lengths = min(frames or model.max_frames, model.max_frames), min(words or model.max_words, model.max_words)
    with _undrawn():
        retriever = _retriever(model)
        objective = Objective(config.loss, model, retriever.registers) if isinstance(config, Config) else nn.Module()
    retriever, objective = retriever.to("meta").eval(), objective.to("meta")
    ledger = _Ledger({"": retriever, "losses": objective})

    def batch(videos: int, queries: int) -> Batch:
        owner = torch.arange(queries) * videos // queries
        return meta_batch(model, [lengths[0]] * videos, [lengths[1]] * queries, owner)

    with torch.no_grad():
        both, more = (ledger.count(retriever.encode, batch(1, queries)) for queries in (1, 2))
        text, video, _ = retriever.encode(batch(1, 1))
        pair = ledger.count(retriever.score, text, video)
    query = more - both
    counts = {"query": query, "video": both - query, "pair": pair}
    if isinstance(config, Config):
        videos = config.train.batch_size
        whole = batch(videos, videos * min(captions, config.data.captions_per_video or captions))
        retriever.train()
        objective.train()
        counts["step"] = ledger.count(lambda: objective(retriever(whole), whole, negatives="hard")["total"].backward())
    return ledger.costs(**counts)


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
    with _undrawn():
        reranker = CandidateReranker(config, direction)
    reranker = reranker.to("meta").eval()
    name = f"diffusion, {'text to video' if direction == 't2v' else 'video to text'}"
    ledger = _Ledger({name: reranker})

    def asked(size: int, candidates: int) -> tuple[Tensor, Tensor, Tensor]:
        texts, videos = ((size,), (size, candidates)) if direction == "t2v" else ((size, candidates), (size,))
        mask = torch.ones(*videos, rows, dtype=torch.bool, device="meta")
        text, frames = (torch.empty(*some, config.width, device="meta") for some in (texts, mask.shape))
        return text, frames, mask

    with torch.no_grad():
        one = asked(1, top_k or config.candidates)
        counts = {"query" if direction == "t2v" else "video": ledger.count(reranker.sample, *one, num_steps=num_steps)}
    if step is not None:
        many, right = asked(*step), torch.zeros(step, dtype=torch.bool, device="meta")
        counts["step"] = ledger.count(lambda: reranker.train().loss(right, *many).backward())
    return replace(PartCost.total(ledger.costs(**counts)), part=name)


def meta_batch(model: AnyModelConfig, frames: Sequence[int], words: Sequence[int], owner: Tensor) -> Batch:
    """A batch that has shapes and no numbers.

    Args:
        model: what the batch is for.
        frames: the number of frames of each video.
        words: the number of words of each query.
        owner: `(q,)` the video of each query, in order.
    """
    long, some = torch.tensor(frames), torch.tensor(words)
    sizes = (len(long), int(long.max())), (len(some), int(some.max()))
    return Batch(
        clips=torch.empty(len(long), model.num_clips, model.video_dim, device="meta"),
        frames=torch.empty(*sizes[0], model.video_dim, device="meta"),
        frame_mask=torch.arange(sizes[0][1]) < long[:, None],
        words=torch.empty(*sizes[1], model.query_dim, device="meta"),
        word_mask=torch.arange(sizes[1][1]) < some[:, None],
        query_to_video=owner,
        video_ids=tuple(map(str, range(len(long)))),
        teacher=torch.empty(len(some), len(long)),
    ).to("meta")


class _Ledger(TorchDispatchMode):
    """Counts operations by the part whose module asked for them.

    Args:
        modules: by the name of the part that everything in them belongs to; "": by the path, see `_PARTS`.
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self._counts, self._parameters = Counter[str](), Counter[str]()
        self._part_of_node: dict[int, str] = {}
        self._parts = dict.fromkeys(_PARTS.values())  # in the order in which they are listed
        self._inside = [next(iter(modules)) or _PARTS[""]]  # the modules that are running, by part; the last one counts
        for name, module in modules.items():
            for path, one in module.named_modules():
                part = name or _part_of(path)
                self._parts[part] = None
                one.register_forward_pre_hook(partial(self._enter, part))
                one.register_forward_hook(self._leave)
            for path, parameter in module.named_parameters():
                self._parameters[name or _part_of(path)] += parameter.numel()

    def _enter(self, part: str, *_: Any) -> None:
        self._inside.append(part)

    def _leave(self, *_: Any) -> None:
        self._inside.pop()

    def count(self, function: Callable[..., Any], *args: Any, **options: Any) -> Counter[str]:
        """The operations of a call by part; those of a backward pass belong to the part that it goes through."""
        self._counts, self._part_of_node = Counter(), {}
        with self:
            function(*args, **options)
        return self._counts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if count := flop_registry.get(func.overloadpacket):
            node = torch._C._current_autograd_node()  # None, unless this is a backward pass
            if node is None:
                part = self._inside[-1]
                self._part_of_node.setdefault(torch.autograd._get_sequence_nr() - 1, part)  # the node of this operator
            else:
                part = self._part_of_node[node._sequence_nr()]
            self._counts[part] += count(*args, **(kwargs or {}), out_val=result)
        return result

    def costs(self, **counts: Counter[str]) -> tuple[PartCost, ...]:
        """The parts that have parameters or operations."""
        found = (
            PartCost(part, self._parameters[part], **{name: some[part] for name, some in counts.items()})
            for part in self._parts
        )
        return tuple(cost for cost in found if cost != PartCost(cost.part))


def _part_of(path: str) -> str:
    """The part of a module of a retriever; one that `_PARTS` does not know has the name of its attribute."""
    if "fusion" in path.split("."):
        return _PARTS["fusion"]
    prefix = max((known for known in _PARTS if f"{path}.".startswith(f"{known}.")), key=len, default=None)
    return path.split(".")[0] if prefix is None else _PARTS[prefix]


class _NoDraws(TorchDispatchMode):
    """Leaves new weights as they lie in memory: to draw them would take most of the time."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        draws = (torch.ops.aten.normal_.default, torch.ops.aten.uniform_.default)
        return args[0] if func in draws else func(*args, **(kwargs or {}))


@contextmanager
def _undrawn() -> Iterator[None]:
    """A context in which models are made for their shapes; the state of random numbers stays as it is."""
    with torch.random.fork_rng(devices=[]), _NoDraws():
        yield


def _retriever(model: AnyModelConfig) -> AnyRetriever:
    """A retriever of the right shapes; a CLIP is loaded only where nothing else says what it is."""
    if isinstance(model, ModelConfig):
        return Retriever(model)
    if model.clip is None:
        return TokenRetriever(model)
    made: Any = build_retriever(model) if isinstance(model.clip, str) else ClipRetriever(model)
    made.backbone.set_attn_implementation("eager")  # the others look whether a mask is needed, at numbers
    return made
