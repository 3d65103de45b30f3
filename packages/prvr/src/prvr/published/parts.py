"""Registers the parts of every paper. Reading a configuration imports this module, so it imports no torch."""

from collections.abc import Iterator

from prvr.config import DECAYS, Config, ModelConfig
from prvr.published import dl_dkd, dreamprvr, gmmformer, hlformer, holmes, ms_sl, msc, ral  # noqa: F401
from prvr.published.diffusionret import model_config  # noqa: F401


def _decay(config: Config) -> Iterator[str]:
    if config.optim.name != "bert_adam":
        yield "optim.decay='released' needs optim.name='bert_adam'"
    if not isinstance(config.model, ModelConfig):
        yield "optim.decay='released' goes by names that model.kind='tokens' does not have: 'matrices'"


DECAYS.register(
    "released",
    "prvr.published.tensor_names:released_decay",
    "What the authors' optimiser decays, by their names (their norms do decay).",
    check=_decay,
)
