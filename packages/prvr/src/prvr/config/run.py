"""The configuration of a run: model, losses, optimiser, data, training."""

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, model_validator
from pydantic.dataclasses import dataclass

from prvr.config.losses import LOSSES, TAUGHT, LossConfig, expect_losses_fit
from prvr.config.model import ModelConfig
from prvr.config.registry import own_modules
from prvr.config.strict import STRICT
from prvr.config.token_model import TokenModelConfig
from prvr.config.training import DECAYS, DataConfig, FitConfig, OptimConfig, TrainConfig
from prvr.errors import InputError


def _kind(model: Any) -> str:
    """Tag of the record of a model; without `kind` it is a `ModelConfig`."""
    kind = model.get("kind") if isinstance(model, dict) else getattr(model, "kind", None)
    return "tokens" if kind == "tokens" else "pooled"


@dataclass(frozen=True, config=STRICT)
class Config:
    """The configuration of a run."""

    name: str
    model: Annotated[
        Annotated[ModelConfig, Tag("pooled")] | Annotated[TokenModelConfig, Tag("tokens")], Discriminator(_kind)
    ]
    loss: LossConfig = Field(default_factory=LossConfig)
    optim: OptimConfig = OptimConfig()
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()
    fit: FitConfig = FitConfig()
    imports: tuple[str, ...] = ()
    """Modules that must be imported before this is read, see `--import`. Those that registered the losses and the parts
    of the model in use are added."""

    @model_validator(mode="after")
    def _consistent(self) -> "Config":
        expect_losses_fit(self.loss, self.model)
        entries = [LOSSES[name] for name in self.loss.terms if self.loss.weight(name) > 0]
        own = [*own_modules([*entries, DECAYS[self.optim.decay]]), *self.model.own_modules]
        object.__setattr__(self, "imports", tuple(dict.fromkeys([*self.imports, *own])))
        if isinstance(self.model, ModelConfig) and self.model.branches == "none" and self.train.epochs:
            raise InputError(
                f"train.epochs={self.train.epochs}: model.branches='none' has no blocks to train, set it to 0"
            )
        taught, teacher = self.loss.taught, self.train.teacher
        if taught == "distillation" and teacher is None:
            weight = self.loss.weight(taught)
            raise InputError(f"loss.distillation={weight} needs a teacher: name a system in train.teacher")
        if teacher is not None and taught is None:
            raise InputError(f"train.teacher={teacher!r} is not read: set loss.distillation above 0, or leave it out")
        if all(self.loss.weight(name) > 0 for name in TAUGHT):
            raise InputError(f"{' and '.join(f'loss.{name}' for name in TAUGHT)} have different teachers: set one to 0")
        for problem in DECAYS[self.optim.decay].problems(self):
            raise InputError(problem)
        return self
