"""DiffusionRet's generator as a stage of a pipeline: a generated distribution over the best candidates of each row."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from prvr.config.strict import LARGE, MANY, SEED, STRICT
from prvr.data.hashes import check_hashes
from prvr.errors import DataError, InputError
from prvr.stages.diffusion.inputs import fingerprint, reranker_inputs
from prvr.stages.diffusion.reranker import CandidateReranker
from prvr.stages.scores import ScoreMatrix
from prvr.types import Direction, FirstStage, Rescore

_DIRECTIONS: tuple[Direction, ...] = ("t2v", "v2t")


@dataclass(frozen=True, config=STRICT)
class DiffusionSettings:
    """How the generated probability is used; None = as the re-rankers were trained or selected."""

    top_k: int | None = Field(default=None, ge=1, le=MANY)
    """How many candidates of each row are re-ranked; a smaller gallery is re-ranked whole."""
    weight: float | None = Field(default=None, ge=0, le=1e6)
    """What the generated probability counts beside the score."""
    num_steps: int | None = Field(default=None, ge=1, le=LARGE)
    """Steps of the sampler, at most those trained."""
    seed: int = Field(default=0, ge=0, le=SEED)
    """The seed of the noise that sampling starts from, the same for every row."""


class DiffusionStage:
    """Re-ranks the best candidates by the probability that DiffusionRet's generator gives them.

    Args:
        rerankers: one for each direction that is re-ranked.
        settings: how they are used.

    Raises:
        InputError: no re-ranker, one under another direction than its own, or more steps than were trained.
    """

    kind = "diffusion"
    encoder = None

    def __init__(
        self, rerankers: Mapping[Direction, CandidateReranker], settings: DiffusionSettings | None = None
    ) -> None:
        settings = settings or DiffusionSettings()
        if not rerankers:
            raise InputError("a diffusion stage needs a re-ranker of at least one direction")
        for direction, reranker in rerankers.items():
            if reranker.direction != direction:
                raise InputError(f"rerankers[{direction!r}] is of direction {reranker.direction!r}")
            if settings.num_steps is not None and settings.num_steps > reranker.config.steps:
                raise InputError(
                    f"num_steps: got {settings.num_steps}, expected 1 to {reranker.config.steps}, the steps that this "
                    "re-ranker was trained for: a step that was never trained has no meaning"
                )
        self.rerankers, self.settings = dict(rerankers), settings

    @property
    def top_k(self) -> int:
        """How many candidates are re-ranked."""
        return self.settings.top_k or max(reranker.config.candidates for reranker in self.rerankers.values())

    @property
    def directions(self) -> frozenset[Direction]:
        """Those that have a re-ranker."""
        return frozenset(self.rerankers)

    @property
    def rows(self) -> frozenset[str]:
        """The rows that the re-rankers were trained on."""
        tokens = {reranker.config.tokens for reranker in self.rerankers.values()}
        return frozenset({"clips", "frames"} if "both" in tokens else tokens)

    def check(self, first: FirstStage) -> None:
        """Refuse another retriever than the one whose embeddings the re-rankers were trained on.

        Raises:
            InputError: it is another.
        """
        if isinstance(first, nn.Module):
            name = fingerprint(first)
            for reranker in self.rerankers.values():
                reranker.expect_trained_on(name)

    def open_split(self, split: Any) -> Any:
        """As it is: this stage reads what the first stage gave."""
        return split

    def prepare(self, direction: Direction, score: Callable[[Any], Tensor]) -> None:
        """Nothing needs to be known of the gallery."""

    def bind(self, direction: Direction, matrix: ScoreMatrix, prepared: None) -> Rescore:
        """The function that adds `weight` times the generated probability to the scores of the candidates.

        Raises:
            InputError: the embeddings are of another width, or the retriever has not those that were trained on.
        """
        reranker, settings = self.rerankers[direction], self.settings
        config = reranker.config
        inputs = reranker_inputs(matrix.encoded, config)
        reranker.to(inputs.text.device)
        weight = config.weight if settings.weight is None else settings.weight

        def rescore(scores: Tensor, rows: slice, columns: Tensor | None) -> Tensor:
            if columns is None:
                columns = torch.arange(scores.shape[1], device=scores.device).expand_as(scores)
            pairs = reranker.view.gather(reranker.pool, inputs.text, inputs.frames, inputs.mask, rows, columns)
            likely = reranker.probabilities(pairs, num_steps=settings.num_steps, seed=settings.seed)
            return reranker.combined(scores, likely, weight)

        return rescore

    def save(self, folder: Path) -> dict[str, Any]:
        """Write a folder of `CandidateReranker.save_pretrained` for each direction."""
        for direction, reranker in self.rerankers.items():
            reranker.save_pretrained(folder / direction)
        return asdict(self.settings)

    @classmethod
    def load(cls, folder: Path, settings: DiffusionSettings) -> "DiffusionStage":
        """Read what `save` wrote, or a run that trained re-rankers.

        Raises:
            DataError: there are none, or their files are damaged.
            prvr.ConfigError: their configuration cannot be used.
        """
        return cls(load_rerankers(folder), settings)

    @classmethod
    def build(cls, settings: DiffusionSettings, run: Path | None, encode: Any) -> "DiffusionStage":
        """A stage with the re-rankers of a run.

        Raises:
            InputError: no run is named.
            DataError, prvr.ConfigError: as `load`.
        """
        if run is None:
            raise InputError("a diffusion stage needs `run`, a run of `prvr train` that trained re-rankers")
        return cls.load(run, settings)


def load_rerankers(folder: Path | str) -> dict[Direction, CandidateReranker]:
    """The re-rankers of a run that trained some, of its `best/`, or of a stage's folder, in evaluation mode.

    Raises:
        DataError: there are none, or their files are damaged.
        prvr.ConfigError: their configuration cannot be used.

    Examples:
        >>> load_rerankers("runs/reranker-1")["t2v"].config.weight  # doctest: +SKIP
        0.1
    """
    base = Path(folder)
    places = [p for p in (base / "best", base) if any((p / d / "config.json").is_file() for d in _DIRECTIONS)]
    if not places:
        raise DataError(
            f"{base}: no re-ranker in it. Name a run of `prvr train --retriever RUN` that has finished an epoch."
        )
    check_hashes(places[0])
    return {
        direction: CandidateReranker.from_pretrained(places[0] / direction).eval()
        for direction in _DIRECTIONS
        if (places[0] / direction / "config.json").is_file()
    }
