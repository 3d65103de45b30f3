"""QB-Norm: scores of videos that answer everything are taken down, by how they answer a bank of other queries."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from dataclasses import dataclass as record
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from pydantic.dataclasses import dataclass
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from prvr.config.strict import MANY, STRICT
from prvr.errors import DataError, InputError
from prvr.stages.scores import EncodedSplit, ScoreMatrix
from prvr.text import TextEmbedding, Texts
from prvr.types import Direction, FirstStage, Rescore, VideoEmbedding


@record(frozen=True)
class QueryBank:
    """What QB-Norm needs to know of a bank: two numbers per video, however many queries it has.

    Banks of the same gallery add up with `+`, so that their scores need not be held whole.

    Attributes:
        log_mass: `(v,)` log sum_b exp(beta P_bv).
        active: `(v,)` True for videos that some query of the bank ranks among its `top_k` highest.
        beta: inverse temperature.
    """

    log_mass: Float[Tensor, " v"]
    active: Bool[Tensor, " v"]
    beta: float

    @classmethod
    def of(cls, bank: Float[Tensor, "b v"], beta: float = 20.0, top_k: int = 1) -> "QueryBank":
        """The bank of some queries' scores.

        Args:
            bank: `(b, v)` P, scores of queries that are not those of the test (training texts) with the gallery.
            beta: inverse temperature.
            top_k: how many videos of each query are active.

        Raises:
            ValueError: no query, NaN, a `top_k` out of range or a beta that is not positive.
        """
        if len(bank) == 0:
            raise InputError("bank: got no query, expected at least one (training texts)")
        if not 1 <= top_k <= bank.shape[1]:
            raise InputError(f"top_k: got {top_k}, expected 1 to {bank.shape[1]}, the size of the gallery")
        if not 0 < beta < float("inf"):
            raise InputError(f"beta: got {beta}, expected a positive number")
        if bool(bank.isnan().any()):
            raise InputError(f"bank: scores are NaN in row {int(bank.isnan().any(1).int().argmax())}; leave it out")
        active = torch.zeros(bank.shape[1], dtype=torch.bool, device=bank.device)
        active[bank.topk(top_k, dim=1).indices.flatten()] = True
        return cls((beta * bank).logsumexp(0), active, beta)

    def __getitem__(self, columns: Int[Tensor, " n"]) -> "QueryBank":
        """The bank of a part of the gallery."""
        return QueryBank(self.log_mass[columns], self.active[columns], self.beta)

    def __add__(self, other: "QueryBank") -> "QueryBank":
        if self.beta != other.beta or len(self.active) != len(other.active):
            raise InputError(
                f"banks of {len(self.active)} and {len(other.active)} videos with beta {self.beta} and {other.beta}: "
                "both must be equal"
            )
        return QueryBank(torch.logaddexp(self.log_mass, other.log_mass), self.active | other.active, self.beta)

    def normalise(self, scores: Float[Tensor, "q v"]) -> Float[Tensor, "q v"]:
        """The dynamic inverted softmax of scores with the same gallery; see `qb_norm`.

        Raises:
            ValueError: a gallery of another size.
        """
        if scores.shape[1] != len(self.active):
            raise InputError(f"scores have {scores.shape[1]} columns, the bank {len(self.active)}: must be one gallery")
        hub = self.active[scores.argmax(1)]
        return torch.where(hub[:, None], scores - self.log_mass.to(scores) / self.beta, scores)


def qb_norm(
    scores: Float[Tensor, "q v"], bank: Float[Tensor, "b v"], beta: float = 20.0, top_k: int = 1
) -> Float[Tensor, "q v"]:
    r"""The dynamic inverted softmax (QB-Norm: Bogolin et al., CVPR 2022), for any retriever.

    A query whose best video is also the best of some query of the bank is ranked by
    $\exp(\beta S_{qv}) / \sum_b \exp(\beta P_{bv})$; all others keep their scores. Here the logarithm of that over
    beta is returned, $S_{qv} - \frac1\beta \log \sum_b \exp(\beta P_{bv})$: the same order, without overflow or ties
    from underflow, and in the units of S. Rows are to be compared within themselves: a row that is normalised and one
    that is not are of different scales. For the other direction hand in both matrices the other way round,
    `qb_norm(scores.mT, bank_of_videos)` with the scores of training videos with the texts of the gallery.

    Args:
        scores: `(q, v)` S.
        bank: `(b, v)` P, scores of other queries (training texts, never those of the test) with the same gallery.
        beta: inverse temperature; 20 suits cosines.
        top_k: how many videos of each query of the bank count as its best.

    Raises:
        ValueError: see `QueryBank.of`, or galleries of different sizes.

    Examples:
        >>> bank = torch.tensor([[0.9, 0.1, 0.1], [0.9, 0.1, 0.2]])  # the first video answers everything
        >>> qb_norm(torch.tensor([[0.6, 0.5, 0.1], [0.1, 0.5, 0.2]]), bank).argmax(1).tolist()
        [1, 1]
    """
    return QueryBank.of(bank, beta, top_k).normalise(scores)


@dataclass(frozen=True, config=STRICT)
class QBNormSettings:
    """The bank of QB-Norm and how sharply it counts."""

    beta: float = Field(default=20.0, gt=0, le=1e6)
    """Inverse temperature; 20 suits cosines."""
    split: str = "train"
    """The split whose captions are the bank, never the one that is evaluated."""
    queries: int | None = Field(default=None, ge=1, le=MANY)
    """How many of its captions, evenly spread; None = all of them."""
    videos: bool = False
    """Also carry the embeddings of its videos, for direction "v2t"; they take far more room than captions."""


class QBNormStage:
    """Takes the scores of the whole gallery through QB-Norm, with a bank of embeddings that it carries.

    It reads the scores of the first stage: in a pipeline it stands before all other stages.

    Args:
        texts: bank of the first stage's text embeddings (training captions) for direction "t2v".
        videos: bank of its video embeddings (training videos) for direction "v2t"; None leaves that direction as it is.
        settings: the settings of the normalisation.

    Raises:
        InputError: the bank is empty.
    """

    kind = "qb_norm"
    encoder = None
    top_k = None
    rows: frozenset[str] = frozenset()

    def __init__(
        self, texts: Texts, videos: VideoEmbedding | None = None, settings: QBNormSettings | None = None
    ) -> None:
        if len(texts) == 0:
            raise InputError("the bank of a qb_norm stage is empty: give the embeddings of at least one sentence")
        self.texts, self.videos, self.settings = texts, videos, settings or QBNormSettings()

    @property
    def directions(self) -> frozenset[Direction]:
        """Text to video, and back where there is a bank of videos."""
        return frozenset(["t2v"] if self.videos is None else ["t2v", "v2t"])

    def check(self, first: FirstStage) -> None:
        """Any first stage will do whose texts are as wide as those of the bank; the scores tell."""

    def open_split(self, split: Any) -> Any:
        """As it is: this stage reads scores alone."""
        return split

    def prepare(self, direction: Direction, score: Callable[[Any], Tensor]) -> QueryBank:
        """The two numbers per column that QB-Norm needs, from the scores of the bank with the whole gallery."""
        bank = self.texts if direction == "t2v" else self.videos
        if bank is None:
            raise InputError("this qb_norm stage has no bank of videos: direction 'v2t' stays as it is")
        parts = [
            QueryBank.of(score(bank[first : first + _BLOCK]), self.settings.beta)
            for first in range(0, len(bank), _BLOCK)
        ]
        return sum(parts[1:], start=parts[0])

    def bind(self, direction: Direction, matrix: ScoreMatrix, prepared: QueryBank) -> Rescore:
        """The function that normalises rows."""
        bank = prepared if matrix.numbers is None else prepared[matrix.numbers]
        return lambda scores, rows, columns: bank.normalise(scores)

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the bank as `bank.safetensors`."""
        parts = {"text": self.texts, "video": self.videos}
        tensors = {
            f"{name}.{field.name}": tensor.detach().cpu().contiguous()
            for name, record in parts.items()
            if record is not None and not isinstance(record, Tensor)
            for field in fields(record)
            if isinstance(tensor := getattr(record, field.name), Tensor)
        }
        if isinstance(self.texts, Tensor):
            tensors["text"] = self.texts.detach().cpu().contiguous()
        save_file(tensors, folder / _BANK)
        return asdict(self.settings)

    @classmethod
    def build(cls, settings: QBNormSettings, run: Path | None, encode: Callable[[str], EncodedSplit]) -> "QBNormStage":
        """A stage whose bank are the captions of a split of the first stage's data.

        Args:
            settings: which split, and how many captions.
            run: None; there is nothing to train.
            encode: gives the embeddings of a split by its name.

        Raises:
            InputError: a run is named.
        """
        if run is not None:
            raise InputError(f"a qb_norm stage has no run, got {run}: leave it out")
        encoded = encode(settings.split)
        texts: Any = encoded.text
        if settings.queries is not None and settings.queries < len(texts):
            texts = texts[torch.linspace(0, len(texts) - 1, settings.queries).round().long().to(texts.device)]
        return cls(texts, VideoEmbedding.cat(encoded.videos) if settings.videos else None, settings)

    @classmethod
    def load(cls, folder: Path, settings: QBNormSettings) -> "QBNormStage":
        """Read what `save` wrote.

        Raises:
            DataError: the file is missing or damaged.
        """
        path = folder / _BANK
        try:
            tensors = load_file(path)
            texts = tensors.get("text")
            if texts is None:
                texts = TextEmbedding(**_part(tensors, "text."))
            videos = _part(tensors, "video.")
            return cls(texts, VideoEmbedding(**videos) if videos else None, settings)
        except (OSError, SafetensorError, TypeError) as error:
            raise DataError(
                f"{path}: not a readable bank of a qb_norm stage ({error}). Make the pipeline again."
            ) from error


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


_BANK = "bank.safetensors"
_BLOCK = 256  # of the bank scored at a time
