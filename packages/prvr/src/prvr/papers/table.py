"""Tables as files: those of papers, with the numbers that they print, and those that compare your own ideas."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from prvr.config import ConfigError, preset_names, read_yaml_file, validated
from prvr.config.strict import record
from prvr.errors import InputError, unknown_name
from prvr.evaluation.lists import IOUS
from prvr.evaluation.metrics import HEADINGS, RECALLS
from prvr.types import Untrained

_TABLES = Path(__file__).with_name("tables")
COLUMNS = (
    HEADINGS
    | {f"v2t_{name}": f"V2T {head}" for name, head in HEADINGS.items()}
    | {f"{t}_r{k}_{iou}": f"{t.upper()} R{k}@{iou}" for t in ("svmr", "vcmr") for k in RECALLS for iou in IOUS}
)
"""Metrics that a column may hold and their headings: text to video; `v2t_` video to text; moments in the query's own
video (`svmr_`) and in the corpus (`vcmr_`) by the least overlap with the true one."""

Kind = Literal["train", "stage", "evaluate", "checkpoint", "untrained", "plot", "history"]


@record
class DataSet:
    """A data set of a table.

    A set may lie out of domain (`trained_on`): models of another set are tested on it and never trained.
    """

    title: str
    preset: str | None = None
    """What stands for `{set}` in names of presets; None = the name of the set."""
    collection: str | None = None
    """Name of the corpus; None = that of the preset."""
    videos: int | None = Field(default=None, ge=1)
    """Training videos as published, for estimates where the corpus is not at hand."""
    queries: int | None = Field(default=None, ge=1)
    """Training queries as published."""
    keys: dict[str, Any] = Field(default_factory=dict)
    """Keys of every row on this set: how the authors read and report it."""
    protocol: str = ""
    """How the published numbers were selected and reported, shown beside them."""
    about: str = ""
    """What a reader must know of the data, shown below every table."""
    trained_on: str | None = None
    """The set whose trained models are tested on this one. Of `keys`, `data.eval_split` alone counts then."""


@record
class Evaluation:
    """How a trained row is evaluated otherwise than at the end of its training."""

    model: dict[str, Any] = Field(default_factory=dict)
    """Keys of the retriever that its weights do not depend on, such as `clip_weight`."""
    stages: tuple[dict[str, Any], ...] = ()
    """Stages between the retriever and the trained stage of the row, as in the YAML file of a pipeline."""
    diffusion: dict[str, Any] = Field(default_factory=dict)
    """Settings of the trained stage of the row, for example `num_steps`."""
    ties: Literal["worst", "mean", "best"] = "worst"


@record
class Plot:
    """A picture of a trained row."""

    what: str
    """Name in `prvr.plot.PLOTS`."""
    settings: dict[str, Any] = Field(default_factory=dict)


@record
class Row:
    """A row of a table: something to run, or numbers that are quoted.

    It trains `base` with `keys`, unless it says otherwise: with `stage` it trains re-rankers over the row named in
    `over`, with `evaluate` it evaluates that row otherwise, with `plot` it draws it, with `checkpoint` it evaluates a
    converted checkpoint of the authors, with `untrained` the joint encoder alone. With `quoted` or `history` it runs
    nothing.
    """

    name: str
    group: str = ""
    """Heading above the row."""
    base: str | None = None
    """Preset or file; `{set}` in it stands for the name of the set. None = that of the table."""
    keys: dict[str, Any] = Field(default_factory=dict)
    over: str | None = None
    stage: dict[str, Any] | None = None
    """Keys of `prvr.published.diffusionret.RerankerRunConfig`; `base` names a preset of re-rankers."""
    evaluate: Evaluation | None = None
    plot: Plot | None = None
    checkpoint: str | None = None
    """Name of a folder of `prvr convert checkpoint`, in the folder that `--checkpoints` names."""
    untrained: Untrained | None = None
    """A retriever without parameters, on a corpus that names a joint encoder."""
    quoted: bool = False
    """The numbers of another system, as the paper prints them."""
    history: dict[str, str] | None = None
    """By set, the arm whose results are shown: of an earlier version, whose code and `keys` this one does not have."""
    hidden: bool = False
    """Not shown: other rows are trained over this one."""
    x: float | None = None
    """Place in a sweep."""
    series: str = ""
    """The curve of a sweep that the row belongs to."""
    published: dict[str, tuple[float | None, ...]] = Field(default_factory=dict)
    """By set, a number for each column; null = not printed, or not legible. In a file, the name of a row of the table
    `field` stands for its numbers."""
    note: str = ""
    source: str = ""
    """Where the published numbers stand, shown beside them."""
    control: str | None = None
    """Of an arm: the row that has all but the idea, such as as many parameters; the arm must beat that as well."""
    teacher: str | None = None
    """The row above whose system teaches this one, which must be trained; `loss.distillation` is its weight."""
    judged: bool = True
    """False, in a table of arms: a row to compare with by eye, such as a baseline, that no rule judges."""
    removes: bool = False
    """Of an arm: it is the base without a part, and what is judged is the part."""
    cost: float | None = Field(default=None, gt=0)
    """Of an arm: processor time of a training step, that of the base being 1, as `prvr papers plan --measure` says."""
    epochs: Literal["equal", "by_cost"] = "equal"
    """by_cost: as many epochs as take the processor time of the base, by `cost`; equal: those of its configuration."""

    @model_validator(mode="after")
    def _consistent(self) -> "Row":
        if self.epochs == "by_cost" and self.cost is None:
            raise InputError(f"row {self.name!r}: epochs=by_cost needs `cost`, which prvr papers plan --measure prints")
        ways = [*self._ways, *["quoted"] * self.quoted]
        if len(ways) > 1:
            raise InputError(f"row {self.name!r}: {' and '.join(ways)}: expected one of them")
        if self.teacher is not None and self.kind != "train":
            raise InputError(f"row {self.name!r}: `teacher` goes with a row that trains")
        if (self.over is not None) != (self.kind in ("stage", "evaluate", "plot")):
            raise InputError(f"row {self.name!r}: `over` goes with stage, evaluate or plot, which build on another row")
        return self

    @property
    def _ways(self) -> list[Kind]:
        ways: list[Kind] = ["stage", "evaluate", "plot", "checkpoint", "untrained", "history"]
        return [way for way in ways if getattr(self, way) is not None]

    @property
    def is_arm(self) -> bool:
        """Whether a rule judges the row, or others by it."""
        return self.kind not in (None, "plot") and not self.hidden and self.judged

    @property
    def kind(self) -> Kind | None:
        """What running the row does, or "history" for results that are there; None for quoted numbers."""
        return None if self.quoted else self._ways[0] if self._ways else "train"


@record
class Sweep:
    """How a figure draws its rows: a metric over `Row.x`."""

    xlabel: str
    column: str = "sumr"


@record
class Rule:
    """How arms are judged, in SumR and fixed before they are run; see `prvr.papers.judge`."""

    first_drop: float = -2.0
    """An arm that gains at most this on the split that selects is dropped after its first seed."""
    least_gain: float = 1.0
    """An arm is dropped where the interval of its gain ends below this."""
    more_seeds: tuple[int, ...] = ()
    """Seeds that an undecided arm gets, once."""


@record
class Table:
    """A table, figure or algorithm of a paper, or with a `rule` arms: ideas that are compared with the first row."""

    title: str
    sets: tuple[str, ...]
    rows: tuple[Row, ...]
    paper: str = ""
    item: str = ""
    base: str = ""
    columns: tuple[str, ...] = ()
    data_sets: dict[str, DataSet] = Field(default_factory=dict)
    """Sets of this table alone, for example another split or corpus on which all rows are evaluated."""
    keys: dict[str, Any] = Field(default_factory=dict)
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    """The seeds that are run where none are asked for."""
    search: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    """A key and its values: every row is trained with each, and shown with the best on the split that selects."""
    rule: Rule | None = None
    sweep: Sweep | None = None
    note: str = ""
    imports: tuple[str, ...] = ()
    """Modules of your own parts; `prvr papers` imports those of a file that it is given."""
    name: str = ""
    """Name of the file, without its ending."""

    @model_validator(mode="after")
    def _consistent(self) -> "Table":
        names = [row.name for row in self.rows]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InputError(f"rows named twice: {', '.join(twice)}")
        if len(self.search) > 1 or (self.search and any(row.kind not in ("train", None) for row in self.rows)):
            raise InputError("search: expected one key, and only rows that train with its values")
        if self.rule is not None and not self.rows[0].is_arm:
            raise InputError(f"arms: {self.rows[0].name!r} is the base, as the first of them: it must run and be shown")
        for column in self.columns:
            if column not in COLUMNS:
                raise InputError(unknown_name("column", column, COLUMNS))
        if self.sweep is not None and self.sweep.column not in self.columns:
            raise InputError(f"sweep: {unknown_name('column of the table', self.sweep.column, self.columns)}")
        for place, row in enumerate(self.rows):
            above = names[:place]
            for what in ("over", "control", "teacher"):
                other = getattr(row, what)
                if other is not None and other not in above:
                    raise InputError(f"row {row.name!r}: {what} {other!r}, expected the name of a row above it")
                if other is not None and what != "control" and self.row(other).untrained is not None:
                    raise InputError(f"row {row.name!r}: {what} {other!r}, which has no model. Name a row that trains")
            for name, numbers in row.published.items():
                if name not in self.sets:
                    raise InputError(
                        f"row {row.name!r}: published numbers of {name!r}, expected {', '.join(self.sets)}"
                    )
                if len(numbers) != len(self.columns):
                    raise InputError(
                        f"row {row.name!r}, {name}: {len(numbers)} published numbers, expected one for each of "
                        f"{', '.join(self.columns)}"
                    )
        return self

    def runs_on(self, name: str) -> bool:
        """Whether the rows can be trained on a data set: one of the paper's, or one that has presets of its own."""
        rows = [row for row in self.rows if row.kind not in (None, "history")]
        presets = {base.format(set=name) for row in rows if (base := row.base or self.base)}
        return name in {*self.sets, *self.data_sets} or presets <= set(preset_names())

    @property
    def heading(self) -> str:
        """Paper, item and title, as far as it has them."""
        return f"{', '.join(filter(None, (self.paper, self.item)))}: {self.title}".removeprefix(": ")

    def row(self, name: str) -> Row:
        """The row of a name."""
        return next(row for row in self.rows if row.name == name)


def table_names() -> list[str]:
    """The tables that ship with prvr, sorted.

    Examples:
        >>> "hlformer-table-2" in table_names()
        True
    """
    return sorted(path.stem for path in _TABLES.iterdir())


def read_table(name: str | Path) -> Table:
    """A table by its name, or from a YAML file.

    Args:
        name: one of `table_names()`, or a path that ends in .yaml.

    Raises:
        prvr.ConfigError: there is no such table, or a key or value of it cannot be used; the message names it.

    Examples:
        >>> table = read_table("hlformer-table-2")
        >>> table.columns, len(table.rows)
        (('r1', 'r5', 'r10', 'r100', 'sumr'), 8)
    """
    path, name = Path(name), str(name)
    if path.suffix not in (".yaml", ".yml"):
        if name not in table_names():
            raise InputError(unknown_name("table", name, table_names()))
        path = _TABLES / f"{name}.yaml"
    values = {"name": path.stem, **read_yaml_file(path)}
    if "arms" in values:  # rows that a rule judges
        values |= {"rows": values.pop("arms"), "rule": values.get("rule") or {}}
    if isinstance(values.get("rows"), list):
        values |= {"rows": [_with_published(row, values, name) for row in values["rows"]]}
    return validated(Table, values, name)


def _with_published(row: Any, table: Mapping[str, Any], source: str) -> Any:
    """A row with the numbers of the row of the table `field` that it names, for the sets and columns of its table."""
    named = row.get("published") if isinstance(row, Mapping) else None
    if not isinstance(named, str):
        return row
    field = read_table("field")
    if named not in (names := [each.name for each in field.rows]):
        raise ConfigError(f"{source}: {unknown_name('row of the table field', named, names)}")
    published = {}
    for name, numbers in field.row(named).published.items():
        if name in table.get("sets", ()):
            number_of = dict(zip(field.columns, numbers, strict=True))
            published[name] = [number_of.get(column) for column in table.get("columns", ())]
    return {**row, "published": published}


def data_sets() -> Mapping[str, DataSet]:
    """The data sets that tables name, by name: those of the papers, and those that prvr draws."""
    sets = read_yaml_file(_TABLES.with_name("sets.yaml"))
    return {name: validated(DataSet, values, f"set {name}") for name, values in sets.items()}
