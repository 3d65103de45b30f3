"""The embeddings of a split, for evaluation, moments and the training of a stage."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from prvr.data.on_device import batches_on, matrix_products
from prvr.data.packed import PackedSplit
from prvr.stages.matrix import EncodedSplit
from prvr.stages.pipelines import Pipeline, as_pipeline
from prvr.stages.stage import SplitInputs
from prvr.types import FirstStage, TextVideoEncoder, cat_texts


def encode_split(
    system: FirstStage | Pipeline,
    split: PackedSplit,
    *,
    device: torch.device | str | None = None,
    video_batch: int = 64,
    query_batch: int = 256,
    seed: int = 0,
) -> EncodedSplit:
    """Encodes every video and every query of a split once.

    Runs in evaluation mode without gradients. The modes of all modules and the random state are restored.

    Args:
        system: a retriever, or a pipeline, whose encoders all encode the split; moved to `device`.
        split: a packed split.
        device: the device of the embeddings; None for that of the model's parameters.
        video_batch: number of videos that are encoded at a time.
        query_batch: number of queries that are encoded at a time.
        seed: the seed of samples that the model draws, such as registers from a prior.

    Raises:
        DataError: the corpus of the split lacks the inputs of a stage.
    """
    pipeline = as_pipeline(system)
    where = device_of(pipeline.first, device)

    def encoded(model: TextVideoEncoder, inputs: SplitInputs) -> EncodedSplit:
        with evaluation_mode(model, where, seed):
            double = torch.float64 in {parameter.dtype for parameter in model.parameters()}

            def of_model(batch: Sequence[Tensor]) -> list[Tensor]:
                return [x.double() if double and x.is_floating_point() else x for x in batch]

            video_batches, query_batches = inputs.video_batches(video_batch), inputs.query_batches(query_batch)
            videos = [model.encode_video(*of_model(batch[:-1])) for batch in batches_on(where, video_batches)]
            texts = [model.encode_text(*of_model(batch[:2])) for batch in batches_on(where, query_batches)]
            return EncodedSplit(cat_texts(texts), tuple(videos), (), split.query_ids, split.video_ids)

    stages = tuple(
        None if stage.encoder is None else encoded(stage.encoder, stage.open_split(split)) for stage in pipeline.stages
    )
    return replace(encoded(pipeline.first, split), stages=stages)


def device_of(retriever: TextVideoEncoder, device: torch.device | str | None) -> torch.device:
    """`device`, or that of the model's parameters if it is None."""
    if device is not None:
        return torch.device(device)
    first = next(retriever.parameters(), None)
    return torch.device("cpu") if first is None else first.device


@contextmanager
def evaluation_mode(system: TextVideoEncoder | Pipeline, device: torch.device, seed: int) -> Iterator[None]:
    """Evaluation mode without gradients and with a seed; modes and the random state are restored afterwards."""
    encoders = [system.first, *(stage.encoder for stage in system.stages)] if isinstance(system, Pipeline) else [system]
    models = [model for model in encoders if model is not None]
    modules = [module for model in models for module in model.modules()]
    in_training = [module for module in modules if module.training]
    tensors = (tensor for module in modules for tensor in (*module._parameters.values(), *module._buffers.values()))
    to_move = any(tensor is not None and tensor.device != device for tensor in tensors)
    for model in models:  # on every query of a search: `to` and `eval` take longer than to ask whether they are needed
        if to_move:
            model.to(device)
        if in_training:
            model.eval()
    try:
        seeded = torch.random.fork_rng([device] if device.type == "cuda" else [])
        with seeded, torch.inference_mode(), matrix_products("no"):
            # torch.manual_seed also seeds kinds of devices that are absent, which takes longer than a short query.
            (torch.default_generator if device.type == "cpu" else torch).manual_seed(seed)
            yield
    finally:
        for module in in_training:
            module.training = True
