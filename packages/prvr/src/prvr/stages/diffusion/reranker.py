"""The re-ranker of candidates: it generates a distribution over the best candidates of any retriever."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from prvr.config import config_to_dict
from prvr.errors import InputError
from prvr.models.pretrained import PretrainedModel
from prvr.scoring import full_precision
from prvr.stages.diffusion.build import build_reranker
from prvr.stages.diffusion.checks import expect_gallery, expect_pairs, expect_shape, expect_target, expect_timestep
from prvr.stages.diffusion.config import RerankerConfig, reranker_config_from_dict
from prvr.stages.diffusion.denoiser import PreparedPairs
from prvr.stages.diffusion.pooling import Pairs
from prvr.stages.merge import best_columns, merge_top_k
from prvr.types import Direction

_CARD = """---
library_name: prvr
tags:
- text-video-retrieval
- diffusion
- prvr
---
# A re-ranker of candidates for text-video retrieval

It generates a distribution over the best candidates of a retriever (DiffusionRet, Jin et al. 2023). Load it with
`prvr.CandidateReranker.from_pretrained(PATH)`; inputs are the text and frame embeddings of the retriever it was trained
on (`config.json`: `width`, `trained_on`), as that retriever gives them.
"""


class CandidateReranker(
    PretrainedModel,
    library_name="prvr",
    tags=["text-video-retrieval", "diffusion"],
    model_card_template=_CARD,
    coders={RerankerConfig: (config_to_dict, reranker_config_from_dict)},
):
    r"""DiffusionRet's generator (Jin et al., ICCV 2023): from noise to a distribution over candidates, in K steps.

    For a query and n candidates x_0 is the distribution over those that are right. Training noises it,
    $x_k = \sqrt{\bar\alpha_k} x_0 + \sqrt{1 - \bar\alpha_k} \epsilon$, and teaches the network to say x_0 again
    (eq. 7 to 9); `sample` starts from noise; `rerank` does so for the best candidates of each query and adds the
    probabilities to their scores. The retriever stays as it is: any that has one vector per text and several per video.

    Shapes: in direction "t2v" text is `(b, d)`, frames `(b, n, f, d)` and their mask `(b, n, f)`; in direction "v2t"
    text is `(b, n, d)`, frames `(b, f, d)` and their mask `(b, f)`. Candidates without the axis b are the same for
    every row, which costs no copies: the items of a training batch.

    Args:
        config: Sizes, diffusion, loss, and what is released behaviour.
        direction: "t2v" ranks videos for a text, "v2t" texts for a video.

    Examples:
        >>> import torch
        >>> reranker = CandidateReranker(RerankerConfig(width=8, steps=10, candidates=3))
        >>> text, frames, mask = torch.randn(4, 8), torch.randn(6, 5, 8), torch.ones(6, 5, dtype=torch.bool)
        >>> right = torch.eye(4, 6, dtype=torch.bool)
        >>> reranker.loss(right, text, frames, mask).shape
        torch.Size([])
        >>> scores = torch.rand(4, 6)
        >>> ((reranker.rerank(scores, text, frames, mask) - scores) > 0).sum(1).tolist()
        [3, 3, 3, 3]
    """

    def __init__(self, config: RerankerConfig, direction: Direction = "t2v") -> None:
        super().__init__()
        self.config = config
        self.direction: Direction = direction
        # What config.json holds: where `config` is a dataclass the mixin would forget every other argument.
        self._hub_mixin_config = config_to_dict(config) | {"direction": direction}
        parts = build_reranker(config, direction)
        self.view = parts.view
        self.pool = parts.pool
        self.denoiser = parts.denoiser
        self.output = parts.output
        self.process = parts.process

    @classmethod
    def from_config_file(cls, values: Mapping[str, Any]) -> "CandidateReranker":
        """A new one as `config.json` describes it, which holds the direction beside the configuration."""
        direction = values.get("direction", "t2v")
        if direction not in ("t2v", "v2t"):
            raise InputError(f"direction: got {direction!r}, expected 't2v' (a text, candidate videos) or 'v2t'")
        return cls(reranker_config_from_dict(values), direction)

    @property
    def _like(self) -> Tensor:
        return self.denoiser.key.weight

    def _pairs(self, text: Tensor, frames: Tensor, frame_mask: Tensor) -> PreparedPairs:
        expect_pairs(self.view, self.config.width, text, frames, frame_mask)
        pairs = self.view.pair(self.pool, text.to(self._like.dtype), frames.to(self._like.dtype), frame_mask)
        return self.denoiser.prepare(*pairs)

    def _full_precision(self) -> Any:
        # The softmax over candidates has no 1 / sqrt(d): in half precision its logits are off by tenths.
        return full_precision(self._like.device)

    def denoise(
        self,
        x: Float[Tensor, "b n"],
        timestep: Int[Tensor, "b"],
        text: Float[Tensor, "*t d"],
        frames: Float[Tensor, "*v f d"],
        frame_mask: Bool[Tensor, "*v f"],
    ) -> Float[Tensor, "b n"]:
        """The prediction of x_0 from x_k.

        Args:
            x: `(b, n)` the noised distribution.
            timestep: `(b,)` k in [0, K).
            text, frames, frame_mask: see the class.

        Raises:
            ValueError: a shape or width that does not fit, a mask that is not boolean, or a step that was not trained.
        """
        expect_timestep(timestep, self.config.steps)
        with self._full_precision():
            pairs = self._pairs(text, frames, frame_mask)
            expect_shape("x", x, pairs.products)
            return self.output.clean(self.denoiser(x.to(self._like.dtype), timestep, pairs))

    def loss(
        self,
        target: Float[Tensor, "b n"] | Bool[Tensor, "b n"],
        text: Float[Tensor, "*t d"],
        frames: Float[Tensor, "*v f d"],
        frame_mask: Bool[Tensor, "*v f"],
        noise: Float[Tensor, "..."] | None = None,
        timesteps: Int[Tensor, "b"] | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, ""]:
        """The generation loss (eq. 9), the mean over rows.

        Args:
            target: `(b, n)` which candidates are right, at least one in each row; or x_0 itself.
            text, frames, frame_mask: see the class.
            noise: `(b, n)` epsilon, instead of a draw.
            timesteps: `(b,)` k, instead of one drawn uniformly for each row.
            generator: source of the draws.

        Raises:
            ValueError: as `denoise`, or (on the CPU) a row whose candidates are all wrong.
        """
        expect_target(target)
        if timesteps is not None:
            expect_timestep(timesteps, self.config.steps)
        with self._full_precision():
            pairs = self._pairs(text, frames, frame_mask)
            return self._loss(target, pairs, noise, timesteps, generator)

    def _loss(self, target: Tensor, pairs: PreparedPairs, noise: Any, timesteps: Any, generator: Any) -> Tensor:
        expect_shape("target", target, pairs.products)
        clean = self.output.target(target) if target.dtype == torch.bool else target
        return self.process.loss(clean.to(self._like.dtype), pairs, noise, timesteps, generator)

    def loss_of_pairs(
        self,
        target: Float[Tensor, "b n"] | Bool[Tensor, "b n"],
        pairs: Pairs,
        noise: Float[Tensor, "b n"] | None = None,
        timesteps: Int[Tensor, "b"] | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, ""]:
        """`loss` of queries and candidates that the text-frame attention has already pooled, which has no parameters.

        Args:
            target: as in `loss`.
            pairs: as `view.pair` or `view.gather` give them.
            noise, timesteps, generator: as in `loss`.
        """
        expect_target(target)
        with self._full_precision():
            pairs = Pairs(*(x.to(self._like) for x in pairs))
            return self._loss(target, self.denoiser.prepare(*pairs), noise, timesteps, generator)

    def sample(
        self,
        text: Float[Tensor, "*t d"],
        frames: Float[Tensor, "*v f d"],
        frame_mask: Bool[Tensor, "*v f"],
        *,
        initial: Float[Tensor, "b n"] | None = None,
        num_steps: int | None = None,
        timesteps: Sequence[int] | None = None,
        noise: Float[Tensor, "..."] | None = None,
        generator: torch.Generator | None = None,
        return_chain: bool = False,
    ) -> Float[Tensor, "*k b n"]:
        """Generate x_0; gradients flow through every step.

        Args:
            text, frames, frame_mask: see the class.
            initial: `(b, n)` x_K, instead of a draw.
            num_steps: number of steps; None = `config.sampling_steps`.
            timesteps: an explicit, strictly descending list of steps instead.
            noise: with sampler "ddpm", that of the steps: `(b, n)` or one for each, `(steps, b, n)`.
            generator: source of the draws.
            return_chain: return x after each step, `(steps, b, n)`, the result last: figure 5 of the paper.

        Raises:
            ValueError: as `denoise`, or more steps than trained.
        """
        with self._full_precision():
            pairs = self._pairs(text, frames, frame_mask)
            if initial is not None:
                expect_shape("initial", initial, pairs.products)
                initial = initial.to(self._like.dtype)
            return self.process.sample(initial, pairs, num_steps, timesteps, noise, generator, return_chain)

    @torch.no_grad()
    def rerank(
        self,
        scores: Float[Tensor, "q v"],
        text: Float[Tensor, "t d"],
        frames: Float[Tensor, "w f d"],
        frame_mask: Bool[Tensor, "w f"],
        *,
        top_k: int | None = None,
        weight: float | None = None,
        initial: Float[Tensor, "q k"] | None = None,
        num_steps: int | None = None,
        timesteps: Sequence[int] | None = None,
        seed: int = 0,
        batch_size: int = 256,
    ) -> Float[Tensor, "q v"]:
        """Scores whose `top_k` highest in each row have `weight` times their generated probability added.

        What is added is never negative, so that the candidates that are re-ranked stay ahead of all others. Everything
        is deterministic: unless `initial` is given, every row starts from the same `top_k` numbers of the seed, one for
        each rank, so that a query gets the same list alone, in a batch and in another order.

        Args:
            scores: one row for each that asks: `(texts, videos)` in direction "t2v", `(videos, texts)` in "v2t".
            text: `(texts, d)` embeddings of all texts.
            frames: `(videos, f, d)` frame embeddings of all videos; they may be of lower precision and on another
                device, and are taken from there a bounded number at a time.
            frame_mask: `(videos, f)` True = valid.
            top_k: how many; None = `config.candidates`, or the whole gallery if that is smaller, or as `initial` has.
            weight: None = `config.weight`.
            initial: `(q, top_k)` x_K of each row, its candidates in descending order of their scores.
            num_steps, timesteps: as in `sample`.
            seed: the seed of the noise.
            batch_size: rows whose candidates are denoised together; it changes memory, and the result by rounding.

        Raises:
            ValueError: a shape or width that does not fit, `top_k` beyond the gallery, a score or text that is not a
                number (a query without a valid word), a video without a valid frame, or more steps than trained.
        """
        expect_gallery(self.view, self.config.width, scores, text, frames, frame_mask)
        if top_k is None:
            top_k = min(self.config.candidates, scores.shape[1]) if initial is None else initial.shape[1]
        weight = self.config.weight if weight is None else weight
        if initial is not None and initial.shape != (len(scores), top_k):
            raise InputError(
                f"initial: got shape {tuple(initial.shape)}, expected {(len(scores), top_k)}, one number for each "
                "candidate"
            )
        if batch_size < 1:
            raise InputError(f"batch_size: got {batch_size}, expected at least 1")
        if not 0 <= weight < float("inf"):
            raise InputError(f"weight: got {weight}, expected a finite number of at least 0")
        text, found = text.to(self._like), scores.clone()
        for first in range(0, len(scores), batch_size):
            rows = slice(first, min(first + batch_size, len(scores)))
            columns = best_columns(scores[rows], top_k)
            pairs = self.view.gather(self.pool, text, frames, frame_mask, rows, columns)
            start = None if initial is None else initial[rows]
            likely = self.probabilities(pairs, initial=start, num_steps=num_steps, timesteps=timesteps, seed=seed)
            new = self.combined(scores[rows].gather(1, columns), likely, weight)
            found[rows] = merge_top_k(scores[rows], columns, new)
        return found

    def combined(
        self, scores: Float[Tensor, "b n"], probabilities: Float[Tensor, "b n"], weight: float
    ) -> Float[Tensor, "b n"]:
        """New scores of candidates from their scores and their generated probabilities, see `config.combine`.

        Args:
            scores: `(b, n)`, best first.
            probabilities: `(b, n)` as `probabilities` gives them.
            weight: the weight of the probabilities.
        """
        base = scores if self.config.combine == "add" else scores[:, :1].expand_as(scores)
        return base + weight * probabilities.to(base)

    @torch.no_grad()
    def probabilities(
        self,
        pairs: Pairs,
        *,
        initial: Float[Tensor, "b n"] | None = None,
        num_steps: int | None = None,
        timesteps: Sequence[int] | None = None,
        seed: int = 0,
    ) -> Float[Tensor, "b n"]:
        """What `rerank` adds: the generated probability of each candidate, of queries that are already pooled.

        Args:
            pairs: as `view.gather` gives them.
            initial, num_steps, timesteps, seed: as in `rerank`.
        """
        with self._full_precision():
            prepared = self.denoiser.prepare(*(x.to(self._like) for x in pairs))
            start, noise = self.process.draw(prepared.products, num_steps, timesteps, seed)
            start = start if initial is None else initial.to(self._like)
            sample = self.process.sample(start, prepared, num_steps, timesteps, noise, None, False)
            return self.output.probability(sample)

    def expect_trained_on(self, name: str) -> None:
        """Refuse to re-rank another retriever than the one whose embeddings it was trained on.

        Args:
            name: the name of the retriever, as it was given in `config.trained_on`.

        Raises:
            ValueError: it was another; nothing is known where `config.trained_on` is None.
        """
        known = self.config.trained_on
        if known is not None and known != name:
            raise InputError(
                f"this re-ranker was trained on the embeddings of {known!r}, not of {name!r}: their numbers mean "
                f"something else, whatever their width; train one on {name!r}"
            )

    @classmethod
    def load_released(
        cls, state_dict: Mapping[str, Tensor], config: Mapping[str, Any], direction: Direction = "t2v"
    ) -> "CandidateReranker":
        """A re-ranker from the authors' tensors and options, with everything the released code does differently.

        Args:
            state_dict: tensors (or arrays) by the authors' names; of one denoiser, or of both under prefixes.
            config: the authors' options, see `prvr.released.reranker.released_reranker_config`.
            direction: "t2v" or "v2t".

        Returns:
            In eval mode and in the checkpoint's precision.

        Raises:
            CheckpointError: a tensor missing, unknown or of another shape, or an option missing.
        """
        from prvr.released.reranker import (
            fill_released_denoiser,
            released_reranker_config,
            released_reranker_state,
        )

        weights = released_reranker_state(state_dict, direction)
        like = weights["query.weight"]
        reranker = cls(released_reranker_config(config, direction, like.shape[-1]), direction).to(like.dtype)
        fill_released_denoiser(reranker.denoiser, weights)
        return reranker.eval()
