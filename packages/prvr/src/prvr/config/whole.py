"""A whole run: model, losses, optimiser, data, training."""

from typing import Annotated, Any

from pydantic import Discriminator, Tag, model_validator
from pydantic.dataclasses import dataclass

from prvr.config.losses import LossConfig
from prvr.config.model import ModelConfig
from prvr.config.strict import STRICT
from prvr.config.token_model import TokenModelConfig
from prvr.config.training import DataConfig, OptimConfig, TrainConfig
from prvr.errors import InputError

__all__ = ["Config"]


def _kind(model: Any) -> str:
    """Which record a model is; one that does not say is a `ModelConfig`."""
    kind = model.get("kind") if isinstance(model, dict) else getattr(model, "kind", None)
    return "tokens" if kind == "tokens" else "pooled"


@dataclass(frozen=True, config=STRICT)
class Config:
    """A whole run."""

    name: str
    model: Annotated[
        Annotated[ModelConfig, Tag("pooled")] | Annotated[TokenModelConfig, Tag("tokens")], Discriminator(_kind)
    ]
    loss: LossConfig = LossConfig()
    optim: OptimConfig = OptimConfig()
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()

    @model_validator(mode="after")
    def _losses_have_their_parts(self) -> "Config":
        if isinstance(self.model, TokenModelConfig):
            _expect_token_losses(self.loss)
            return self
        registers = self.model.registers.kind
        if self.loss.diffusion > 0 and registers != "diffusion":
            raise InputError(
                f"loss.diffusion={self.loss.diffusion} needs model.registers.kind='diffusion', not {registers!r}"
            )
        if self.loss.prior_kl > 0 and registers != "diffusion":
            raise InputError(
                f"loss.prior_kl={self.loss.prior_kl} needs model.registers.kind='diffusion', not {registers!r}"
            )
        if self.loss.prior_kl > 0 and self.model.registers.start == "gaussian":
            raise InputError(
                f"loss.prior_kl={self.loss.prior_kl} needs model.registers.start='prior_mean' or 'prior_sample': "
                "'gaussian' has no prior"
            )
        loss, branches = self.loss, self.model.branches
        weights = [loss.triplet, loss.diversity, loss.query_structure, loss.entailment, loss.prior_kl, loss.diffusion]
        weights += [loss.contrastive]
        weights += [loss.info_nce_clips] * (branches != "frames") + [loss.info_nce_frames] * (branches != "clips")
        if not any(weights):
            raise InputError("every loss weight is 0: turn at least one term on, for example loss.triplet=1")
        return self

    @model_validator(mode="after")
    def _decay_has_its_optimiser(self) -> "Config":
        if self.optim.decay == "released" and self.optim.name != "bert_adam":
            raise InputError("optim.decay='released' needs optim.name='bert_adam'")
        if self.optim.decay == "released" and isinstance(self.model, TokenModelConfig):
            raise InputError("optim.decay='released' goes by names that model.kind='tokens' does not have: 'matrices'")
        return self


def _expect_token_losses(loss: LossConfig) -> None:
    """Refuse terms that compare one vector per query with clips, frames or registers."""
    for name in ("triplet", "info_nce_clips", "info_nce_frames", "entailment", "prior_kl", "diffusion"):
        if getattr(loss, name) > 0:
            raise InputError(
                f"loss.{name}={getattr(loss, name)} needs a model with one vector per query, which model.kind='tokens' "
                "is not: set it to 0 and loss.contrastive to 1"
            )
    if not loss.contrastive > 0:
        raise InputError("model.kind='tokens' needs loss.contrastive above 0: no other term compares it with videos")
