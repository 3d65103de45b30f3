"""The authors' tensor names beside ours: one table, read both ways.

Ours keep a stack of blocks in one tensor, so an entry also says which slice of it is meant.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor, nn

from prvr.models.blocks import EuclideanMixer
from prvr.models.retriever import Retriever
from prvr.published.hlformer.released import ReleasedLorentzMixer


class NamedTensor(NamedTuple):
    """`authors` is their name, `ours` the path of our parameter, `index` the slice of it."""

    authors: str
    ours: str
    index: tuple[int, ...] = ()


def name_table(text: str) -> dict[str, str]:
    """A table of parts, each line our name and theirs."""
    return dict(map(str.split, text.strip().splitlines()))


def renamed(tensors: Mapping[str, Tensor], table: Mapping[str, str]) -> dict[str, Tensor]:
    """Tensors under the names that a table has for parts of theirs.

    The projections of queries, keys and values, which torch stacks (`in_proj_weight`), are views by names of their own.

    Examples:
        >>> [*renamed({"layer.in_proj_bias": torch.zeros(6)}, {"layer": "attention"})]
        ['attention.q_proj.bias', 'attention.k_proj.bias', 'attention.v_proj.bias']
    """
    part = re.compile(rf"(?<![^.])(?:{'|'.join(map(re.escape, table))})(?![^.])")
    views: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        layer, stacked, kind = part.sub(lambda match: table.get(match[0], ""), name).partition("in_proj_")
        if stacked:
            thirds = zip("qkv", tensor.detach().tensor_split(3), strict=True)
            views |= {f"{layer}{letter}_proj.{kind}": rows for letter, rows in thirds}
        else:
            views[layer] = tensor.detach()
    return views


UNUSED = "weight_token"
"""The guide of GMMFormer v2. Of Holmes, a parameter that nothing reads: a loaded checkpoint keeps it as a buffer, which
is not saved."""
CONSTANT = "manifold.k"
"""The end of the names of curvatures, which are 1."""
_NOT_DECAYED = ("bias", "LayerNorm.bias", "LayerNorm.weight")
"""Parts of the authors' names of parameters that their optimiser does not decay."""
_LORENTZ = "self.lorentz_multiattention"
_CURVED = (
    "self.",
    f"{_LORENTZ}.",
    f"{_LORENTZ}.linear_keys.",
    f"{_LORENTZ}.linear_values.",
    f"{_LORENTZ}.linear_query.",
)
"""Parts of a Lorentz block that have a curvature each."""
_TEXT = """
    [positions]
    table position_embeddings.weight
    norm  LayerNorm
    [projection]
    norm   LayerNorm
    linear net.1
    [block]
    project                  output.dense
    norm                     output.LayerNorm
    expand                   output.layer1
    contract                 output.layer2
    norm1                    norm1
    norm2                    norm2
    mixer.qkv                self.query self.key self.value
    mixer.log_scale          self.scale_alpha
    mixer.temperature        @scale
    mixer.bias               @bias
    mixer.enter.norm         self.input_proj.LayerNorm
    mixer.enter.linear       self.input_proj.net.1
    mixer.leave.norm         self.output_proj.LayerNorm
    mixer.leave.linear       self.output_proj.net.1
    mixer.linear_scale.value @linear_keys.scale @linear_values.scale @linear_query.scale
    mixer.linear             @linear_keys.weight @linear_values.weight @linear_query.weight
    [fusion]
    attention.query    ca.self.query
    attention.key      ca.self.key
    attention.value    ca.self.value
    attention.expand   ca.output.layer1
    attention.contract ca.output.layer2
    attention.norm1    ca.norm1
    attention.norm2    ca.norm2
    hidden             layer1
    weights            layer2
    [condition]
    attention.query cross_attention.self.query
    attention.key   cross_attention.self.key
    attention.value cross_attention.self.value
    query_tokens    query_tokens
    attention_norm  cross_attention.norm1
    ffn_in          cross_attention.output.layer1
    ffn_out         cross_attention.output.layer2
    ffn_norm        cross_attention.norm2
    [denoiser]
    time_table     time_embedding.timembedding.0.weight
    time_in        time_embedding.timembedding.1
    time_out       time_embedding.timembedding.3
    condition_norm cond_embedding.0
    condition_proj cond_embedding.2
    out            short_cut
    [denoiser_layer]
    norm_in        blcok_in.0
    proj_in        blcok_in.2
    time_proj      temb_proj.1
    condition_proj cond_proj.1
    norm_out       blcok_out.0
    proj_out       blcok_out.3
    shortcut       short_cut
    [prior]
    pooling.gru.weight_ih_l0         gpo.gru.weight_ih_l0
    pooling.gru.weight_ih_l0_reverse gpo.gru.weight_ih_l0_reverse
    pooling.gru.weight_hh_l0         gpo.gru.weight_hh_l0
    pooling.gru.weight_hh_l0_reverse gpo.gru.weight_hh_l0_reverse
    pooling.gru.bias_ih_l0           gpo.gru.bias_ih_l0
    pooling.gru.bias_ih_l0_reverse   gpo.gru.bias_ih_l0_reverse
    pooling.gru.bias_hh_l0           gpo.gru.bias_hh_l0
    pooling.gru.bias_hh_l0_reverse   gpo.gru.bias_hh_l0_reverse
    pooling.score                    gpo.linear
    mean_readout.hidden              pie_net_video.attention.w_1
    mean_readout.score               pie_net_video.attention.w_2
    mean_proj                        pie_net_video.fc
    mean_norm                        pie_net_video.layer_norm
    logvar_readout.hidden            uncertain_net_video.attention.w_1
    logvar_readout.score             uncertain_net_video.attention.w_2
    logvar_proj                      uncertain_net_video.fc
    logvar_pooled                    uncertain_net_video.fc2
    [entailment]
    log_curvature    curv
    text_log_scale   textual_alpha
    video_log_scale  video_alpha
    pool_frames.pool modular_vector_mapping_2
    pool_clips.pool  modular_vector_mapping_3
    [weight]
    weight weight
    [key_value]
    key   0
    value 1
    [weigh]
    0 0
    2 2
    [map]
    map out_mapping_linear
    [exp_map]
    map exp_out_mapping_linear
    [token]
    token weight_token
    [unused]
    weight_token weight_token
    [alignment]
    project vproj_clip
    """
_TEXTS = dict(re.findall(r"\[(\w+)\]([^[]+)", _TEXT.replace("@", f"{_LORENTZ}.")))
"""Tables by the names in brackets: our name of a part, or of a tensor, and theirs; of a stack along two axes theirs for
each slice of the second one, side by side. @ stands for the Lorentz attention."""
_TEXTS["text_prior"] = _TEXTS["prior"].replace("video", "text")


def _tensor_table(text: str) -> dict[str, list[str]]:
    """Their names of a tensor by ours; a part stands for its weight and its bias."""
    rows, ends = map(str.split, text.strip().splitlines()), ("", ".weight", ".bias")
    return {f"{ours}{end}": [f"{name}{end}" for name in theirs] for ours, *theirs in rows for end in ends}


_TABLES = {name: _tensor_table(text) for name, text in _TEXTS.items()}
Place = Sequence[str]
"""Our place of a module, theirs (a dot: none), and the table of the names inside it."""
_PLACES: list[Place] = [
    line.split()
    for line in """
    clips.positions                {clip}_pos_embed                       positions
    clips.project                  {clip}_input_proj                      projection
    clips.registers                {clips}.noise_input_layer              projection
    clips.layers.0.fusion.guide    .                                      token
    clips.layers.0.fusion          {clips}                                fusion
    clips.layers.1.fusion          clip_encoder_2                         fusion
    frames.positions               {frame}_pos_embed                      positions
    frames.project                 {frame}_input_proj                     projection
    frames.registers               {frames}.noise_input_layer             projection
    frames.layers.0.fusion.guide   .                                      token
    frames.layers.0.fusion         {frames}                               fusion
    frames.layers.1.fusion         frame_encoder_2                        fusion
    query.positions                query_pos_embed                        positions
    query.project                  query_input_proj                       projection
    query.block                    query_encoder                          block
    query.pool                     modular_vector_mapping                 weight
    frame_pool                     modular_vector_mapping_2               weight
    frame_pool                     mapping_linear                         key_value
    frame_query.project            frame_branch_query_proj                projection
    frame_query.block              frame_branch_query_encoder             block
    frame_query.weigh.net          text_weight_fc                         weigh
    frame_query.encoder.positions  exp_query_pos_embed                    positions
    frame_query.encoder.project    exp_query_input_proj                   projection
    frame_query.encoder.block      exp_query_encoder                      block
    frame_query.encoder.pool       exp_modular_vector_mapping             weight
    clip_rows                      .                                      map
    frame_pool                     .                                      exp_map
    guide                          mean_clip_encoder                      block
    registers.condition            video_qformer                          condition
    registers.prior                video_probabilistic_variational_sampler prior
    registers.diffusion.denoiser   diffusion_mlp                          denoiser
    .                              .                                      unused
    proxy.text                     .                                      text_prior
    proxy.video                    .                                      prior
    alignment                      .                                      alignment
    entailment                     .                                      entailment
    """.strip().splitlines()
]
"""The places of a retriever, and then those of an objective. In braces is the beginning of a name that depends on the
model: that of a branch or, with an s, of its encoder."""


def _places(retriever: Retriever) -> Iterator[Place]:
    """`_PLACES`, and those whose number depends on the model; `{0}` is the number of a block in its stack."""
    config = retriever.config
    alone = len(config.blocks) == config.depth == 1  # MS-SL, DL-DKD
    clip, frame = ("visual", "exp_visual") if config.clip_construction == "frames" else ("clip", "frame")  # DL-DKD
    first = "_1" if retriever.registers is None and not alone else ""
    encoders = {"clips": f"{clip}_encoder", "frames": f"{frame}_encoder{first}"}
    for ours, theirs, table in _PLACES:
        yield ours, theirs.format(clip=clip, frame=frame, **encoders), table
    for path, module in retriever.named_modules():
        match path.split("."):
            case [branch, "layers", layer, "groups", _]:
                encoder = encoders[branch] if layer == "0" else f"{branch.removesuffix('s')}_encoder_2"
                kind = {EuclideanMixer: ".e_attns.{0}", ReleasedLorentzMixer: ".h_attns.{0}"}.get(type(module.mixer))
                if config.layer == "attention" or config.fusion == "token_guided":
                    kind = "" if alone else ".attn{0}"
                if kind is not None:
                    yield path, encoder + kind, "block"
            case ["registers", "diffusion", "denoiser", "layers", number]:
                yield path, f"diffusion_mlp.layers.{number}", "denoiser_layer"


def all_tensors(module: nn.Module) -> dict[str, Tensor]:
    """The parameters and the buffers of a module by name."""
    return dict(module.named_parameters()) | dict(module.named_buffers())


def names(module: nn.Module) -> list[NamedTensor]:
    """Every tensor of a retriever or an objective under the authors' name, but for curvatures, which are 1.

    Parts the authors never had (a correct-mode Lorentz block, say) have no name and are left out.
    """
    ours, entries = all_tensors(module), list[NamedTensor]()
    for place, authors, table in _places(module) if isinstance(module, Retriever) else _PLACES:
        for part, theirs in _TABLES[table].items():
            path = f"{place}.{part}".lstrip(".")
            if path in ours:
                stacked = getattr(module.get_submodule(path.rpartition(".")[0]), "stacked_dims", 0)
                for index in product(*map(range, ours[path].shape[:stacked])):
                    name = theirs[index[1] if len(theirs) > 1 else 0]
                    entries.append(NamedTensor(f"{authors}.{name}".format(*index).lstrip("."), path, index))
    return entries


def canonical_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by the names that this module knows: without `module.`, and those of DL-DKD as in its later code.

    The code of the paper (branch iccv) calls the branches A and B, and projects words for both with B's map.
    """
    named = {key.removeprefix("module."): tensor for key, tensor in state.items()}
    if "B_mapping_linear.weight" not in named:
        return named
    if "A_mapping_linear.weight" in named:  # without it the model has one branch
        named |= {f"A{key[1:]}": tensor for key, tensor in named.items() if key.startswith("B_query_input_proj.")}
    later = (("A_", "exp_"), ("B_", ""), ("frame_", "visual_"), ("mapping_linear", "out_mapping_linear"))
    return {reduce(lambda name, pair: name.replace(*pair), later, key): tensor for key, tensor in named.items()}


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
    ours, values = all_tensors(module), dict[str, Tensor]()
    for entry in names(module):
        value = ours[entry.ours].grad if grad else ours[entry.ours].detach()
        if value is not None:
            values[entry.authors] = value[entry.index]
    # The curvatures of the released Lorentz blocks, which their code keeps in several places.
    blocks = [name.removesuffix("self.scale_alpha") for name in values if name.endswith("self.scale_alpha")]
    if grad or not blocks:
        return values
    places = ["", *map("".join, product(blocks, _CURVED))]
    return values | {f"{place}{CONSTANT}": torch.ones(()) for place in places}


def released_decay(modules: Iterable[nn.Module]) -> dict[int, bool]:
    """For each parameter (by id) that the authors have: does their optimiser decay it?"""
    return {
        id(parameters[entry.ours]): not any(part in entry.authors for part in _NOT_DECAYED)
        for module in modules
        for parameters in [dict(module.named_parameters())]
        for entry in names(module)
        if entry.ours in parameters  # else a buffer or a constant
    }
