"""Registers the released parts. Reading a configuration imports this module, so it imports no torch."""

from collections.abc import Iterator

from prvr.config import BLOCKS, COMPAT, DECAYS, TOKEN_COMPAT, Config, ModelConfig


def _lorentz(model: ModelConfig) -> Iterator[str]:
    if not any(block.space == "lorentz" for block in model.blocks):
        return
    for key in BLOCKS["lorentz"].needs[1:]:
        if getattr(model, key) != getattr(ModelConfig, key):
            yield f"{key}={getattr(model, key)!r} needs compat.lorentz='correct': the released blocks lack it"
    if model.window != "multiply":
        yield "compat.lorentz='released' needs window='multiply'"


def _to_length(model: ModelConfig) -> Iterator[str]:
    if model.clip_construction == "frames":
        yield "clip_construction='frames' needs compat.padding='masked' or 'to_batch', got 'to_length'"


def _to_batch(model: ModelConfig) -> Iterator[str]:
    if model.padded_rows in ("drop", "fixed"):
        yield (
            f"padded_rows={model.padded_rows!r} does not go with compat.padding='to_batch', whose windows follow the "
            "padding: set padded_rows='auto', or compat.padding='masked'"
        )


def _float32(model: ModelConfig) -> Iterator[str]:
    if model.registers.scheduler == "flow":
        yield "registers.scheduler='flow' has no constants to round: set compat.register_constants='float64'"


def _stored(model: ModelConfig) -> Iterator[str]:
    if model.clip_construction != "merged" or model.start == "kernel":
        yield (
            "compat.merging='stored' needs clip_construction='merged' and start='drawn', got "
            f"{model.clip_construction!r} and {model.start!r}"
        )


def _decay(config: Config) -> Iterator[str]:
    if config.optim.name != "bert_adam":
        yield "optim.decay='released' needs optim.name='bert_adam'"
    if not isinstance(config.model, ModelConfig):
        yield "optim.decay='released' goes by names that model.kind='tokens' does not have: 'matrices'"


COMPAT["window"].register(
    "released",
    "prvr.released.padding:released_windows",
    "Centres are i/L, keys lie on linspace(0, 1, L), each row is divided by its maximum.",
)
COMPAT["padding"].register(
    "to_length",
    "prvr.released.padding:TO_LENGTH",
    "Frames are zero-padded to `max_frames`; padded rows enter the fusion's mean and the score's maximum (HLFormer).",
    needs=("rows",),
    check=_to_length,
)
COMPAT["padding"].register(
    "to_batch",
    "prvr.models.rows:MASKED",
    "With window='released', the window's scale follows the longest video of the batch (GMMFormer).",
    needs=("rows",),
    check=_to_batch,
)
COMPAT["lorentz"].register(
    "released",
    "prvr.released.lorentz_attention:ReleasedLorentzMixer",
    "Bias-free linear maps, heads with a sigmoid time, fixed curvature, head 0's time at logmap0 (HLFormer).",
    check=_lorentz,
)
COMPAT["entailment"].register(
    "released",
    "prvr.released.loss_parts:ReleasedEntailment",
    "Poolings without a mask, bounds kept by projecting the parameters, numeric clamps of 1e-8 (HLFormer).",
)
COMPAT["register_noise"].register(
    "start",
    "prvr.released.registers:start_noise",
    "Where the diffusion starts is also the noise of its targets and of every reverse step (DreamPRVR).",
)
COMPAT["register_times"].register(
    "random", "prvr.released.registers:random_times", "Time codes are frozen N(0, 0.02) numbers (DreamPRVR)."
)
COMPAT["register_constants"].register(
    "float32",
    "prvr.released.registers:round_constants",
    "The noise schedule and the rank codes of the prior are rounded to float32 (DreamPRVR).",
    check=_float32,
)
COMPAT["transport"].register(
    "released",
    "prvr.released.loss_parts:TRANSPORT",
    "Queries are padded to the most of any video, and the cosine 0 of padding enters the range of scales (Holmes).",
)
COMPAT["merging"].register(
    "stored",
    "prvr.models.clips:unit_length",
    "Frames merge as they are stored; they and the clips are scaled to unit length afterwards (MSC-PRVR).",
    needs=("lengths",),
    check=_stored,
)
TOKEN_COMPAT["alignment"].register(
    "released",
    "prvr.released.denoiser:released_token_alignment",
    "Padded words and frames take part in the maxima of eq. 10, with a cosine of 0.",
)
TOKEN_COMPAT["norms"].register("released", 1e-12, "As in the released code.")
DECAYS.register(
    "released",
    "prvr.released.tensor_names:released_decay",
    "What the authors' optimiser decays, by their names (their norms do decay).",
    check=_decay,
)
