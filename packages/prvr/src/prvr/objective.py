"""The objective: weighted loss terms by name, with the parameters that only training needs."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from prvr.config import LOSSES, AnyModelConfig, LossConfig, active_losses
from prvr.config.losses import BATCH_NEEDS
from prvr.errors import InputError
from prvr.losses import LossInputs, Negatives
from prvr.types import Batch, Labels, RetrieverOutput
from regdiff.registers import RegisterGenerator


class Objective(nn.Module):
    """Weighted sum of the loss terms whose weight is above 0 and that fit the model (HLFormer eq. 21; L_sim within it:
    DreamPRVR supplement eq. 33).

    Terms are the entries of `prvr.config.LOSSES`; each is a child module under its name.

    Args:
        config: weights and settings.
        model: configuration of the retriever.
        registers: the register generator of the retriever, which the term "diffusion" trains.
        moment_heads: those of the retriever: its heads among the terms (`prvr.losses.Term.is_moment_head`) are taken
            from there, or put there; None: they are parts of the objective.

    Raises:
        InputError: a weight for "diffusion" without the register generator.

    Examples:
        >>> from prvr.config import LossConfig, ModelConfig
        >>> Objective(LossConfig({"diversity": 0}), ModelConfig(video_dim=4, query_dim=4)).active
        ('triplet', 'info_nce_clips', 'info_nce_frames')
    """

    def __init__(
        self,
        config: LossConfig,
        model: AnyModelConfig,
        registers: RegisterGenerator | None = None,
        moment_heads: nn.ModuleDict | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.active = active_losses(config, model)
        """Names of the losses that are computed."""
        if "diffusion" in self.active and registers is None:
            raise InputError(
                f"loss.diffusion={config.weight('diffusion')} trains the register generator of the retriever: pass it "
                "to the objective, Objective(config.loss, config.model, retriever.registers)"
            )
        self._registers = (registers,)  # in a tuple, because its parameters belong to the retriever
        self.epoch = 0
        """Of the run, from 0: the weight of frame_distillation decays with it. The trainer counts it."""
        self._heads = (nn.ModuleDict() if moment_heads is None else moment_heads,)  # likewise
        for name in self.active:
            if name not in self._heads[0]:
                term = LOSSES[name].part(config[name], model)
                (self if moment_heads is None or not term.is_moment_head else moment_heads).add_module(name, term)

    def forward(
        self,
        output: RetrieverOutput,
        batch: Batch | Labels,
        negatives: Negatives = "random",
        register_targets: Float[Tensor, "v n d"] | None = None,
        warm_up: bool = False,
        generator: torch.Generator | None = None,
        noise: Float[Tensor, "2 v n d"] | None = None,
    ) -> dict[str, Float[Tensor, ""]]:
        """Weighted terms by name, and their sum as "total".

        Args:
            output: the output of the retriever for `batch`.
            batch: the batch, or its `labels`.
            negatives: negatives of the triplet terms, see `prvr.losses.triplet_loss`.
            register_targets: `(v, n, d)` targets of the registers; default: the perturbed mean of each video's queries.
            warm_up: the run is in its warm-up, in which evidence is not relabelled and transport is off.
            generator: source of all draws; None = the global one.
            noise: standard normal numbers of the proxies of texts and of videos, in place of draws.
        """
        labels = batch.labels if isinstance(batch, Batch) else batch
        inputs = LossInputs(
            output, labels, negatives, register_targets, warm_up, generator, *self._registers, noise, self.epoch
        )
        terms: dict[str, Tensor] = {}
        for name in self.active:
            for need in BATCH_NEEDS.keys() & LOSSES[name].needs:
                if (value := getattr(labels, need)) is None or len(value) == 0:
                    raise InputError(
                        f"loss.{name} needs {BATCH_NEEDS[need]}, and this batch has none: pass Batch.{need}, or set "
                        "it to 0"
                    )
            loss = (self._heads[0] if name in self._heads[0] else self).get_submodule(name)(inputs)
            parts = loss if isinstance(loss, dict) else {name: loss}
            terms |= {part: self.config.weight(name) * value for part, value in parts.items()}
        return terms | {"total": torch.stack(list(terms.values())).sum()}
