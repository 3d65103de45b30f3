"""QB-Norm lowers the scores of videos that match every query, using their scores with a bank of other queries."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from prvr.config.strict import Count, record
from prvr.errors import DataError, InputError
from prvr.models.pretrained import on_host
from prvr.stages import STAGES, Direction, Rescore, ScoreMatrix, Stage
from prvr.stages.stage import BOTH, Encode
from prvr.types import Embeddings, TextEmbedding, Texts, VideoEmbedding, tensors_of


@dataclass(frozen=True)
class QueryBank(Embeddings):
    """Statistics of a bank of queries: two numbers per video, for any number of queries.

    Banks of the same gallery are added with `+`, so that the scores of a large bank need not be in memory at once. That
    of a part of the gallery is `bank[columns]`.

    Attributes:
        log_mass: `(v,)` log sum_b exp(beta P_bv).
        active: `(v,)` True for videos among the `top_k` best of any query of the bank.
        beta: inverse temperature.
    """

    log_mass: Float[Tensor, " v"]
    active: Bool[Tensor, " v"]
    beta: float

    @classmethod
    def of(cls, bank: Float[Tensor, "b v"], beta: float = 20.0, top_k: int = 1) -> "QueryBank":
        """The statistics of a bank from its scores.

        Args:
            bank: `(b, v)` P, scores of queries that are not in the test set (training texts) with the gallery.
            beta: inverse temperature.
            top_k: number of active videos of each query.

        Raises:
            InputError: no query, NaN, or `beta` not positive.
        """
        if len(bank) == 0 or not beta > 0:
            raise InputError(
                f"QB-Norm: got {len(bank)} queries and beta={beta}, expected at least one query and a positive number"
            )
        if bool(bank.isnan().any()):
            raise InputError(
                f"QB-Norm: scores are NaN in row {int(bank.isnan().any(1).int().argmax())}: remove this query"
            )
        active = bank.new_zeros(bank.shape[1], dtype=torch.bool)
        active[bank.topk(top_k, dim=1).indices.flatten()] = True
        return cls((beta * bank).logsumexp(0), active, beta)

    def __add__(self, other: "QueryBank") -> "QueryBank":
        return QueryBank(torch.logaddexp(self.log_mass, other.log_mass), self.active | other.active, self.beta)

    def normalise(self, scores: Float[Tensor, "q v"]) -> Float[Tensor, "q v"]:
        """The dynamic inverted softmax of scores with the same gallery; see `qb_norm`.

        Raises:
            ValueError: a gallery of another size.
        """
        if scores.shape[1] != len(self.active):
            raise InputError(f"scores have {scores.shape[1]} columns, the bank {len(self.active)}: use one gallery")
        hub = self.active[scores.argmax(1)]
        return torch.where(hub[:, None], scores - self.log_mass.to(scores) / self.beta, scores)


def qb_norm(
    scores: Float[Tensor, "q v"], bank: Float[Tensor, "b v"], beta: float = 20.0, top_k: int = 1
) -> Float[Tensor, "q v"]:
    r"""The dynamic inverted softmax (QB-Norm: Bogolin et al., CVPR 2022), for any retriever.

    A query whose best video is also the best of some query of the bank is ranked by
    $\exp(\beta S_{qv}) / \sum_b \exp(\beta P_{bv})$; all others keep their scores. This function returns the logarithm
    of that over beta, $S_{qv} - \frac1\beta \log \sum_b \exp(\beta P_{bv})$: the same order, without overflow or ties
    from underflow, and in the units of S. Compare scores within a row only: normalised rows have another scale. For the
    other direction transpose: `qb_norm(scores.mT, bank)` with scores of training videos with the texts of the gallery.

    Args:
        scores: `(q, v)` S.
        bank: `(b, v)` P, scores of other queries (training texts, never test queries) with the same gallery.
        beta: inverse temperature; 20 suits cosines.
        top_k: number of videos of each query of the bank that count as its best.

    Raises:
        ValueError: see `QueryBank.of`, or galleries of different sizes.

    Examples:
        >>> bank = torch.tensor([[0.9, 0.1, 0.1], [0.9, 0.1, 0.2]])  # the first video answers everything
        >>> qb_norm(torch.tensor([[0.6, 0.5, 0.1], [0.1, 0.5, 0.2]]), bank).argmax(1).tolist()
        [1, 1]
    """
    return QueryBank.of(bank, beta, top_k).normalise(scores)


@record
class QBNormSettings:
    """The bank of QB-Norm and its temperature."""

    beta: float = Field(default=20.0, gt=0, le=1e6)
    """Inverse temperature; 20 suits cosines."""
    split: str = "train"
    """The split whose captions are the bank; never the one that is evaluated."""
    queries: Count | None = None
    """The number of captions in the bank, evenly spread over the split; None for all."""
    videos: bool = False
    """Also store the embeddings of the videos of the split, for direction "v2t"; they are much larger than captions."""


class QBNormStage(Stage):
    """QB-Norm over the whole gallery, with a bank of embeddings that is saved with the pipeline.

    Args:
        texts: text embeddings of the first stage for direction "t2v", for example of training captions.
        videos: video embeddings of the first stage for direction "v2t"; None leaves that direction unchanged.
        settings: the settings of the normalisation.

    Raises:
        InputError: the bank is empty.
    """

    kind = "qb_norm"
    reads_first_scores = True

    def __init__(
        self, texts: Texts, videos: VideoEmbedding | None = None, settings: QBNormSettings | None = None
    ) -> None:
        if len(texts) == 0:
            raise InputError("the bank of a qb_norm stage is empty: pass the embedding of at least one text")
        self.texts, self.videos, self.settings = texts, videos, settings or QBNormSettings()
        self.directions = BOTH if videos is not None else frozenset(["t2v"])

    def prepare(self, direction: Direction, score: Callable[[Any], Tensor]) -> QueryBank:
        """The statistics of the bank over the whole gallery."""
        bank: Any = self.texts if direction == "t2v" else self.videos
        parts = [
            QueryBank.of(score(bank[first : first + _BLOCK]), self.settings.beta)
            for first in range(0, len(bank), _BLOCK)
        ]
        return sum(parts[1:], start=parts[0])

    def bind(self, direction: Direction, matrix: ScoreMatrix, prepared: QueryBank) -> Rescore:
        """The function that normalises rows."""
        bank = prepared if matrix.indices is None else prepared[matrix.indices]
        return lambda scores, rows, columns: bank.normalise(scores)

    def save(self, folder: Path) -> None:
        """Writes the bank."""
        tensors = {"text": self.texts} if isinstance(self.texts, Tensor) else tensors_of(self.texts, "text.")
        if self.videos is not None:
            tensors |= tensors_of(self.videos, "video.")
        save_file(on_host(tensors), folder / _BANK)

    @classmethod
    def load(cls, settings: QBNormSettings, folder: Path | None, encode: Encode | None) -> "QBNormStage":
        """A stage with the bank in a folder, or else with the captions of `settings.split`.

        Raises:
            DataError: the file is missing or damaged.
        """
        if folder is None:
            assert encode is not None
            encoded = encode(settings.split)
            texts: Any = encoded.text
            if settings.queries is not None and settings.queries < len(texts):
                texts = texts[torch.linspace(0, len(texts) - 1, settings.queries).round().long().to(texts.device)]
            return cls(texts, VideoEmbedding.cat(encoded.videos) if settings.videos else None, settings)
        path = folder / _BANK
        try:
            tensors = load_file(path)

            def inside(part: str) -> dict[str, Any]:
                return {name.removeprefix(part): tensors.pop(name) for name in [*tensors] if name.startswith(part)}

            video: dict[str, Any] = {
                name: VideoEmbedding(**part) for name in ("path", "stream") if (part := inside(f"video.{name}."))
            }
            video |= inside("video.")
            texts = tensors.pop("text") if "text" in tensors else TextEmbedding(**inside("text."))
            if tensors:
                raise TypeError(f"unknown tensors: {', '.join(tensors)}")
            return cls(texts, VideoEmbedding(**video) if video else None, settings)
        except (OSError, SafetensorError, TypeError) as error:
            raise DataError(
                f"{path}: the bank of a qb_norm stage cannot be read ({error}). Create the "
                "pipeline again with prvr pipeline."
            ) from error


STAGES.register("qb_norm", QBNormStage, "Lowers the scores of videos that match every query.", QBNormSettings)

_BANK = "bank.safetensors"
_BLOCK = 256
"""Rows of the bank that are scored at a time."""
