"""Videos and their texts as Gaussians, compared by samples (RAL)."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from prvr.config import COMPAT, ModelConfig
from prvr.losses.term import LossInputs, Scalar, Term
from prvr.models.layers import initialise, masked_mean
from prvr.published.blocks_of_queries import queries_of_videos
from prvr.published.ral import ProxySettings
from prvr.types import TextEmbedding
from regdiff.registers import Gaussian, PriorSampler


def proxy_matching_loss(text: Float[Tensor, "v n d"], video: Float[Tensor, "v n d"]) -> Scalar:
    r"""Contrast of the samples of texts with those of videos (proxy matching loss of RAL).

    The mean over samples a, and over their n partners p of the same video, of
    $-\log \frac{e^{a \cdot p}}{\sum_b e^{a \cdot b}}$, b all samples of the other side; averaged over both directions.

    Args:
        text: samples of the texts of each video.
        video: samples of each video.

    Examples:
        >>> samples = 9 * torch.eye(2)[:, None]
        >>> proxy_matching_loss(samples, samples).item() < 1e-6 < proxy_matching_loss(samples, samples.flip(0)).item()
        True
    """
    products = torch.einsum("vnd,wmd->vnwm", text, video)
    right = products.diagonal(dim1=0, dim2=2).mean()
    return (products.logsumexp((2, 3)).mean() + products.logsumexp((0, 1)).mean()) / 2 - right


def divergence(p: Gaussian, q: Gaussian) -> Scalar:
    """KL(p || q), averaged over rows.

    Examples:
        >>> standard = Gaussian(torch.zeros(2, 3), torch.zeros(2, 3))
        >>> divergence(Gaussian(torch.ones(2, 3), torch.zeros(2, 3)), standard).item()
        1.5
    """
    squares = p.logvar.exp() + (p.mean - q.mean) ** 2
    return 0.5 * (q.logvar - p.logvar + squares * (-q.logvar).exp() - 1).sum(-1).mean()


class Proxies(Term[ProxySettings]):
    """`proxy_matching_loss` of samples, and KL divergences of both Gaussians from N(0, I) and of text from video.

    The text of a video is the words of all its queries. A Gaussian is read as by `regdiff.registers.PriorSampler`, but
    the second readout is the logarithm of the standard deviation.
    """

    def __init__(self, settings: ProxySettings, model: ModelConfig) -> None:
        super().__init__(settings, model)
        self.text = PriorSampler(model.hidden, None)
        self.video = PriorSampler(model.hidden, None)
        initialise(*(module for module in self.modules() if isinstance(module, nn.Linear)))
        self.pad_words = COMPAT["padding"][model.compat.padding].part.words

    def forward(self, inputs: LossInputs) -> dict[str, Tensor]:
        """The matching of samples, and the divergences; a video without a query counts as one without words."""
        text, frames, labels = inputs.output.text, inputs.output.video.frames, inputs.labels
        assert isinstance(text, TextEmbedding)
        assert frames is not None
        queries, own = queries_of_videos(labels.query_to_video, labels.videos, labels.most_queries)
        words = (text.words[queries] * own[..., None, None]).flatten(1, 2)
        mask = (text.mask[queries] & own[..., None]).flatten(1, 2)
        mask = mask | ~mask.any(1, keepdim=True)
        pooled = masked_mean(words, mask)
        if self.pad_words is not None:
            words, mask = self.pad_words(words, mask, text.words.shape[1])
        whole = F.normalize(F.normalize(frames, dim=-1).sum(1), dim=-1)  # rows of padding are 0
        priors = self.text(words, mask, pooled), self.video(frames, inputs.output.video.frame_mask, whole)
        gaussians = [Gaussian(prior.mean, 2 * prior.logvar) for prior in priors]
        noise = (None, None) if inputs.noise is None else inputs.noise
        samples = [
            gaussian.sample(self.settings.samples, inputs.generator, z)
            for gaussian, z in zip(gaussians, noise, strict=True)
        ]
        beside_standard = gaussians
        if self.settings.form == "released":
            beside_standard, gaussians = (
                [Gaussian(sample.mean(1), each.logvar) for sample, each in zip(samples, pair, strict=True)]
                for pair in (priors, gaussians)
            )
        standard = sum(each.kl() for each in beside_standard)
        alignment = self.settings.alignment * (standard + divergence(*gaussians))
        return {"proxy_matching": proxy_matching_loss(*samples), "proxy_alignment": alignment}
