"""The losses of registers (DreamPRVR): the divergence of their prior, and the error of their denoiser."""

from prvr.config import AnyModelConfig, LossSettings
from prvr.losses.term import LossInputs, Scalar, Term
from prvr.published.dreamprvr import DenoisingSettings
from regdiff.registers import TextualPerturbation


class PriorKL(Term[LossSettings]):
    """KL divergence of the prior of the registers from N(0, I)."""

    def forward(self, inputs: LossInputs) -> Scalar:
        """The divergence of the prior of the registers."""
        registers = inputs.output.registers
        assert registers is not None
        assert registers.prior is not None
        return registers.prior.kl()


class Diffusion(Term[DenoisingSettings]):
    """Error of the denoiser of the registers, whose targets are by default the perturbed mean queries of each video."""

    def __init__(self, settings: DenoisingSettings, model: AnyModelConfig) -> None:
        super().__init__(settings, model)
        self.perturb = TextualPerturbation(settings.perturbation)

    def forward(self, inputs: LossInputs) -> Scalar:
        """The diffusion loss of the registers."""
        registers, targets, generator = inputs.output.registers, inputs.register_targets, inputs.register_generator
        assert registers is not None
        assert generator is not None
        if targets is None:
            weights = inputs.labels.ground_truth.to(inputs.text.dtype)
            mean_queries = weights.mT @ inputs.text / weights.sum(0)[:, None].clamp_min(1)
            targets = self.perturb(mean_queries, registers.tokens.shape[1], inputs.generator)
        return generator.loss(targets, registers, inputs.generator)["diffusion"]
