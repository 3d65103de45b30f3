"""What a table runs: for every row, data set and seed a resolved configuration, and a key that names it."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator
from pydantic_core import to_jsonable_python

from prvr.config import Config, LossConfig, config_to_dict, flat, load_config
from prvr.config.load import read_values, set_key
from prvr.config.strict import record
from prvr.data.hashes import digest
from prvr.errors import InputError, unknown_name
from prvr.papers.table import DataSet, Evaluation, Kind, Row, Table, data_sets
from prvr.plot import PLOTS
from prvr.published.diffusionret.run_config import RerankerRunConfig, reranker_run_config
from prvr.training.run_folder import MAY_CHANGE

_EARLIER = {"model.compat.lorentz_start": "printed"}
"""Keys whose default is not what runs did before there was the key: what these did."""
_OF_A_CHECKPOINT = ("data.", "train.eval_")
"""What the keys begin with that decide how a checkpoint is evaluated, or the joint encoder alone."""
READY: tuple[Kind | None, ...] = ("checkpoint", "untrained")
"""Kinds of rows that are evaluated and need no training."""


_Absolute = AfterValidator(lambda path: type(path)(Path(path).expanduser().resolve()))
"""Makes a path absolute, so that a run can be opened from any folder."""


@record
class Choices:
    """What a user chooses for all rows of a study.

    Args:
        keys: configuration keys that differ from the papers' for every row, for example `train.epochs`; a key of a row
            itself wins. Keys that begin with `stage.` are those of re-rankers.
        corpora: the collection to read instead, by the name of a set.
        root: folder that holds the corpora; None = corpora that prvr draws.
        checkpoints: folder of converted checkpoints; None = their rows are not run.
    """

    keys: Mapping[str, Any] = field(default_factory=dict)
    corpora: Mapping[str, str] = field(default_factory=dict)
    root: Annotated[str, _Absolute] | None = None
    checkpoints: Annotated[Path, _Absolute] | None = None


@dataclass(frozen=True)
class Run:
    """One thing to compute: it trains, evaluates or draws, and is the same run for every table that asks for it.

    Args:
        kind: what it does.
        config: of the retriever and its data; for a run over another one, as that one was trained, but with the data
            and the keys that this one asks for.
        seed: the seed of the training.
        details: what else decides the result, as plain values.
        stage: configuration of the re-rankers that it trains.
        over: the run that must be there first: the one that it builds on, or the one whose system teaches it.
        folder: of a converted checkpoint.
    """

    kind: Kind
    config: Config
    seed: int
    details: Mapping[str, Any] = field(default_factory=dict)
    stage: RerankerRunConfig | None = None
    over: "Run | None" = None
    folder: Path | None = None

    @cached_property
    def settings(self) -> dict[str, Any]:
        """All that decides the result but the seed, as dotted keys; what is not trained brings its model along."""
        settings = {"kind": self.kind, **flat({self.kind: dict(self.details)})}
        prefixes = _OF_A_CHECKPOINT if self.kind in READY else ("",)
        settings |= {key: value for key, value in _deciding(self.config).items() if key.startswith(prefixes)}
        settings |= _deciding(self.stage, "stage.")
        return settings if self.over is None else settings | {"over": self.over.arm}

    @cached_property
    def arm(self) -> str:
        """Names the run without its seed: a hash of what differs from the defaults.

        Keys that a later version adds leave it as it is where they have the value that changes nothing.
        """
        defaults = _defaults(self.config) | _EARLIER | _defaults(self.stage, "stage.")
        changed = {key: value for key, value in self.settings.items() if key not in defaults or defaults[key] != value}
        return digest(changed)[:12]

    @property
    def key(self) -> str:
        """Names the run: the arm and the seed."""
        return f"{self.arm}-{self.seed}"

    @property
    def chain(self) -> "list[Run]":
        """The runs that must be there before it, one built on the other, and the run itself."""
        return [*([] if self.over is None else self.over.chain), self]

    @property
    def depth(self) -> int:
        """How many runs must be there before it."""
        return len(self.chain) - 1


@dataclass(frozen=True)
class Cell:
    """A row of a table on one data set with one seed; `run` is None where nothing can be run.

    Of a row with a search there are several, each with the `value` of the searched key.
    """

    table: Table
    row: Row
    set_name: str
    data: DataSet
    seed: int
    run: Run | None
    value: Any = None

    @property
    def arm(self) -> str | None:
        """Names the results without their seed; None where there are none, as in rows that are quoted."""
        return (self.row.history or {}).get(self.set_name) if self.run is None else self.run.arm

    @property
    def what(self) -> str:
        """The row, with its value of a searched key, on its data set with its seed."""
        searched = "" if self.value is None else f", {next(iter(self.table.search))}={self.value}"
        return f"{self.row.name}{searched}, {self.data.title}, seed {self.seed}"

    @property
    def label(self) -> str:
        """The cell in one line."""
        return f"{self.table.name}: {self.what}"


def cells_of(
    table: Table, choices: Choices, *, sets: Sequence[str] | None = None, seeds: Sequence[int] = (0,)
) -> list[Cell]:
    """Everything that a table runs, in the order of its rows; every configuration is built and checked.

    Args:
        table: the table.
        choices: what the user chooses for all rows.
        sets: the data sets; None = those of the paper. Others, such as `toy`, need presets of their name.
        seeds: the seeds of the training.

    Raises:
        InputError: an unknown set, or a row of which no preset exists for a set.
        prvr.ConfigError: a key or value that cannot be used.
    """
    data = {**data_sets(), **table.data_sets}
    for name in (*(sets or table.sets), *choices.corpora, *(one.trained_on for one in data.values())):
        if name is not None and name not in data:
            raise InputError(unknown_name("data set", name, data))
    searched = [{key: value} for key, values in table.search.items() for value in values]
    return [
        Cell(table, row, name, data[name], seed, run, next(iter(keys.values()), None))
        for name in sets or table.sets
        for row in table.rows
        for keys in (searched if row.kind == "train" else []) or [{}]
        for seed in seeds
        for run in [_run(table, replace(row, keys={**row.keys, **keys}), name, data, choices, seed)]
    ]


def distinct_runs(cells: Sequence[Cell]) -> list[Run]:
    """The runs of some cells, each once, after those that they build on."""
    everything = {run.key: run for cell in cells if cell.run is not None for run in cell.run.chain}
    return sorted(everything.values(), key=lambda run: run.depth)


def _run(table: Table, row: Row, name: str, sets: Mapping[str, DataSet], choices: Choices, seed: int) -> Run | None:
    """The run of a row on a set; where the set is a target out of domain, the evaluation of its source's run."""
    data, kind = sets[name], row.kind
    if kind in (None, "history"):
        return None
    if data.trained_on is not None:
        source = _run(table, row, data.trained_on, sets, choices, seed)
        if source is None:
            return None
        config = _with_data(source.config, name, data, choices)
        split = data.keys.get("data.eval_split", config.data.eval_split)
        config = replace(config, data=replace(config.data, eval_split=split))
        if source.kind in ("plot", "untrained"):
            return replace(source, config=config)
        return Run("evaluate", config, seed, config_to_dict(Evaluation()), over=source)
    below = row.over or row.teacher
    over = None if below is None else _run(table, table.row(below), name, sets, choices, seed)
    if row.over is None:
        config = _config(table, row, name, data, choices, seed)
    elif over is None:
        return None
    else:
        config = over.config
    if kind in READY and (seed != 0 or (kind == "checkpoint" and choices.checkpoints is None)):
        return None  # nothing is trained: one seed is enough
    details, stage, folder = dict[str, Any](), None, None
    if row.untrained is not None:
        details["score"] = row.untrained
    elif row.checkpoint is not None and choices.checkpoints is not None:
        details["checkpoint"] = label = row.checkpoint.format(set=data.preset or name)
        folder = choices.checkpoints / label
    elif row.plot is not None:
        PLOTS[row.plot.what]  # an unknown one is refused
        details = {"plot": row.plot.what, "settings": row.plot.settings}
    elif row.evaluate is not None:
        details = config_to_dict(row.evaluate)
    elif row.stage is not None:
        stage = _stage(table, row, row.stage, choices, config.model.width, seed)
    return Run(kind, config, seed, details, stage, over, folder)


def _stage(
    table: Table, row: Row, keys: Mapping[str, Any], choices: Choices, width: int, seed: int
) -> RerankerRunConfig:
    """The resolved configuration of re-rankers: preset, user, row, in this order."""
    user = {key.removeprefix("stage."): value for key, value in choices.keys.items() if key.startswith("stage.")}
    own = flat(keys)
    values = read_values(own.pop("base"))[1] if "base" in own else {}
    for key, value in (user | own | {"train.seed": seed}).items():
        set_key(values, key, value, key)
    return reranker_run_config(values, width=width, source=f"{table.name}: {row.name}")


def _config(table: Table, row: Row, name: str, data: DataSet, choices: Choices, seed: int) -> Config:
    """The resolved configuration of a row: preset, table, set, user, row, in this order."""
    base = (row.base or table.base).format(set=data.preset or name)
    prefixes = _OF_A_CHECKPOINT if row.kind in READY else ("",)
    user = {
        key: value for key, value in choices.keys.items() if key.startswith(prefixes) and not key.startswith("stage.")
    }
    keys = {**flat(table.keys), **data.keys, **user, **flat(row.keys), "train.seed": seed}
    if row.teacher is not None:
        keys["train.teacher"] = row.teacher  # its name: where its system lies is known when it is run
    config = load_config(base, keys, shared=True)
    if row.epochs == "by_cost":
        assert row.cost is not None
        config = load_config(base, keys | {"train.epochs": max(1, round(config.train.epochs / row.cost))}, shared=True)
    if (table.rule is not None or table.search) and row.kind not in READY and config.train.protocol == "paper":
        raise InputError(
            f"{table.name}: {row.name!r} on {data.title}: train.protocol=paper selects on the split that is reported, "
            "but arms are judged and values are chosen before it is seen: set train.protocol to val or holdout"
        )
    return _with_data(config, name, data, choices)


def _with_data(config: Config, name: str, data: DataSet, choices: Choices) -> Config:
    """The configuration with the corpus of a set."""
    collection = choices.corpora.get(name, data.collection)
    read = replace(config.data, root=choices.root)
    if collection is not None and collection != read.collection:
        read = replace(read, collection=collection, feature=None)
    return replace(config, data=read)


def _deciding(config: Any, prefix: str = "") -> dict[str, Any]:
    """The keys of a configuration that decide what a run finds, with their values.

    The names of runs, the seed, and keys that say where things are and how fast they go are left out.

    Args:
        config: the configuration; None has no keys.
        prefix: stands before the keys.
    """
    if config is None:
        return {}
    left_out = {*MAY_CHANGE, "name", "train.seed", "retriever", "reranker.trained_on"}
    everything = flat(config_to_dict(config))
    blocks = {block["space"] for block in everything.get("model.blocks", ())}
    if "lorentz" not in blocks or everything["model.compat.lorentz"] == "released":
        left_out.add("model.compat.lorentz_start")
    if everything.get("model.start") != "kernel":  # nothing is fitted
        left_out |= {key for key in everything if key.startswith(("fit.", "model.path."))}
    return {prefix + key: value for key, value in everything.items() if key not in left_out}


def _defaults(config: Any, prefix: str = "") -> dict[str, Any]:
    """The defaults of a record and of the records inside it, by dotted key, as plain values; None has none."""
    defaults: dict[str, Any] = {}
    for name, field_info in getattr(config, "__pydantic_fields__", {}).items():
        value = getattr(config, name)
        if isinstance(value, LossConfig):
            defaults |= flat(config_to_dict(LossConfig().terms), prefix=f"{prefix}{name}.")
        elif dataclasses.is_dataclass(value):
            defaults |= _defaults(value, f"{prefix}{name}.")
        elif not field_info.is_required():
            defaults[prefix + name] = to_jsonable_python(field_info.get_default(call_default_factory=True))
    return defaults
