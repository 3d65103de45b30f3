"""A pipeline: a first stage that scores everything, and stages that re-score what it has found."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from prvr.config import validated
from prvr.config.registry import Registry
from prvr.data.atomic import new_folder
from prvr.data.hashes import check_hashes, write_hashes
from prvr.errors import DataError, InputError
from prvr.models import load_pretrained
from prvr.reading import read_object
from prvr.stages.anchors import AnchorSettings, AnchorStage
from prvr.stages.diffusion.stage import DiffusionSettings, DiffusionStage
from prvr.stages.merge import best_columns, merge_top_k
from prvr.stages.qb_norm import QBNormSettings, QBNormStage
from prvr.stages.rescoring import RetrieverSettings, RetrieverStage, ZeroShotSettings, ZeroShotStage
from prvr.stages.scores import ScoreMatrix
from prvr.types import Direction, FirstStage, Rescore, Stage

STAGES: Registry[Any] = Registry("stage")
"""Every kind of stage: its class, its settings and its line of documentation."""
STAGES.register("qb_norm", QBNormStage, "Lowers the scores of videos that answer every query.", QBNormSettings)
STAGES.register("zero_shot", ZeroShotStage, "Adds the score of the joint encoder alone.", ZeroShotSettings)
STAGES.register("retriever", RetrieverStage, "Adds the score of a second retriever.", RetrieverSettings)
STAGES.register("anchors", AnchorStage, "Adds TRACE's routes over registers or segments.", AnchorSettings)
STAGES.register("diffusion", DiffusionStage, "Adds DiffusionRet's generated probability.", DiffusionSettings)

_FORMAT, _FILE, _STAGES = 1, "pipeline.json", "stages"
FIRST = "first"
"""The folder of the first stage, in that of a pipeline."""


class Pipeline:
    """A first stage and the stages that re-score its ranking, in order.

    Evaluation, the index, `prvr search`, the page and the benchmarks run the same pipeline through `rescored`.

    Args:
        first: scores everything; `prvr.Retriever` is one.
        stages: each re-scores everything, or the best candidates. Those over everything stand before the others,
            because the candidates of a stage stay ahead of all that it has not seen.

    Raises:
        InputError: the stages stand in an order that has no meaning, or one was made for another first stage.

    Examples:
        >>> from prvr import Retriever
        >>> from prvr.config import ModelConfig
        >>> retriever = Retriever(ModelConfig(video_dim=16, query_dim=12, hidden=8, heads=2))
        >>> Pipeline(retriever, [RetrieverStage(retriever)]).describe()
        ('retriever over the best 50, both directions',)
    """

    def __init__(self, first: FirstStage, stages: Sequence[Stage] = ()) -> None:
        limits = [stage.top_k is None for stage in stages]
        if sorted(limits, reverse=True) != limits:
            raise InputError(
                "stages over everything must stand before those over the best candidates: "
                f"{', '.join(stage.kind for stage in stages)}"
            )
        if any(stage.kind == QBNormStage.kind for stage in stages[1:]):
            raise InputError("qb_norm reads the scores of the first stage: put it before all other stages")
        for stage in stages:
            stage.check(first)
        self.first, self.stages = first, tuple(stages)

    def describe(self) -> tuple[str, ...]:
        """A line for each stage: its kind, what it re-scores, and in which directions."""
        return tuple(
            f"{stage.kind} over {'everything' if stage.top_k is None else f'the best {stage.top_k}'}, "
            + ("both directions" if len(stage.directions) == 2 else f"{''.join(stage.directions)} only")
            for stage in self.stages
        )

    def save_pretrained(self, folder: Path | str, config: str | None = None) -> None:
        """Write the pipeline as one folder, whole or not at all.

        Args:
            folder: new, or empty.
            config: text of the `config.yaml` of the run that trained the first stage: says which data it reads.

        Raises:
            DataError: the folder holds something, or cannot be written.
            InputError: the first stage cannot be saved.
        """
        target = Path(folder).expanduser()
        with new_folder(target) as made:
            self.write(made)
            if config is not None:
                (made / "config.yaml").write_text(config, encoding="utf-8", newline="\n")

    def write(self, folder: Path) -> None:
        """Write the files of the pipeline into an empty folder, see `save_pretrained`."""
        if not hasattr(self.first, "save_pretrained"):
            raise InputError(f"{type(self.first).__name__} has no save_pretrained: this pipeline cannot be saved")
        (folder / FIRST).mkdir()
        self.first.save_pretrained(folder / FIRST)  # pyright: ignore[reportAttributeAccessIssue]
        self.write_stages(folder)

    def write_stages(self, folder: Path) -> None:
        """Write the stages, and the file that lists them, into a folder that holds the first stage."""
        stages = []
        for number, stage in enumerate(self.stages, 1):
            place = _place(folder, number, stage.kind)
            place.mkdir(parents=True)
            stages.append({"kind": stage.kind, **stage.save(place)})
        for part in (folder / FIRST, folder / _STAGES):
            if any(path.is_file() for path in part.rglob("*")):
                write_hashes(part)
        text = json.dumps({"format": _FORMAT, "stages": stages}, indent=1, allow_nan=False) + "\n"
        (folder / _FILE).write_text(text, encoding="utf-8", newline="\n")

    @classmethod
    def from_pretrained(cls, folder: Path | str) -> "Pipeline":
        """The pipeline that `save_pretrained` wrote.

        Raises:
            DataError: there is no such folder, or a file is missing or damaged.
            prvr.ConfigError: the settings of a stage cannot be used.
        """
        base = Path(folder).expanduser()
        written = written_stages(base)
        check_hashes(base / _STAGES)
        stages = []
        for number, (values, place) in enumerate(written, 1):
            kind, settings = stage_settings(values, f"{base / _FILE}: stage {number}")
            stages.append(STAGES[kind].part.load(place, settings))
        return cls(load_pretrained(base / FIRST).eval(), stages)

    @staticmethod
    def is_folder(folder: Path) -> bool:
        """Whether a folder holds a pipeline."""
        return (folder / _FILE).is_file()

    def bound(
        self, direction: Direction, matrices: Sequence[ScoreMatrix], prepared: Sequence[Any]
    ) -> list[tuple[Stage, Rescore | None]]:
        """Every stage with the function that re-scores; None where a stage leaves the direction as it is.

        Args:
            direction: the direction of the ranking.
            matrices: score matrices of the embeddings that each stage reads.
            prepared: what `Stage.prepare` gave, for each stage.
        """
        return [
            (stage, stage.bind(direction, matrix, known) if direction in stage.directions else None)
            for stage, matrix, known in zip(self.stages, matrices, prepared, strict=True)
        ]

    def prepared(self, direction: Direction, score: Callable[[Any], Tensor]) -> list[Any]:
        """What `Stage.prepare` gives for each stage; None where a stage leaves the direction as it is."""
        return [stage.prepare(direction, score) if direction in stage.directions else None for stage in self.stages]


def rescored(
    bound: Sequence[tuple[Stage, Rescore | None]], scores: Float[Tensor, "r n"], rows: slice
) -> Float[Tensor, "r n"]:
    """Rows of a score matrix after all stages.

    Args:
        bound: as `Pipeline.bound` gives them.
        scores: `(r, n)` of the first stage, or of the stages before these.
        rows: which rows they are.
    """
    for stage, rescore in bound:
        if rescore is None:
            continue
        if stage.top_k is None:
            scores = rescore(scores, rows, None)
        else:
            columns = best_columns(scores, min(stage.top_k, scores.shape[1]))
            scores = merge_top_k(scores, columns, rescore(scores.gather(1, columns), rows, columns))
    return scores


def written_stages(folder: Path) -> list[tuple[dict[str, Any], Path]]:
    """Kind and settings of each stage of a folder that `Pipeline.save_pretrained` wrote, and where its files lie.

    Raises:
        DataError: there is no such folder, or its list of stages is damaged.
    """
    missing = f"{folder}: no pipeline, it has no {_FILE}. Make one: prvr pipeline."
    body = read_object(folder / _FILE, "Make it again: prvr pipeline.", missing)
    if body.get("format") != _FORMAT or not isinstance(body.get("stages"), list):
        raise DataError(f"{folder / _FILE}: not a pipeline that this version reads. Make it again: prvr pipeline.")
    stages = body["stages"]
    for number, values in enumerate(stages, 1):
        stage_settings(values, f"{folder / _FILE}: stage {number}")
    return [(values, _place(folder, number, values["kind"])) for number, values in enumerate(stages, 1)]


def as_pipeline(system: FirstStage | Pipeline) -> Pipeline:
    """A retriever as a pipeline without stages; a pipeline as it is."""
    return system if isinstance(system, Pipeline) else Pipeline(system)


def stage_settings(values: Any, source: str) -> tuple[str, Any]:
    """The kind and the settings of a stage from nested dictionaries.

    Args:
        values: with the key `kind`; the others are settings.
        source: for messages.

    Raises:
        InputError: an unknown kind.
        prvr.ConfigError: an unknown key, a wrong type or a value out of range.
    """
    if not isinstance(values, dict) or not isinstance(values.get("kind"), str):
        raise InputError(f"{source}: expected an object with the key kind, one of {', '.join(STAGES.names)}")
    given = dict(values)
    kind = given.pop("kind")
    try:
        settings = STAGES[kind].settings
    except InputError as error:
        raise InputError(f"{source}: {error}") from error
    return kind, settings if settings is None else validated(settings, given, source)


def _place(folder: Path, number: int, kind: str) -> Path:
    return folder / _STAGES / f"{number}-{kind}"
