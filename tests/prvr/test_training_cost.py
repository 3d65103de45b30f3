"""Parameters and operations of the parts of a model, against what torch counts while the model computes."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from prvr.config import Config, load_config
from prvr.models import build_retriever
from prvr.objective import Objective
from prvr.stages import CandidateReranker, RerankerConfig
from prvr.training.cost import PartCost, describe, describe_reranker, meta_batch
from prvr.types import Batch

PRESETS = ["gmmformer-tvr", "hybrid-tvr", "holmes-words-tvr", "diffusionret-toy"]
VIDEOS, FRAMES, WORDS, CAPTIONS = 3, 7, 5, 2


def small(preset: str) -> Config:
    sizes = {"hidden": 16, "heads": 2, "video_dim": 12, "query_dim": 10, "max_frames": FRAMES, "max_words": WORDS}
    sizes |= {} if preset.startswith("diffusionret") else {"num_clips": 4, "lorentz_dim": 15}
    changes: dict[str, Any] = {f"model.{key}": value for key, value in sizes.items()}
    if preset.startswith(("dreamprvr", "hybrid")):
        changes["model.registers.steps"] = 2
        changes["model.blocks"] = [{"space": "euclidean"}, {"space": "lorentz", "width": 2.0}]
    return load_config(preset, changes | {"train.batch_size": VIDEOS, "data.captions_per_video": CAPTIONS}, shared=True)


@cache
def total_of(preset: str) -> PartCost:
    return PartCost.total(describe(small(preset)))


def batch(config: Config, videos: int, queries: int) -> Batch:
    return meta_batch(config.model, [FRAMES] * videos, [WORDS] * queries, torch.arange(queries) * videos // queries)


def counted(function: Any) -> int:
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


@pytest.mark.parametrize("preset", PRESETS)
def test_a_step_is_what_torch_counts_while_it_is_computed(preset: str) -> None:
    config, total = small(preset), total_of(preset)
    retriever = build_retriever(config.model).train().to("meta")
    objective = Objective(config.loss, config.model, retriever.registers).train().to("meta")
    some = batch(config, VIDEOS, VIDEOS * CAPTIONS)
    assert total.step == counted(lambda: objective(retriever(some), some, negatives="hard")["total"].backward())
    own = [p for module in (retriever, objective) for p in module.parameters()]
    assert total.parameters == sum(p.numel() for p in own)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_query_a_video_and_a_pair(preset: str) -> None:
    config, total = small(preset), total_of(preset)
    retriever: Any = build_retriever(config.model).eval().to("meta")
    one = batch(config, 1, 1)
    text, video, _ = retriever.encode(one)
    assert total.pair == counted(lambda: retriever.score(text, video)) > 0
    assert total.query + total.video == counted(lambda: retriever.encode(one))
    more = batch(config, 1, 4)
    assert 4 * total.query + total.video == counted(lambda: retriever.encode(more))


def test_parts_hold_what_their_modules_do() -> None:
    config = small("dreamprvr-tvr")
    parts = {cost.part: cost for cost in describe(config)}
    retriever: Any = build_retriever(config.model).eval().to("meta")
    modules = {
        "text encoder": [retriever.query],
        "registers: prior": [retriever.registers.prior],
        "registers: denoiser": [retriever.registers.diffusion],
        "registers: condition": [retriever.guide, retriever.registers.condition],
        "fusion": [retriever.clips.layers[0].fusion, retriever.frames.layers[0].fusion],
    }
    for part, some in modules.items():
        assert parts[part].parameters == sum(p.numel() for module in some for p in module.parameters())
    with FlopCounterMode(display=False) as counter:
        retriever(batch(config, 1, 1))
    found, paths = counter.get_flop_counts(), {module: path for path, module in retriever.named_modules()}
    for part in ("text encoder", "registers: prior", "fusion"):
        work = sum(sum(found[f"Retriever.{paths[module]}"].values()) for module in modules[part])
        assert parts[part].query + parts[part].video == work
    assert parts["fusion"].query == parts["text encoder"].video == 0


def test_more_steps_of_the_sampler_cost_the_denoiser_alone() -> None:
    model = small("dreamprvr-tvr").model
    few, many = (
        {cost.part: cost for cost in describe(replace(model, registers=replace(model.registers, steps=steps)))}
        for steps in (1, 2)
    )
    assert {part for part in few if few[part].video != many[part].video} == {"registers: denoiser"}
    assert many["registers: denoiser"].video > 1.5 * few["registers: denoiser"].video


def test_a_model_alone_has_neither_losses_nor_steps_and_no_number_is_drawn() -> None:
    config, state = small("hlformer-tvr"), torch.get_rng_state()
    alone = describe(config.model)
    assert {cost.part for cost in describe(config)} - {cost.part for cost in alone} == {"losses", "training step"}
    assert PartCost.total(alone).step == 0
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("direction", ["t2v", "v2t"])
def test_a_re_ranker(direction: Any) -> None:
    config = RerankerConfig(width=16, steps=5, candidates=4)
    cost = describe_reranker(config, direction, rows=FRAMES, step=(3, 4))
    reranker = CandidateReranker(config, direction).eval()
    texts, videos = (1, 4) if direction == "t2v" else (4, 1)
    text, frames = torch.randn(texts, 16), torch.randn(videos, FRAMES, 16)
    work = counted(lambda: reranker.rerank(torch.rand(1, 4), text, frames, torch.ones(videos, FRAMES) > 0))
    assert (cost.query if direction == "t2v" else cost.video) == work
    assert cost.parameters == sum(p.numel() for p in reranker.parameters())
    shapes = ((3, 16), (3, 4, FRAMES, 16)) if direction == "t2v" else ((3, 4, 16), (3, FRAMES, 16))
    text, frames = (torch.randn(shape) for shape in shapes)
    right, mask = torch.arange(4).expand(3, 4) == 0, torch.ones(frames.shape[:-1], dtype=torch.bool)
    assert cost.step == counted(lambda: reranker.loss(right, text, frames, mask).backward())
