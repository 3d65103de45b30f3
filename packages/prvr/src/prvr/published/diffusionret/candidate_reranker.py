"""The re-ranker of DiffusionRet: it generates a distribution over the best candidates of a retriever."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

import prvr
from prvr.config import config_to_dict, validated
from prvr.config.registry import named_parts
from prvr.errors import InputError
from prvr.models.pretrained import PretrainedModel
from prvr.published.diffusionret.network import (
    CandidateDenoiser,
    Pairs,
    PreparedPairs,
    RerankerInputs,
    Rows,
    beta_schedule,
    pooled_pairs,
)
from prvr.published.diffusionret.run_config import COMPAT, RerankerConfig
from prvr.scoring import full_precision
from prvr.stages.matrix import EncodedSplit, best_columns, merge_top_k
from prvr.types import Direction, VideoEmbedding, query_vectors
from regdiff import ConditionalDiffusion, KLToTarget, make_scheduler
from regdiff.losses import mse
from regdiff.noise import standard_normal

_SHAPES = {
    "t2v": "text (b, d) and frames (b, n, f, d), or (n, f, d) for the same candidates in every row",
    "v2t": "text (b, n, d), or (n, d) for the same candidates in every row, and frames (b, f, d)",
}
"""What a query and its candidates are, by direction."""


Text = Float[Tensor, "*t d"]
Frames = Float[Tensor, "*v f d"]
FrameMask = Bool[Tensor, "*v f"]
"""Embeddings of texts, and of the frames of videos with their mask, see `CandidateReranker`."""
Columns = Int[Tensor, "r k"]
"""The candidates of each row, as indices in the gallery."""


def reranker_inputs(encoded: EncodedSplit, config: RerankerConfig) -> RerankerInputs:
    """The embeddings of a split: of videos their frames, or their clips where they have no frames.

    Raises:
        ValueError: the retriever has neither, or they have another width than the re-ranker.
    """
    video = VideoEmbedding.cat(encoded.videos)
    rows, mask = (video.clips, None) if video.frames is None else (video.frames, video.frame_mask)
    if rows is None:
        raise InputError("a re-ranker reads frames or clips of videos, and this retriever has neither")
    mask = rows.new_ones(rows.shape[:2], dtype=torch.bool) if mask is None else mask.clone()
    # Copies: what was encoded in inference mode cannot be used in training.
    text, frames = query_vectors(encoded.text).clone(), rows.clone()
    _expect_embeddings(config.width, text, frames, mask)
    return RerankerInputs(text, frames, mask)


class Process(NamedTuple):
    """Denoising diffusion of the distribution over candidates (DiffusionRet, eq. 7 to 9), with x_0 predicted.

    Attributes:
        training: has the loss, which reads scores, because their logarithm is exact.
        sampling: has the sampler, which reads x_0.
    """

    training: ConditionalDiffusion
    sampling: ConditionalDiffusion


class CandidateReranker(PretrainedModel):
    r"""DiffusionRet's generator (Jin et al., ICCV 2023): from noise to a distribution over candidates, in K steps.

    For a query and n candidates, x_0 is the distribution over the relevant ones. Training adds noise,
    $x_k = \sqrt{\bar\alpha_k} x_0 + \sqrt{1 - \bar\alpha_k} \epsilon$, and the network predicts x_0 (eq. 7 to 9);
    `sample` starts from noise; `rerank` does so for the best candidates of each query and adds the probabilities to
    their scores. It works with any frozen retriever that has one vector per text and several per video.

    Shapes: in direction "t2v" text is `(b, d)`, frames `(b, n, f, d)` and their mask `(b, n, f)`; in direction "v2t"
    text is `(b, n, d)`, frames `(b, f, d)` and their mask `(b, f)`. Candidates without the axis b are the same for
    every row, and their frames are not copied: for example all items of a training batch.

    DDPM is DDIM with eta = 1 (Song et al. 2021). The control `process="one_step"`, which is not in the paper, is the
    same with a network that reads neither x nor the step, called once. The loss "kl" is KL(x_0 || softmax(temperature *
    scores)) per row (eq. 9), of an x_0 with -1 its positive part; "mse" the squared error of the predicted x_0 (table
    3a of the paper).

    Args:
        config: sizes, diffusion, loss, and released behaviour.
        direction: "t2v" ranks videos for a text, "v2t" texts for a video.

    Examples:
        >>> import torch
        >>> reranker = CandidateReranker(RerankerConfig(width=8, steps=10, candidates=3))
        >>> text, frames, mask = torch.randn(4, 8), torch.randn(6, 5, 8), torch.ones(6, 5, dtype=torch.bool)
        >>> relevant = torch.eye(4, 6, dtype=torch.bool)
        >>> reranker.loss(relevant, text, frames, mask).shape
        torch.Size([])
        >>> scores = torch.rand(4, 6)
        >>> ((reranker.rerank(scores, text, frames, mask) - scores) > 0).sum(1).tolist()
        [3, 3, 3, 3]
    """

    def __init__(self, config: RerankerConfig, direction: Direction = "t2v") -> None:
        super().__init__()
        if direction not in [*_SHAPES]:  # a value from a file may not be hashable
            raise InputError(f"direction: got {direction!r}, expected 't2v' (videos for a text) or 'v2t'")
        self.config = config
        self.direction: Direction = direction
        # The content of config.json: with a dataclass as `config`, the mixin forgets all other arguments.
        self._hub_mixin_config = config_to_dict(config) | {"direction": direction}
        entries = named_parts(COMPAT, config.compat)
        self.pool = entries["pooling"].part(config.attention_temperature)
        self.denoiser: CandidateDenoiser = entries["decoder"].part(config.width, config.steps)
        self.output = entries["output"].part(config)
        self.divergence = KLToTarget(config.loss_temperature)
        scheduler = make_scheduler(
            "ddim",
            config.steps,
            prediction_type="sample",
            trained_betas=beta_schedule(config),
            timestep_spacing=config.spacing,
        )
        # Methods and no closures: a copy of the re-ranker has a network of its own. A record: they are no parts of it.
        self.process = Process(
            ConditionalDiffusion(self._scores, scheduler, loss_fn=self._loss),
            ConditionalDiffusion(self._clean, scheduler, eta=1.0 if config.sampler == "ddpm" else 0.0),
        )

    @classmethod
    def from_config_file(cls, values: Mapping[str, Any]) -> "CandidateReranker":
        """A new re-ranker from the content of `config.json`, which holds the configuration and the direction."""
        options = dict(values)
        direction = options.pop("direction", "t2v")
        return cls(validated(RerankerConfig, options, "re-ranker configuration"), direction)

    def _scores(self, x: Tensor, timestep: Tensor, pairs: PreparedPairs) -> Tensor:
        if self.config.process == "one_step":
            x, timestep = torch.zeros_like(x), torch.zeros_like(timestep)
        return self.denoiser(x, timestep, pairs)

    def _clean(self, x: Tensor, timestep: Tensor, pairs: PreparedPairs) -> Tensor:
        return self.output.clean(self._scores(x, timestep, pairs))

    def _loss(self, scores: Tensor, clean: Tensor) -> Tensor:
        if self.config.loss == "mse":
            return mse(self.output.clean(scores), clean)
        positive = clean.clamp_min(0)
        return self.divergence(scores, positive / positive.sum(-1, keepdim=True))

    @property
    def _like(self) -> Tensor:
        return self.denoiser.key.weight

    def _full_precision(self) -> Any:
        # The softmax over candidates has no 1 / sqrt(d): in half precision its logits are off by tenths.
        return full_precision(self._like.device)

    def _pairs(self, text: Tensor, frames: Tensor, frame_mask: Tensor) -> Pairs:
        _expect_embeddings(self.config.width, text, frames, frame_mask)
        texts, videos = text.shape[:-1], frames.shape[:-2]
        rows, candidates = (texts, videos) if self.direction == "t2v" else (videos, texts)
        if len(rows) != 1 or not candidates or candidates[:-1] not in ((), rows):
            raise InputError(
                f"text and frames: got shapes {tuple(text.shape)} and {tuple(frames.shape)}, expected in direction "
                f"{self.direction!r} {_SHAPES[self.direction]}"
            )
        inputs = RerankerInputs(
            text.flatten(0, -2).to(self._like.dtype), frames.flatten(0, -3), frame_mask.flatten(0, -2)
        )
        columns = torch.arange(candidates.numel(), device=text.device).view(candidates)
        return self.pairs(inputs, torch.arange(*rows, device=text.device), columns.expand(*rows, -1))

    def pairs(self, inputs: RerankerInputs, rows: Int[Tensor, " r"], columns: Columns) -> Pairs:
        """Queries and candidates, the videos pooled for their texts."""
        return pooled_pairs(self.pool, inputs, self.direction, rows, columns)

    def denoise(
        self,
        x: Rows,
        timestep: Int[Tensor, "b"],
        text: Text,
        frames: Frames,
        frame_mask: FrameMask,
    ) -> Rows:
        """The prediction of x_0 from x_k.

        Args:
            x: `(b, n)` the noised distribution.
            timestep: `(b,)` k in [0, K).
            text, frames, frame_mask: see the class.

        Raises:
            ValueError: a shape or width that does not fit, a mask that is not boolean, or a step that was not trained.
        """
        if timestep.device.type == "cpu" and bool(((timestep < 0) | (timestep >= self.config.steps)).any()):
            raise InputError(f"timestep: got {timestep.tolist()}, expected 0 to {self.config.steps - 1}")
        with self._full_precision():
            pairs = self.denoiser.prepare(*self._pairs(text, frames, frame_mask))
            _expect_shape("x", x, pairs.products)
            return self.output.clean(self.denoiser(x.to(self._like.dtype), timestep, pairs))

    def loss(
        self,
        target: Rows | Bool[Tensor, "b n"],
        text: Text,
        frames: Frames,
        frame_mask: FrameMask,
        noise: Float[Tensor, "..."] | None = None,
        timesteps: Int[Tensor, "b"] | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, ""]:
        """The generation loss (eq. 9), the mean over rows.

        Args:
            target: `(b, n)` the relevant candidates, at least one in each row; or x_0 itself.
            text, frames, frame_mask: see the class.
            noise: `(b, n)` epsilon; None draws it.
            timesteps: `(b,)` k; None draws one uniformly for each row.
            generator: source of the draws.

        Raises:
            ValueError: as `denoise`, or (on the CPU) a row without a relevant candidate.
        """
        with self._full_precision():
            pairs = self._pairs(text, frames, frame_mask)
        return self.loss_of_pairs(target, pairs, noise=noise, timesteps=timesteps, generator=generator)

    def loss_of_pairs(
        self,
        target: Rows | Bool[Tensor, "b n"],
        pairs: Pairs,
        **draws: Any,
    ) -> Float[Tensor, ""]:
        """`loss` of pooled queries and candidates.

        Args:
            target: as in `loss`.
            pairs: the result of `pairs`.
            draws: noise, timesteps and generator, as in `loss`.
        """
        with self._full_precision():
            prepared = self.denoiser.prepare(*(x.to(self._like) for x in pairs))
            _expect_shape("target", target, prepared.products)
            if target.device.type == "cpu":  # reading a GPU would mean waiting
                answered = (target > 0).any(1)
                if not bool(answered.all()):
                    row = int(answered.int().argmin())
                    raise InputError(f"target: row {row} has no relevant candidate: add one, or remove the row")
            clean = self.output.target(target) if target.dtype == torch.bool else target
            return self.process.training.loss(clean.to(self._like.dtype), prepared, **draws)

    def sample(
        self,
        text: Text,
        frames: Frames,
        frame_mask: FrameMask,
        *,
        initial: Rows | None = None,
        **options: Any,
    ) -> Float[Tensor, "*k b n"]:
        """Generate x_0; gradients flow through every step.

        Args:
            text, frames, frame_mask: see the class.
            initial: `(b, n)` x_K; None draws it.
            options: `num_steps` (None for `config.sampling_steps`), `timesteps`, `noise`, `generator` and
                `return_chain` of [ConditionalDiffusion.sample][regdiff.ConditionalDiffusion.sample].

        Raises:
            ValueError: as `denoise`, or more steps than trained.
        """
        with self._full_precision():
            return self._sample(self._pairs(text, frames, frame_mask), initial, **options)

    def _sample(self, pairs: Pairs, initial: Tensor | None, seed: int | None = None, **options: Any) -> Tensor:
        """Samples; with a seed all noise is the same in every row, so that rows do not depend on each other."""
        prepared, sampling = self.denoiser.prepare(*(x.to(self._like) for x in pairs)), self.process.sampling
        like, (rows, columns) = prepared.products, prepared.products.shape
        if options.get("num_steps") is None and options.get("timesteps") is None:
            options["num_steps"] = 1 if self.config.process == "one_step" else self.config.sampling_steps
        if initial is not None:
            _expect_shape("initial", initial, like)
        if seed is not None:
            generator = torch.Generator("cpu").manual_seed(seed)

            def same(*steps: int) -> Tensor:
                noise = torch.randn(*steps, 1, columns, generator=generator, device="cpu")
                return noise.to(like).expand(*steps, rows, columns)

            drawn = same()
            initial = drawn if initial is None else initial
            if sampling.eta > 0:
                options["noise"] = same(len(sampling.stages(options.get("num_steps"), options.get("timesteps"))))
        elif initial is None:
            initial = standard_normal(like.shape, like, options.get("generator"))
        return sampling.sample(initial.to(like), prepared, **options)

    @torch.no_grad()
    def probabilities(
        self,
        inputs: RerankerInputs,
        rows: slice,
        columns: Columns,
        initial: Float[Tensor, "r k"] | None = None,
        *,
        seed: int = 0,
        **options: Any,
    ) -> Float[Tensor, "r k"]:
        """The generated probability of each candidate.

        Args:
            inputs: embeddings of all texts and videos.
            rows: texts in direction "t2v", videos in direction "v2t".
            columns: the candidates of each row.
            initial, seed, options: as in `rerank`.
        """
        pairs = self.pairs(inputs, torch.arange(rows.start, rows.stop, device=columns.device), columns)
        with self._full_precision():
            return self.output.probability(self._sample(pairs, initial, seed=seed, **options))

    def combined(self, scores: Rows, probabilities: Rows, weight: float | None = None) -> Rows:
        """New scores of candidates from their scores and their generated probabilities, see `config.combine`.

        Args:
            scores: `(b, n)`, best first.
            probabilities: `(b, n)` the result of `probabilities`.
            weight: the weight of the probabilities; None for `config.weight`.
        """
        weight = self.config.weight if weight is None else weight
        base = scores if self.config.combine == "add" else scores[:, :1]
        return base + weight * probabilities.to(base)

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
        seed: int = 0,
        batch_size: int = 256,
        **options: Any,
    ) -> Float[Tensor, "q v"]:
        """Adds `weight` times the generated probability to the scores of the `top_k` best columns of each row.

        Probabilities are not negative, so candidates stay ahead of all other columns. The result is deterministic:
        unless `initial` is given, every row starts from the same `top_k` numbers of the seed, one for each rank. So a
        query gets the same list alone, in a batch and in another order.

        Args:
            scores: `(texts, videos)` in direction "t2v", `(videos, texts)` in "v2t".
            text: `(texts, d)` embeddings of all texts.
            frames: `(videos, f, d)` frame embeddings of all videos. They may be of lower precision and on another
                device; a bounded number is copied at a time.
            frame_mask: `(videos, f)` True = valid.
            top_k: number of candidates; None for that of `initial`, or `config.candidates` or the whole gallery.
            weight: None for `config.weight`.
            initial: `(q, top_k)` x_K of each row, for its candidates in descending order of their scores.
            seed: the seed of the noise.
            batch_size: number of rows that are denoised together; changes memory, and the result by rounding.
            options: `num_steps` or `timesteps`, as in `sample`.

        Raises:
            ValueError: a shape or width that does not fit, `top_k` out of range, a score or text that is NaN, or more
                steps than trained.
        """
        _expect_embeddings(self.config.width, text, frames, frame_mask)
        shape, order = (len(text), len(frames)), "(texts, videos)"
        if self.direction == "v2t":
            shape, order = shape[::-1], "(videos, texts)"
        if scores.shape != shape:
            got = tuple(scores.shape)
            raise InputError(f"scores: got shape {got}, expected {shape}, {order} in direction {self.direction!r}")
        for name, x in (("scores", scores), ("text", text)):
            if bool((bad := x.isnan().any(1)).any()):
                raise InputError(f"{name}: row {int(bad.int().argmax())} is NaN: remove it")
        if top_k is None:
            top_k = min(self.config.candidates, scores.shape[1]) if initial is None else initial.shape[1]
        inputs, columns = RerankerInputs(text.to(self._like), frames, frame_mask), best_columns(scores, top_k)
        likely = scores.new_zeros(columns.shape)
        for first in range(0, len(scores), batch_size):
            rows = slice(first, min(first + batch_size, len(scores)))
            start = None if initial is None else initial[rows]
            likely[rows] = self.probabilities(inputs, rows, columns[rows], start, seed=seed, **options)
        return merge_top_k(scores, columns, self.combined(scores.gather(1, columns), likely, weight))

    @classmethod
    def load_released(
        cls, state_dict: Mapping[str, Tensor], config: Mapping[str, Any], direction: Direction = "t2v"
    ) -> "CandidateReranker":
        """As `prvr.load_released_reranker`."""
        return prvr.load_released_reranker(state_dict, config, direction)


def _expect_embeddings(width: int, text: Tensor, frames: Tensor, frame_mask: Tensor) -> None:
    for name, x in (("text", text), ("frames", frames)):
        if x.shape[-1] != width:
            raise InputError(
                f"{name}: got width {x.shape[-1]}, this re-ranker expects {width}: use the embeddings of the retriever "
                "that it was trained on, or train a re-ranker for these"
            )
    if frame_mask.dtype != torch.bool or frame_mask.shape != frames.shape[:-1]:
        raise InputError(
            f"frame_mask: got {frame_mask.dtype} {tuple(frame_mask.shape)}, expected torch.bool (True = valid) "
            f"{tuple(frames.shape[:-1])}"
        )


def _expect_shape(name: str, x: Tensor, like: Tensor) -> None:
    if x.shape != like.shape:
        raise InputError(f"{name}: got shape {tuple(x.shape)}, expected {tuple(like.shape)}, (rows, candidates)")
