"""What an audit found: a table for people, a JSON file for programs."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from prvr.data.atomic import write_file
from toy_world.world import AuditRow


@dataclass(frozen=True)
class AuditReport:
    """All that an audit measured.

    Args:
        corpus: what was audited.
        config: name of the configuration that was trained.
        rows: in the order of the table.
    """

    corpus: str
    config: str
    rows: tuple[AuditRow, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing lies outside its band; what was not measured does not count."""
        return all(row.ok is not False for row in self.rows)

    @property
    def numbers(self) -> dict[str, Any]:
        """What each row found, by its key."""
        return {row.key: row.value for row in self.rows}

    def to_json(self, path: Path | str) -> None:
        """Writes everything; the file appears whole or not at all.

        Raises:
            prvr.data.DataError: it cannot be written.
        """
        values = {
            "corpus": self.corpus,
            "config": self.config,
            "ok": self.ok,
            "rows": [asdict(row) for row in self.rows],
        }
        content = (json.dumps(values, indent=2, allow_nan=False) + "\n").encode()
        write_file(Path(path), lambda file: file.write(content))


def audit_table(report: AuditReport) -> Table:
    """A row per measure: what was found, what was expected, and whether it is; fits 80 columns."""
    missed = sum(row.ok is False for row in report.rows)
    table = Table(
        title=f"audit of {report.corpus}, {report.config}",
        caption="every band is met" if not missed else f"{missed} of {len(report.rows)} miss their band",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("measure", overflow="fold")
    table.add_column("found", justify="right", overflow="fold")
    table.add_column("band", justify="right", overflow="fold")
    table.add_column("ok", justify="center", no_wrap=True)
    for row in report.rows:
        ok = Text("-") if row.ok is None else Text("yes", "green") if row.ok else Text("no", "red")
        table.add_row(Text(row.name), Text(row.found), Text(row.band), ok)
    return table
