"""From a configuration to the parts of a retriever: the only place that asks which part is meant.

All parts are freshly initialised: matrices N(0, 0.02), biases 0, norms 1 and 0.

Released parts are imported where a `Compat` field asks for one (`released_part`): all else works without them.
"""

from functools import partial

from torch import nn

from prvr.config import BLOCKS, FUSIONS, BlockConfig, ModelConfig, released_part
from prvr.models.blocks import (
    AttentionBlocks,
    EuclideanMixer,
    GaussianWindows,
    TransformerBlocks,
    gaussian_window,
    printed_window,
)
from prvr.models.layers import initialise
from prvr.models.rows import FramePadding, mask_frames
from regdiff import RegisterGenerator, make_register_generator


def build_blocks(config: ModelConfig, blocks: tuple[BlockConfig, ...]) -> nn.Module:
    """One stack of blocks that share a geometry."""
    space, num = blocks[0].space, len(blocks)
    if space == "lorentz" and config.compat.lorentz == "released":
        mixer = released_part("lorentz_mixer:ReleasedLorentzMixer", "compat.lorentz='released'")(config, num)
    else:
        mixer = BLOCKS[space].part(config, num)
    kind = TransformerBlocks if config.layer == "transformer" else AttentionBlocks
    return kind(mixer, num, config.hidden, config.dropout)


def build_windows(config: ModelConfig, blocks: tuple[BlockConfig, ...], length: int) -> nn.Module:
    """The Gaussian windows of a stack of blocks, for sequences of at most `length` positions."""
    widths = [block.width for block in blocks]
    if config.compat.window != "released":
        window = {"centred": gaussian_window, "printed": printed_window}[config.compat.window]
        return GaussianWindows(widths, length, logarithm=config.window == "add", window=window)
    if config.compat.padding == "to_batch":
        return released_part("windows:BatchWindows", "compat.window='released'")(widths)
    return released_part("windows:ReleasedWindows", "compat.window='released'")(widths, length)


def build_fusion(config: ModelConfig, length: int) -> nn.Module:
    """What makes one sequence of at most `length` positions of the outputs of all blocks."""
    if config.fusion == "mean_guided" and config.compat.padding == "to_length" and not config.drops_padding:
        return released_part("padding:UnmaskedGuidedFusion", "compat.padding='to_length'")(config, length)
    return FUSIONS[config.fusion].part(config, length)


def build_padding(config: ModelConfig) -> FramePadding:
    """The function that prepares frames for encoding, see `FramePadding`."""
    if config.compat.padding == "to_length":
        pad = released_part("padding:pad_to_length", "compat.padding='to_length'")
        return partial(pad, length=config.max_frames)
    return mask_frames


def build_guide(config: ModelConfig) -> TransformerBlocks | None:
    """The block whose output the registers are generated from (Block0 of DreamPRVR)."""
    if config.registers.kind == "none":
        return None
    return TransformerBlocks(EuclideanMixer(config, 1), 1, config.hidden, config.dropout)


def build_registers(config: ModelConfig) -> RegisterGenerator | None:
    """The generator of registers; None where the configuration has none."""
    chosen = config.registers
    if chosen.kind == "none":
        return None
    if chosen.kind == "diffusion" and config.compat.releases_registers:
        generator = released_part(
            "registers:released_registers", "compat.register_noise, .register_times or .register_constants"
        )(config)
    else:
        generator = make_register_generator(
            config.hidden,
            chosen.num,
            config.heads,
            steps=chosen.steps,
            layers=chosen.layers,
            kind=chosen.kind,
            start=chosen.start,
            loss_timesteps=chosen.loss_timesteps,
            length=config.num_clips,
            dropout=config.dropout,
            scheduler=chosen.scheduler,
            scheduler_options=chosen.scheduler_options,
            prediction_type=chosen.prediction_type,
            num_sampling_steps=chosen.sampling_steps,
        )
    initialise(*(module for module in generator.modules() if isinstance(module, nn.Linear)))
    for module in generator.modules():  # after all matrices, whose draws stay what they were
        if isinstance(module, nn.GRU):
            _start_gru(module)
    return generator


def _start_gru(gru: nn.GRU) -> None:
    """Initialises a GRU as DreamPRVR does: Xavier for the input, orthogonal for the previous state, biases 0."""
    for name, parameter in gru.named_parameters():
        if name.startswith("weight_ih"):
            nn.init.xavier_uniform_(parameter)
        elif name.startswith("weight_hh"):
            nn.init.orthogonal_(parameter)
        else:
            nn.init.zeros_(parameter)
