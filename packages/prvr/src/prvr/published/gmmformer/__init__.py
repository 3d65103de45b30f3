"""GMMFormer (AAAI 2024) and GMMFormer v2 (arXiv 2405.13824): Gaussian windows, optimal matching, one guide vector.

Its blocks and windows are core: most systems after it have them. Presets: `gmmformer-*`.
"""

from collections.abc import Iterator

from prvr.config import COMPAT, FUSIONS, POOLINGS, ModelConfig
from prvr.config.losses import LossSettings, register_loss


def shared_positions(model: ModelConfig) -> Iterator[str]:
    """Why clips cannot share the positions of frames, as they do where padded rows change results."""
    if model.branches != "frames" and model.num_clips > model.max_frames:
        yield (
            f"num_clips={model.num_clips} is more than max_frames={model.max_frames}, whose positions clips share "
            f"with compat.padding={model.compat.padding!r}: lower num_clips, or set compat.padding='masked'"
        )


def _to_batch(model: ModelConfig) -> Iterator[str]:
    if model.padded_rows in ("drop", "fixed"):
        yield (
            f"padded_rows={model.padded_rows!r} does not go with compat.padding='to_batch', whose windows follow the "
            "padding: set padded_rows='auto', or compat.padding='masked'"
        )
    yield from shared_positions(model)


FUSIONS.register(
    "token_guided",
    "prvr.published.gmmformer.parts:token_guided",
    "A learned vector, one for clips and frames, asks each block for its weights (GMMFormer v2).",
    needs=("fusion_temperature", "first"),
)
POOLINGS.register(
    "attention",
    "prvr.published.gmmformer.parts:PooledFrames",
    "One vector of all frames (GMMFormer).",
    check=lambda model: (
        ["frame_pooling='attention' needs the frame branch: branches='both' or 'frames'"] * (model.branches == "clips")
    ),
)
COMPAT["window"].register(
    "released",
    "prvr.published.gmmformer.released_padding:released_windows",
    "Centres are i/L, keys lie on linspace(0, 1, L), each row is divided by its maximum.",
)
COMPAT["padding"].register(
    "to_batch",
    "prvr.models.rows:MASKED",
    "With window='released', the window's scale follows the longest video of the batch (GMMFormer).",
    needs=("rows",),
    check=_to_batch,
)
register_loss(
    "matching",
    "prvr.published.gmmformer.parts:Matching",
    "Each query has a clip of its own (GMMFormer v2).",
    "pooled",
    "clips",
)(LossSettings)
