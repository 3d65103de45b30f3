"""A whole run: model, losses, optimiser, data, training."""

from pydantic import model_validator
from pydantic.dataclasses import dataclass

from prvr.config.losses import LossConfig
from prvr.config.model import ModelConfig
from prvr.config.strict import STRICT
from prvr.config.training import DataConfig, OptimConfig, TrainConfig

__all__ = ["Config"]


@dataclass(frozen=True, config=STRICT)
class Config:
    """A whole run."""

    name: str
    model: ModelConfig
    loss: LossConfig = LossConfig()
    optim: OptimConfig = OptimConfig()
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()

    @model_validator(mode="after")
    def _losses_have_their_parts(self) -> "Config":
        registers = self.model.registers.kind
        if self.loss.diffusion > 0 and registers != "diffusion":
            raise ValueError(
                f"loss.diffusion={self.loss.diffusion} needs model.registers.kind='diffusion', not {registers!r}"
            )
        if self.loss.prior_kl > 0 and registers != "diffusion":
            raise ValueError(
                f"loss.prior_kl={self.loss.prior_kl} needs model.registers.kind='diffusion', not {registers!r}"
            )
        loss, branches = self.loss, self.model.branches
        weights = [loss.triplet, loss.diversity, loss.query_structure, loss.entailment, loss.prior_kl, loss.diffusion]
        weights += [loss.info_nce_clips] * (branches != "frames") + [loss.info_nce_frames] * (branches != "clips")
        if not any(weights):
            raise ValueError("every loss weight is 0: turn at least one term on, for example loss.triplet=1")
        if self.optim.decay == "released" and self.optim.name != "bert_adam":
            raise ValueError("optim.decay='released' needs optim.name='bert_adam'")
        return self
