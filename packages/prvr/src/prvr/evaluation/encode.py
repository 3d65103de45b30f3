"""A split through a model, once: what evaluation, moments and the training of a stage begin with."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from prvr.data.on_device import batches_on
from prvr.data.packed import PackedSplit
from prvr.stages.matrix import EncodedSplit
from prvr.stages.pipelines import Pipeline, as_pipeline
from prvr.stages.stage import SplitInputs
from prvr.types import Encoder, FirstStage, cat_texts

Progress = Callable[[str, int, int], None]
"""Called with (what is being done, steps done, steps in all)."""


def encode_split(
    system: FirstStage | Pipeline,
    split: PackedSplit,
    *,
    device: torch.device | str | None = None,
    video_batch: int = 64,
    query_batch: int = 256,
    seed: int = 0,
    dropout: bool = False,
    progress: Progress | None = None,
) -> EncodedSplit:
    """Encodes every video and every query of a split once.

    Runs in evaluation mode without gradients; afterwards the modes of all modules and the random state are as before.

    Args:
        system: a retriever, or a pipeline, whose stages then encode what they read themselves; moved to `device`.
        split: a packed split.
        device: where to compute and keep the embeddings; default: where the model's parameters are.
        video_batch: how many videos are encoded at a time.
        query_batch: how many queries are encoded at a time.
        seed: the seed of whatever the model samples (registers that start from a prior); the same seed gives the same
            embeddings.
        dropout: in training mode instead, with the dropout of the model drawn by `seed`; without gradients as well.
        progress: called with ("videos" or "queries", done, total).

    Raises:
        DataError: a stage reads what the corpus of the split does not have.
    """
    pipeline = as_pipeline(system)
    where = device_of(pipeline.first, device)

    def encoded(model: Encoder, some: SplitInputs) -> EncodedSplit:
        with evaluation_mode(model, where, seed):
            videos, texts, done = [], [], 0
            for module in model.modules():
                module.training = dropout
            for batch in batches_on(where, some.video_batches(video_batch)):
                videos.append(model.encode_video(*batch[:3]))
                done += len(batch[0])
                if progress is not None:
                    progress("videos", done, len(split.video_ids))
            done = 0
            for batch in batches_on(where, some.query_batches(query_batch)):
                texts.append(model.encode_text(*batch[:2]))
                done += len(batch[0])
                if progress is not None:
                    progress("queries", done, len(split.query_ids))
            return EncodedSplit(cat_texts(texts), tuple(videos), (), split.query_ids, split.video_ids)

    stages = tuple(
        None if stage.encoder is None else encoded(stage.encoder, stage.open_split(split)) for stage in pipeline.stages
    )
    return replace(encoded(pipeline.first, split), stages=stages)


def device_of(retriever: Encoder, device: torch.device | str | None) -> torch.device:
    """The device that was asked for, else that of the model's parameters."""
    if device is not None:
        return torch.device(device)
    first = next(retriever.parameters(), None)
    return torch.device("cpu") if first is None else first.device


@contextmanager
def evaluation_mode(system: Encoder | Pipeline, device: torch.device, seed: int) -> Iterator[None]:
    """Evaluation mode, no gradients, seeded; modes of all modules and the random state are restored."""
    models: list[Encoder] = [system.first if isinstance(system, Pipeline) else system]
    if isinstance(system, Pipeline):
        models += [stage.encoder for stage in system.stages if stage.encoder is not None]
    modes = [(module, module.training) for model in models for module in model.modules()]
    for model in models:
        model.to(device)
        model.eval()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.inference_mode():
            torch.manual_seed(seed)
            yield
    finally:
        for module, training in modes:
            module.training = training
