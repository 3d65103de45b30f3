"""How large the house is: lines of code, YAML and files, what stands in `prvr`, import cycles, long signatures.

    python scripts/count.py [--names]

Lines are counted without blanks, comments and docstrings. A cycle is a set of modules that import each other, imports
inside functions included. `--names` lists the public names without documentation and the functions with more than eight
parameters (constructors of configuration aside). Run it before and after a change.
"""

import argparse
import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {name: ROOT / "packages" / name / "src" / name for name in ("lorentz", "regdiff", "prvr")}
FOLDERS = {**PACKAGES, "tests": ROOT / "tests", "benchmarks": ROOT / "benchmarks", "examples": ROOT / "examples"}
MOST_PARAMETERS = 8
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING}


def sources(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def code_lines(path: Path) -> int:
    """Lines that hold a token of code which is no docstring."""
    text = path.read_text(encoding="utf-8")
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE and token.type != tokenize.ENDMARKER:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def module_name(path: Path, package: str) -> str:
    parts = path.relative_to(PACKAGES[package].parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(package: str) -> dict[str, set[str]]:
    """Which modules of a package import which, by name; imports for type checking alone do not count."""
    paths = {module_name(path, package): path for path in sources(PACKAGES[package])}
    found: dict[str, set[str]] = {}
    for name, path in paths.items():
        found[name] = {
            target for target in _targets(ast.parse(path.read_text(encoding="utf-8")), paths) if target != name
        }
    return found


def _targets(tree: ast.AST, known: dict[str, Path]) -> Iterator[str]:
    for node in _walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in known or node.module in known:
                    yield inner if inner in known else node.module


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        yield from _walk(child)


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Sets of modules that reach each other."""
    reached = {name: _reached(graph, name) for name in graph}
    groups = {name: frozenset(other for other in reached[name] if name in reached[other]) for name in graph}
    return sorted(sorted(group) for group in set(groups.values()) if len(group) > 1)


def _reached(graph: dict[str, set[str]], start: str) -> set[str]:
    found, waiting = set[str](), [start]
    while waiting:
        fresh = graph[waiting.pop()] - found
        found |= fresh
        waiting += fresh
    return found


def definitions(path: Path) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]]:
    """Public functions, classes and their public methods, with dotted names."""

    def inside(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.AST]]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name[0] != "_":
                yield prefix + node.name, node
                if isinstance(node, ast.ClassDef):
                    yield from inside(node.body, f"{prefix}{node.name}.")

    yield from inside(ast.parse(path.read_text(encoding="utf-8")).body, "")  # type: ignore[misc]


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    arguments = node.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", action="store_true", help="also list what is undocumented or takes too much")
    args = parser.parse_args()
    print("| part | lines of code | files |\n|---|---|---|")
    total = 0
    for name, folder in FOLDERS.items():
        count = sum(map(code_lines, sources(folder)))
        total += count * (name != "examples")
        print(f"| {name} | {count:,} | {len(sources(folder))} |")
    print(f"| packages, tests and benchmarks | {total:,} | |")
    yaml = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in ROOT.glob("packages/**/presets/*.yaml"))
    directly = [p for p in PACKAGES["prvr"].iterdir() if p.name[0] != "_" and p.name != "py.typed"]
    print(f"\nlines of presets: {yaml:,}\nfiles and folders directly in prvr: {len(directly)}")
    for package in PACKAGES:
        circles = cycles(imports(package))
        print(f"import cycles in {package}: {len(circles)}")
        for circle in circles:
            print("    " + ", ".join(circle))
    documented, bare, long = 0, [], []
    for package, folder in PACKAGES.items():
        for path in sources(folder):
            where = module_name(path, package)
            for name, node in definitions(path):
                if ast.get_docstring(node):
                    documented += 1
                else:
                    bare.append(f"{where}.{name}")
                if not isinstance(node, ast.ClassDef) and parameters(node) > MOST_PARAMETERS:
                    long.append(f"{where}.{name}: {parameters(node)}")
    print(f"public definitions with documentation: {documented:,}, without: {len(bare)}")
    print(f"public functions with more than {MOST_PARAMETERS} parameters: {len(long)}")
    if args.names:
        print("\n".join(["", "without documentation:", *bare, "", "long signatures:", *long]))


if __name__ == "__main__":
    main()
