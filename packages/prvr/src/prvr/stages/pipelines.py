"""A pipeline: a first stage that scores everything, and stages that re-score its ranking."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor

from prvr.config import expect_imported, own_modules, validated
from prvr.data.atomic import new_folder
from prvr.data.hashes import check_hashes, write_hashes
from prvr.errors import DataError, InputError
from prvr.models import load_pretrained
from prvr.reading import read_object
from prvr.stages.matrix import ScoreMatrix, rescore_best
from prvr.stages.stage import STAGES, Rescore, Stage
from prvr.types import Direction, FirstStage

_FORMAT, _FILE, _STAGES = 1, "pipeline.json", "stages"
FIRST = "first"
"""The folder of the first stage in the folder of a pipeline."""
_AGAIN = "Create it again with prvr pipeline."


class StageFiles(NamedTuple):
    """A stage before it is loaded: its kind, its settings, and the folder of its weights if it has one."""

    kind: str
    settings: Any
    folder: Path | None


class Pipeline:
    """A first stage and the stages that re-score its ranking, in order.

    Evaluation, tables and the benchmarks run it through `rescored`; search takes its first stage alone.

    Args:
        first: scores everything, for example a `prvr.Retriever`.
        stages: re-score everything or the best candidates. Stages over everything come before stages over the best
            candidates, because candidates stay ahead of all other columns.

    Raises:
        InputError: the order of the stages is wrong, or a stage was made for another first stage.

    Examples:
        >>> from prvr import Retriever
        >>> from prvr.config import ModelConfig
        >>> from prvr.stages import RetrieverStage
        >>> retriever = Retriever(ModelConfig(video_dim=16, query_dim=12, hidden=8, heads=2))
        >>> Pipeline(retriever, [RetrieverStage(retriever)]).describe()
        ('retriever over the best 50, both directions',)
    """

    def __init__(self, first: FirstStage, stages: Sequence[Stage] = ()) -> None:
        limits = [stage.top_k is None for stage in stages]
        if sorted(limits, reverse=True) != limits:
            kinds = ", ".join(stage.kind for stage in stages)
            raise InputError(f"stages over everything must come before stages over the best candidates, got: {kinds}")
        for stage in stages[1:]:
            if stage.reads_first_scores:
                raise InputError(f"{stage.kind} reads the scores of the first stage: put it before all other stages")
        for stage in stages:
            stage.check(first)
        self.first, self.stages = first, tuple(stages)

    def describe(self) -> tuple[str, ...]:
        """A line for each stage: its kind, the columns that it re-scores, and the directions."""
        return tuple(
            f"{stage.kind} over {'everything' if stage.top_k is None else f'the best {stage.top_k}'}, "
            + ("both directions" if len(stage.directions) == 2 else f"{''.join(stage.directions)} only")
            for stage in self.stages
        )

    @property
    def own_modules(self) -> list[str]:
        """The modules of others that registered its parts, which must be imported before it can be loaded."""
        stages = own_modules(STAGES[stage.kind] for stage in self.stages if stage.kind in STAGES)
        return sorted({*self.first.config.own_modules, *stages})

    def prepare(self, direction: Direction, score: Callable[[Any], Tensor]) -> list[Any]:
        """The result of `Stage.prepare` for each stage; None for stages without the direction."""
        return [stage.prepare(direction, score) if direction in stage.directions else None for stage in self.stages]

    def bind(
        self, direction: Direction, matrices: Sequence[ScoreMatrix], prepared: Sequence[Any]
    ) -> list[tuple[Stage, Rescore]]:
        """The stages of a direction, each with the function that re-scores.

        Args:
            direction: the direction of the ranking.
            matrices: for each stage, the scores of the embeddings that it reads.
            prepared: the result of `prepare`.
        """
        return [
            (stage, stage.bind(direction, matrix, statistics))
            for stage, matrix, statistics in zip(self.stages, matrices, prepared, strict=True)
            if direction in stage.directions
        ]

    def save_pretrained(self, folder: Path | str, config: str | None = None) -> None:
        """Write the pipeline as one folder, completely or not at all.

        Args:
            folder: new, or empty.
            config: the text of `config.yaml` of the run that trained the first stage, which describes its data.

        Raises:
            DataError: the folder is not empty, or cannot be written.
        """
        with new_folder(Path(folder).expanduser()) as target:
            (target / FIRST).mkdir()
            self.first.save_pretrained(target / FIRST)
            self.write_stages(target)
            if config is not None:
                (target / "config.yaml").write_text(config, encoding="utf-8", newline="\n")

    def write_stages(self, folder: Path) -> None:
        """Write the stages, and the file that lists them, into a folder that holds the first stage."""
        entries = []
        for number, stage in enumerate(self.stages, 1):
            place = _place(folder, number, stage.kind)
            place.mkdir(parents=True)
            stage.save(place)
            entries.append({"kind": stage.kind} | ({} if stage.settings is None else asdict(stage.settings)))
        for part in (folder / FIRST, folder / _STAGES):
            if any(path.is_file() for path in part.rglob("*")):
                write_hashes(part)
        body = {"format": _FORMAT, "imports": self.own_modules, "stages": entries}
        text = json.dumps(body, indent=1, allow_nan=False) + "\n"
        (folder / _FILE).write_text(text, encoding="utf-8", newline="\n")

    @classmethod
    def from_pretrained(cls, folder: Path | str) -> "Pipeline":
        """The pipeline that `save_pretrained` wrote.

        Raises:
            DataError: the folder does not exist, or a file is missing or damaged.
            prvr.ConfigError: the settings of a stage are invalid.
        """
        base = Path(folder).expanduser()
        files = read_stages(base)
        check_hashes(base / _STAGES)
        stages = [STAGES[kind].part.load(settings, place, None) for kind, settings, place in files]
        return cls(load_pretrained(base / FIRST).eval(), stages)

    @staticmethod
    def is_folder(folder: Path) -> bool:
        """Whether a folder holds a pipeline."""
        return (folder / _FILE).is_file()


def rescored(bound: Sequence[tuple[Stage, Rescore]], scores: Float[Tensor, "r n"], rows: slice) -> Float[Tensor, "r n"]:
    """Rows of a score matrix after all stages.

    Args:
        bound: the result of `Pipeline.bind`.
        scores: `(r, n)` of the first stage, or of the stages before these.
        rows: the rows that the scores belong to.
    """
    for stage, rescore in bound:
        if stage.top_k is None:
            scores = rescore(scores, rows, None)
        else:
            top_k = min(stage.top_k, scores.shape[1])
            scores = rescore_best(scores, top_k, lambda best, columns, of=rescore: of(best, rows, columns))
    return scores


def as_pipeline(system: FirstStage | Pipeline) -> Pipeline:
    """A retriever as a pipeline without stages; a pipeline unchanged."""
    return system if isinstance(system, Pipeline) else Pipeline(system)


def read_stages(folder: Path) -> list[StageFiles]:
    """The stages of a folder that `Pipeline.save_pretrained` wrote, before they are loaded.

    Raises:
        DataError: the folder does not exist, or its list of stages is damaged.
        prvr.ConfigError: it names modules that are not imported.
    """
    path = folder / _FILE
    body = read_object(path, _AGAIN, f"{folder}: not a pipeline, {_FILE} is missing. {_AGAIN}")
    if body.get("format") != _FORMAT or not isinstance(body.get("stages"), list):
        raise DataError(f"{path}: not a pipeline of this version. {_AGAIN}")
    expect_imported(body.get("imports"), str(path))
    stages = [stage_settings(values, f"{path}: stage {number}") for number, values in enumerate(body["stages"], 1)]
    return [
        StageFiles(kind, settings, _place(folder, number, kind)) for number, (kind, settings) in enumerate(stages, 1)
    ]


def stage_settings(values: Any, source: str) -> tuple[str, Any]:
    """The kind and the settings of a stage from nested dictionaries.

    Args:
        values: the key `kind`, and settings.
        source: where they come from, for messages.

    Raises:
        InputError: an unknown kind.
        prvr.ConfigError: an unknown key, a wrong type or a value out of range.
    """
    if not isinstance(values, dict) or not isinstance(values.get("kind"), str):
        raise InputError(f"{source}: expected an object with the key kind, one of {', '.join(STAGES.names)}")
    options = dict(values)
    kind = options.pop("kind")
    try:
        settings = STAGES[kind].settings
    except InputError as error:
        raise InputError(f"{source}: {error}") from error
    return kind, settings if settings is None else validated(settings, options, source)


def _place(folder: Path, number: int, kind: str) -> Path:
    return folder / _STAGES / f"{number}-{kind}"
