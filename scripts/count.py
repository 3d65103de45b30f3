"""The size of the repository: lines of code, presets, words of documentation, files, long signatures.

    python scripts/count.py [--names] [--folders]

Lines are counted without blanks, comments and docstrings. `--names` lists public definitions without documentation and
functions with more than eight parameters; the fields of a dataclass do not count. `--folders` also counts the folders
of `prvr`, `prvr_search` and the tests. Run it before and after a change.
"""

import argparse
import ast
import io
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    name: ROOT / "packages" / name.replace("_", "-") / "src" / name
    for name in ("lorentz", "regdiff", "prvr", "prvr_search")
}
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
    parser.add_argument(
        "--folders", action="store_true", help="also count the folders of prvr, prvr_search and the tests"
    )
    args = parser.parse_args()
    lines = {path: code_lines(path) for folder in FOLDERS.values() for path in sources(folder)}
    print("| part | lines of code | files |\n|---|---|---|")
    for name, folder in FOLDERS.items():
        print(f"| {name} | {sum(lines[path] for path in sources(folder)):,} | {len(sources(folder))} |")
    total = sum(count for path, count in lines.items() if FOLDERS["examples"] not in path.parents)
    print(f"| packages, tests and benchmarks | {total:,} | |")
    if args.folders:
        for package in (PACKAGES["prvr"], PACKAGES["prvr_search"], FOLDERS["tests"]):
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
    names = Counter(path.name for path in sources(PACKAGES["prvr"]))
    twice = sorted(name for name, count in names.items() if count > 1 and name != "__init__.py")
    print(f"file names that stand more than once in prvr: {', '.join(twice) or 'none'}")
    pages = [*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    print(f"words of documentation: {sum(len(page.read_text(encoding='utf-8').split()) for page in pages):,}")
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    print(f"tracked files: {len(tracked.splitlines()):,}")
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
