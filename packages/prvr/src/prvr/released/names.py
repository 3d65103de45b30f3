"""The authors' tensor names beside ours: one table, read both ways.

Ours keep a stack of blocks in one tensor, so an entry also says which slice of it is meant.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from prvr.models.blocks import AttentionBlocks, TransformerBlocks
from prvr.models.encoders import BlockStack, BranchEncoder
from prvr.models.fusion import GuidedFusion
from prvr.models.retriever import Retriever
from prvr.released.entailment import ReleasedEntailment
from prvr.released.lorentz_mixer import ReleasedLorentzMixer
from regdiff import ConditionGenerator, RegisterDenoiser, RegisterGenerator


@dataclass(frozen=True)
class Entry:
    """`authors` is their name, `ours` the path of our parameter, `index` the slice of it; no path = the constant 1."""

    authors: str
    ours: str | None
    index: tuple[int, ...] = ()


UNUSED = "weight_token"
"""A parameter of Holmes that nothing reads. A loaded checkpoint keeps it as a buffer, which is not saved."""
_AFFINE = ("weight", "bias")
_ATTENTION_BLOCK = {"project": "output.dense", "norm": "output.LayerNorm"}
_TRANSFORMER_BLOCK = {"expand": "output.layer1", "contract": "output.layer2", "norm1": "norm1", "norm2": "norm2"}
_FUSION = {f"attention.{n}": f"ca.self.{n}" for n in ("query", "key", "value")} | {
    "attention.expand": "ca.output.layer1",
    "attention.contract": "ca.output.layer2",
    "attention.norm1": "ca.norm1",
    "attention.norm2": "ca.norm2",
    "hidden": "layer1",
    "weights": "layer2",
}
_PROJECTION = {"norm": "LayerNorm", "linear": "net.1"}
_CONDITION = {f"attention.{n}": f"self.{n}" for n in ("query", "key", "value")} | {
    "attention_norm": "norm1",
    "ffn_in": "output.layer1",
    "ffn_out": "output.layer2",
    "ffn_norm": "norm2",
}
_DENOISER = {
    "time_in": "time_embedding.timembedding.1",
    "time_out": "time_embedding.timembedding.3",
    "condition_norm": "cond_embedding.0",
    "condition_proj": "cond_embedding.2",
    "out": "short_cut",
}
_DENOISER_LAYER = {
    "norm_in": "blcok_in.0",
    "proj_in": "blcok_in.2",
    "time_proj": "temb_proj.1",
    "condition_proj": "cond_proj.1",
    "norm_out": "blcok_out.0",
    "proj_out": "blcok_out.3",
    "shortcut": "short_cut",
}
_PRIOR = {
    "mean_proj": "pie_net_video.fc",
    "mean_norm": "pie_net_video.layer_norm",
    "logvar_proj": "uncertain_net_video.fc",
    "logvar_pooled": "uncertain_net_video.fc2",
}
_PRIOR_WEIGHTS = {
    "pooling.score.weight": "gpo.linear.weight",
    "mean_readout.hidden.weight": "pie_net_video.attention.w_1.weight",
    "mean_readout.score.weight": "pie_net_video.attention.w_2.weight",
    "logvar_readout.hidden.weight": "uncertain_net_video.attention.w_1.weight",
    "logvar_readout.score.weight": "uncertain_net_video.attention.w_2.weight",
}
_GRU = [f"{kind}_{part}_l0{way}" for way in ("", "_reverse") for kind in ("weight", "bias") for part in ("ih", "hh")]


def _affine(authors: str, ours: str, index: tuple[int, ...] = ()) -> Iterator[Entry]:
    for name in _AFFINE:
        yield Entry(f"{authors}.{name}", f"{ours}.{name}", index)


def _all(table: dict[str, str], authors: str, ours: str, index: tuple[int, ...] = ()) -> Iterator[Entry]:
    """Weight and bias of every part in a table of our names and theirs."""
    for part, name in table.items():
        yield from _affine(f"{authors}.{name}", f"{ours}.{part}", index)


def _projection(authors: str, ours: str, index: tuple[int, ...] = ()) -> Iterator[Entry]:
    yield from _all(_PROJECTION, authors, ours, index)


def _positions(authors: str, ours: str) -> Iterator[Entry]:
    yield Entry(f"{authors}.position_embeddings.weight", f"{ours}.table")
    yield from _affine(f"{authors}.LayerNorm", f"{ours}.norm")


def _euclidean(authors: str, ours: str, k: int) -> Iterator[Entry]:
    for j, name in enumerate(("query", "key", "value")):
        yield from _affine(f"{authors}.self.{name}", f"{ours}.mixer.qkv", (k, j))


def _lorentz(authors: str, ours: str, k: int) -> Iterator[Entry]:
    attention = f"{authors}.self.lorentz_multiattention"
    yield Entry(f"{authors}.self.scale_alpha", f"{ours}.mixer.log_scale", (k,))
    yield Entry(f"{authors}.self.manifold.k", None)
    yield from _projection(f"{authors}.self.input_proj", f"{ours}.mixer.enter", (k,))
    yield Entry(f"{attention}.scale", f"{ours}.mixer.temperature", (k,))
    yield Entry(f"{attention}.bias", f"{ours}.mixer.bias", (k,))
    yield Entry(f"{attention}.manifold.k", None)
    for j, name in enumerate(("linear_keys", "linear_values", "linear_query")):
        yield Entry(f"{attention}.{name}.scale", f"{ours}.mixer.linear_scale.value", (k, j))
        yield Entry(f"{attention}.{name}.manifold.k", None)
        yield Entry(f"{attention}.{name}.weight.weight", f"{ours}.mixer.linear.weight", (k, j))
    yield from _projection(f"{authors}.self.output_proj", f"{ours}.mixer.leave", (k,))


def _block(module: nn.Module, authors: str, ours: str, k: int) -> Iterator[Entry]:
    """Block k of a stack, whatever its kind."""
    mixer = _lorentz if isinstance(module.mixer, ReleasedLorentzMixer) else _euclidean
    yield from mixer(authors, ours, k)
    yield from _all(
        _ATTENTION_BLOCK if isinstance(module, AttentionBlocks) else _TRANSFORMER_BLOCK, authors, ours, (k,)
    )


def _stack(stack: BlockStack, authors: str, ours: str) -> Iterator[Entry]:
    for g, group in enumerate(stack.groups):
        assert isinstance(group, TransformerBlocks | AttentionBlocks)
        if isinstance(group, AttentionBlocks):
            kind = "attn"
        else:
            kind = "h_attns." if isinstance(group.mixer, ReleasedLorentzMixer) else "e_attns."
        for k in range(group.num):
            yield from _block(group, f"{authors}.{kind}{k}", f"{ours}.groups.{g}", k)
    if isinstance(stack.fusion, GuidedFusion):
        yield from _all(_FUSION, authors, f"{ours}.fusion")


def _branch(branch: BranchEncoder, authors: str, ours: str, encoders: tuple[str, ...]) -> Iterator[Entry]:
    yield from _positions(f"{authors}_pos_embed", f"{ours}.positions")
    yield from _projection(f"{authors}_input_proj", f"{ours}.project")
    for i, (layer, encoder) in enumerate(zip(branch.layers, encoders, strict=False)):
        assert isinstance(layer, BlockStack)
        yield from _stack(layer, encoder, f"{ours}.layers.{i}")
    if branch.registers is not None:
        yield from _projection(f"{encoders[0]}.noise_input_layer", f"{ours}.registers")


def _generator(generator: RegisterGenerator) -> Iterator[Entry]:
    if isinstance(generator.condition, ConditionGenerator):
        yield Entry("video_qformer.query_tokens", "registers.condition.query_tokens")
        yield from _all(_CONDITION, "video_qformer.cross_attention", "registers.condition")
    if generator.prior is not None:
        yield from _prior()
    if not isinstance(generator.denoiser, RegisterDenoiser):
        return
    yield Entry("diffusion_mlp.time_embedding.timembedding.0.weight", "registers.diffusion.denoiser.time_table")
    yield from _all(_DENOISER, "diffusion_mlp", "registers.diffusion.denoiser")
    for i in range(len(generator.denoiser.layers)):
        yield from _all(_DENOISER_LAYER, f"diffusion_mlp.layers.{i}", f"registers.diffusion.denoiser.layers.{i}")


def _prior() -> Iterator[Entry]:
    sampler = "video_probabilistic_variational_sampler"
    for name in _GRU:
        yield Entry(f"{sampler}.gpo.gru.{name}", f"registers.prior.pooling.gru.{name}")
    for ours, authors in _PRIOR_WEIGHTS.items():
        yield Entry(f"{sampler}.{authors}", f"registers.prior.{ours}")
    yield from _all(_PRIOR, sampler, "registers.prior")


def _retriever(retriever: Retriever) -> Iterator[Entry]:
    gmm = retriever.frame_pool is not None
    yield from _positions("query_pos_embed", "query.positions")
    yield from _projection("query_input_proj", "query.project")
    yield from _block(retriever.query.block, "query_encoder", "query.block", 0)
    yield Entry("modular_vector_mapping.weight", "query.pool.weight")
    if retriever.clips is not None:
        yield from _branch(retriever.clips, "clip", "clips", ("clip_encoder", "clip_encoder_2"))
    if retriever.frame_query is not None:
        yield from _projection("frame_branch_query_proj", "frame_query.project")
        yield from _block(retriever.frame_query.block, "frame_branch_query_encoder", "frame_query.block", 0)
        for layer in (0, 2) if retriever.frame_query.weigh is not None else ():
            yield from _affine(f"text_weight_fc.{layer}", f"frame_query.weigh.net.{layer}")
    if hasattr(retriever, UNUSED):
        yield Entry(UNUSED, UNUSED)
    if retriever.frames is not None:
        first = "frame_encoder" if retriever.registers is not None else "frame_encoder_1"
        yield from _branch(retriever.frames, "frame", "frames", (first, "frame_encoder_2"))
    if gmm:
        yield Entry("modular_vector_mapping_2.weight", "frame_pool.weight")
    if _has_lorentz(retriever):
        yield Entry("manifold.k", None)
    if retriever.guide is not None:
        yield from _block(retriever.guide, "mean_clip_encoder", "guide", 0)
    if retriever.registers is not None:
        yield from _generator(retriever.registers)


def _has_lorentz(retriever: Retriever) -> bool:
    return any(isinstance(module, ReleasedLorentzMixer) for module in retriever.modules())


def _entailment() -> Iterator[Entry]:
    yield Entry("curv", "entailment.log_curvature")
    yield Entry("textual_alpha", "entailment.text_log_scale")
    yield Entry("video_alpha", "entailment.video_log_scale")
    yield Entry("modular_vector_mapping_2.weight", "entailment.pool_frames.pool.weight")
    yield Entry("modular_vector_mapping_3.weight", "entailment.pool_clips.pool.weight")


def names(module: nn.Module) -> list[Entry]:
    """Every tensor of a retriever or an objective under the authors' name.

    Parts the authors never had (a correct-mode Lorentz block, say) have no name and are left out.
    """
    if isinstance(module, Retriever):
        return list(_retriever(module))
    if isinstance(getattr(module, "entailment", None), ReleasedEntailment):
        return list(_entailment())
    return []


def tensors(module: nn.Module, grad: bool = False) -> dict[str, Tensor]:
    """Every tensor, or gradient, under the authors' names and in their shapes: the inverse of loading.

    Args:
        module: a `Retriever` or an `Objective`.
        grad: gradients instead of values; tensors without a gradient are left out.

    Examples:
        >>> from prvr.config import load_config
        >>> from prvr.models import Retriever
        >>> retriever = Retriever(load_config("gmmformer-tvr").model)
        >>> tensors(retriever)["query_encoder.self.query.weight"].shape
        torch.Size([384, 384])
    """
    ours = dict(module.named_parameters()) | dict(module.named_buffers())
    found = {}
    for entry in names(module):
        if entry.ours is None:
            if not grad:
                found[entry.authors] = torch.ones(())
            continue
        tensor = ours[entry.ours]
        value = tensor.grad if grad else tensor.detach()
        if value is not None:
            found[entry.authors] = value[entry.index]
    return found
