"""How large the house is: lines of code, YAML and files, what stands in `prvr`, import cycles, long signatures.

    python scripts/count.py [--names] [--folders]

Lines are counted without blanks, comments and docstrings. A cycle is a set of modules that import each other, imports
inside functions included. `--names` lists the modules, classes, functions, methods and properties without documentation
whose names are public, and the functions with more than eight parameters. Private functions and written constructors
count as functions; only a dataclass, whose constructor nobody writes, may have as many fields as it needs. `--folders`
also counts the folders of `prvr` and of the tests. Run it before and after a change.
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


Function = ast.FunctionDef | ast.AsyncFunctionDef


def definitions(tree: ast.Module) -> Iterator[tuple[str, Function | ast.ClassDef]]:
    """Functions and classes with their methods, with dotted names; what is defined inside functions is left out."""

    def inside(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function | ast.ClassDef]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function | ast.ClassDef):
                yield prefix + child.name, child
            if isinstance(child, ast.ClassDef | ast.If | ast.Try | ast.With):
                yield from inside(child, f"{prefix}{child.name}." if isinstance(child, ast.ClassDef) else prefix)

    yield from inside(tree, "")


def is_public(name: str) -> bool:
    return not any(part.startswith("_") for part in name.split("."))


def parameters(node: Function) -> int:
    arguments = node.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", action="store_true", help="also list what is undocumented or takes too much")
    parser.add_argument("--folders", action="store_true", help="also count the folders of prvr and of the tests")
    args = parser.parse_args()
    lines = {path: code_lines(path) for folder in FOLDERS.values() for path in sources(folder)}
    print("| part | lines of code | files |\n|---|---|---|")
    for name, folder in FOLDERS.items():
        print(f"| {name} | {sum(lines[path] for path in sources(folder)):,} | {len(sources(folder))} |")
    total = sum(count for path, count in lines.items() if FOLDERS["examples"] not in path.parents)
    print(f"| packages, tests and benchmarks | {total:,} | |")
    if args.folders:
        for package in (PACKAGES["prvr"], FOLDERS["tests"]):
            print("\n| folder | lines of code | files |\n|---|---|---|")
            for part in (package, *sorted(path for path in package.iterdir() if path.is_dir())):
                inside = [p for p in lines if p.parent == part or (part != package and part in p.parents)]
                if inside:
                    name = part.relative_to(package.parent).as_posix()
                    print(f"| {name} | {sum(lines[path] for path in inside):,} | {len(inside)} |")
    yaml = sum(
        len(path.read_text(encoding="utf-8").splitlines()) for path in ROOT.glob("packages/**/presets/**/*.yaml")
    )
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
            where, tree = module_name(path, package), ast.parse(path.read_text(encoding="utf-8"))
            defined = list(definitions(tree))
            for name, node in [("", tree), *((name, node) for name, node in defined if is_public(name))]:
                if ast.get_docstring(node):
                    documented += 1
                elif not getattr(node, "decorator_list", None) or "overload" not in ast.dump(node):
                    bare.append(f"{where}.{name}".rstrip("."))
            taken = [(name, parameters(node)) for name, node in defined if isinstance(node, Function)]
            long += [f"{where}.{name}: {count}" for name, count in taken if count > MOST_PARAMETERS]
    print(f"public definitions with documentation: {documented:,}, without: {len(bare)}")
    print(f"functions with more than {MOST_PARAMETERS} parameters: {len(long)}")
    if args.names:
        print("\n".join(["", "without documentation:", *bare, "", "long signatures:", *long]))


if __name__ == "__main__":
    main()
