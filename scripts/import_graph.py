"""Draw which parts of the four packages import which: docs/images/imports.svg, shown in docs/design.md.

    python scripts/import_graph.py

grimp, which import-linter uses too, reads the imports. Graphviz draws them: its program `dot` has to be installed. An
arrow points to what is imported; those that follow from longer paths are left out. Parts that import each other share a
box. Run it after a change of the layers in pyproject.toml.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import grimp

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "images" / "imports.svg"
OTHERS = ("lorentz", "regdiff", "prvr_search")


def arrows() -> set[tuple[str, str]]:
    """Which box imports which, without the arrows that longer paths imply."""
    graph = grimp.build_graph("prvr", *OTHERS)
    parts = {*OTHERS, *graph.find_children("prvr")}
    for part in parts:
        graph.squash_module(part)
    upstream = {part: graph.find_modules_directly_imported_by(part) & parts - {part} for part in parts}
    for middle in parts:  # what it reaches without a way through the names of `prvr` itself, which are imported later
        for part in parts:
            if middle in upstream[part]:
                upstream[part] |= upstream[middle]
    box = {part: frozenset(other for other in upstream[part] if part in upstream[other]) | {part} for part in parts}
    below = {box[part]: {box[other] for other in upstream[part]} - {box[part]} for part in parts}
    label = {members: ", ".join(sorted(name.removeprefix("prvr.") for name in members)) for members in below}
    return {
        (label[importer], label[imported])
        for importer, reached in below.items()
        for imported in reached
        if not any(imported in below[other] for other in reached)
    }


def drawing() -> str:
    """The graph in the language of Graphviz."""
    lines = [f'  "{importer}" -> "{imported}";' for importer, imported in sorted(arrows())]
    style = [
        "  rankdir=TB; ranksep=0.25; nodesep=0.4; bgcolor=white;",
        '  node [shape=box, style="rounded,filled", fillcolor="#eef2fb", fontname="Helvetica", height=0.3];',
        '  edge [color="#5b6b8c", arrowsize=0.6];',
        *(f'  "{name}" [fillcolor="#fdf3dc"];' for name in OTHERS),
    ]
    return "\n".join(["digraph imports {", *style, *lines, "}"])


if __name__ == "__main__":
    if shutil.which("dot") is None:
        sys.exit("the program `dot` is not installed; install Graphviz (Debian and Ubuntu: apt install graphviz)")
    process = subprocess.run(["dot", "-Tsvg"], input=drawing(), capture_output=True, text=True, check=True)
    PICTURE.write_text(process.stdout, encoding="utf-8", newline="\n")
    print(f"{PICTURE}: written")
