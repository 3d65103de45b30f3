"""DiffusionRet's generator as a stage: a generated distribution over the best candidates of each row."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import torch
from pydantic import Field
from torch import Tensor, nn

from prvr.config.strict import SEED, Count, Times, Weight, record
from prvr.data.hashes import check_hashes
from prvr.errors import DataError, InputError
from prvr.published.diffusionret.candidate_reranker import CandidateReranker, reranker_inputs
from prvr.stages import STAGES, Direction, FirstStage, Rescore, ScoreMatrix, Stage
from prvr.stages.stage import Encode


@record
class DiffusionSettings:
    """The use of the generated probability; None for the values of the re-rankers."""

    top_k: Count | None = None
    """The number of candidates of each row; a smaller gallery is re-ranked as a whole."""
    weight: Weight | None = None
    """The weight of the generated probability."""
    num_steps: Times | None = None
    """The number of steps of the sampler, at most the number of trained steps."""
    seed: int = Field(default=0, ge=0, le=SEED)
    """The seed of the noise at the start of sampling, the same for every row."""


class DiffusionStage(Stage):
    """Re-ranks the best candidates by the probabilities of DiffusionRet's generator.

    Args:
        rerankers: a re-ranker for each direction that is re-ranked.
        settings: the use of their probabilities.

    Raises:
        InputError: no re-ranker, a re-ranker of another direction, or more steps than trained.
    """

    kind = "diffusion"
    trained = True

    def __init__(
        self, rerankers: Mapping[Direction, CandidateReranker], settings: DiffusionSettings | None = None
    ) -> None:
        settings = settings or DiffusionSettings()
        if not rerankers:
            raise InputError("a diffusion stage needs a re-ranker of at least one direction")
        for direction, reranker in rerankers.items():
            if reranker.direction != direction:
                raise InputError(f"rerankers[{direction!r}] has direction {reranker.direction!r}")
            if settings.num_steps is not None and settings.num_steps > reranker.config.steps:
                raise InputError(
                    f"num_steps: got {settings.num_steps}, expected 1 to {reranker.config.steps}, the number of steps "
                    "that this re-ranker was trained with"
                )
        self.rerankers, self.settings = dict(rerankers), settings
        self.top_k = settings.top_k or max(reranker.config.candidates for reranker in rerankers.values())
        self.directions = frozenset(rerankers)

    def check(self, first: FirstStage) -> None:
        """Refuses another retriever than the one whose embeddings the re-rankers were trained on.

        Raises:
            InputError: the retriever is another one.
        """
        if isinstance(first, nn.Module):
            name = fingerprint(first)
            for reranker in self.rerankers.values():
                if reranker.config.trained_on not in (None, name):
                    raise InputError(
                        f"this re-ranker was trained on the embeddings of {reranker.config.trained_on!r}, not of "
                        f"{name!r}: their embeddings differ even if their widths agree; train a re-ranker on {name!r}"
                    )

    def bind(self, direction: Direction, matrix: ScoreMatrix, prepared: None) -> Rescore:
        """The function that adds `weight` times the generated probability to the scores of the candidates.

        Raises:
            InputError: the retriever has not the embeddings that the re-ranker reads, or they have another width.
        """
        reranker, settings = self.rerankers[direction], self.settings
        inputs = reranker_inputs(matrix.encoded, reranker.config)
        reranker.to(inputs.text.device)

        def rescore(scores: Tensor, rows: slice, columns: Tensor | None) -> Tensor:
            assert columns is not None
            likely = reranker.probabilities(inputs, rows, columns, num_steps=settings.num_steps, seed=settings.seed)
            return reranker.combined(scores, likely, settings.weight)

        return rescore

    def save(self, folder: Path) -> None:
        """Writes a folder of `CandidateReranker.save_pretrained` for each direction."""
        for direction, reranker in self.rerankers.items():
            reranker.save_pretrained(folder / direction)

    @classmethod
    def load(cls, settings: DiffusionSettings, folder: Path | None, encode: Encode | None) -> "DiffusionStage":
        """A stage with the re-rankers of a run, or those that `save` wrote.

        Raises:
            DataError: there are none, or their files are damaged.
            prvr.ConfigError: their configuration is invalid.
        """
        assert folder is not None
        return cls(load_rerankers(folder), settings)


STAGES.register("diffusion", DiffusionStage, "Adds DiffusionRet's generated probability.", DiffusionSettings)


def fingerprint(retriever: nn.Module) -> str:
    """A name for the weights of a retriever, for `RerankerConfig.trained_on`; equal weights have equal names.

    Examples:
        >>> one, other = nn.Linear(2, 3), nn.Linear(2, 3)
        >>> fingerprint(one) == fingerprint(one) != fingerprint(other)
        True
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(retriever.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(tensor.cpu().flatten().view(torch.uint8).numpy().tobytes())
    return f"{type(retriever).__name__} {digest.hexdigest()[:16]}"


def load_rerankers(folder: Path | str) -> dict[Direction, CandidateReranker]:
    """The re-rankers of a run, of its `best/`, or of a stage's folder, in evaluation mode.

    Raises:
        DataError: there are none, or their files are damaged.
        prvr.ConfigError: their configuration is invalid.

    Examples:
        >>> load_rerankers("runs/reranker-1")["t2v"].config.weight  # doctest: +SKIP
        0.1
    """
    for base in (Path(folder) / "best", Path(folder)):
        directions: list[Direction] = [d for d in get_args(Direction) if (base / d / "config.json").is_file()]
        if directions:
            check_hashes(base)
            return {direction: CandidateReranker.from_pretrained(base / direction).eval() for direction in directions}
    raise DataError(f"{folder}: no re-ranker. Pass a run of `prvr train --retriever RUN` with at least one epoch.")
