"""The size of the repository: lines and tokens of code, presets, words of documentation, files, long signatures.

    python scripts/count.py [--names] [--folders] [--check]

Lines and tokens are counted without blanks, comments and docstrings; words are those of all tracked Markdown. `--check`
reports each part beside its limit in `scripts/budget.toml`, and fails where one is above it. `--names` lists public
definitions without documentation and functions with more than eight parameters; the fields of a dataclass do not count.
`--folders` also counts the folders of `prvr`, `prvr_search` and the tests. Run it before and after a change.
"""

import argparse
import ast
import io
import os
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    name: ROOT / "packages" / name.replace("_", "-") / "src" / name
    for name in ("lorentz", "regdiff", "prvr", "prvr_search")
}
LEAVES = ("published", "papers", "plot", "toy")
"""Packages of `prvr` that nothing else in it names, see `prvr.LEAVES`."""
FOLDERS = {**PACKAGES, "tests": ROOT / "tests", "benchmarks": ROOT / "benchmarks", "examples": ROOT / "examples"}
BUDGET = ROOT / "scripts" / "budget.toml"
OTHERS = {"JavaScript": "*.js", "C++": "*.cpp"}
WORDS = "words of Markdown"
MOST_PARAMETERS = 8
MADE = re.compile(r"\.(?!ci$|github$).*|.*-env|dist|build|site|node_modules|__pycache__|.*\.egg-info")
"""Folders of environments, builds and caches."""
JS_TOKEN = re.compile(
    r"""
    (?P<comment>//[^\n]*|/\*.*?\*/)
    | `(?:\\.|[^`\\])*` | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*'
    | [\w$]+
    | [-+*/%&|^<>=!?.:]+
    | [^\s\w]
    """,
    re.VERBOSE | re.DOTALL,
)
"""A text is one token, as in Python, and so are operators that touch."""
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def sources(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def parts() -> dict[str, list[Path]]:
    """The files of each part that has a budget; the leaves of `prvr` are apart from its core."""
    prvr = PACKAGES["prvr"]
    leaves = [path for name in LEAVES for path in sources(prvr / name)]
    core = [path for path in sources(prvr) if path not in leaves]
    others = {name: sources(folder) for name, folder in FOLDERS.items() if name != "prvr"}
    return {"prvr, core": core, "prvr, leaves": leaves, **others}


def code_size(path: Path) -> tuple[int, int]:
    """Lines that hold a token of code which is no docstring, and the number of these tokens."""
    text = path.read_text(encoding="utf-8")
    docstrings = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    tokens = [
        token
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in _NO_CODE and token.start[0] not in docstrings
    ]
    lines = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    count, inside = 0, 0
    for token in tokens:  # an f-string counts as one, which from Python 3.12 on consists of several
        kind = tokenize.tok_name[token.type]
        inside -= kind == "FSTRING_END"
        count += not inside and kind != "FSTRING_START"
        inside += kind == "FSTRING_START"
    return len(lines), count


def tracked(*patterns: str, root: Path = ROOT) -> list[Path]:
    """The files that git tracks, those in the work tree; of an unpacked archive all, but for what is made there."""
    if (root / ".git").exists():
        command = ["git", "-c", "core.quotePath=false", "ls-files", "--", *patterns]
        listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()
        return [root / name for name in listed if (root / name).is_file()]
    files = []
    for place, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not MADE.fullmatch(name)]
        files += [Path(place, name) for name in names]
    return sorted(path for path in files if not patterns or any(map(path.match, patterns)))


def script_size(path: Path) -> tuple[int, int]:
    """Lines and tokens of JavaScript or C++, without blanks and comments."""
    text = path.read_text(encoding="utf-8")
    tokens = [match for match in JS_TOKEN.finditer(text) if match["comment"] is None]
    lines = {text.count("\n", 0, place) for match in tokens for place in (match.start(), match.end())}
    return len(lines), len(tokens)


def words(pages: Iterable[Path]) -> int:
    return sum(len(page.read_text(encoding="utf-8").split()) for page in pages)


def total(sizes: Iterable[tuple[int, int]]) -> str:
    """Sums of lines and of tokens, as cells of a table."""
    lines, tokens = map(sum, zip(*sizes, strict=True))
    return f"{lines:,} | {tokens:,}"


def check(sizes: Mapping[str, int]) -> tuple[str, bool]:
    """Each part beside its limit, a line each, and whether all keep to it."""
    limits = tomllib.loads(BUDGET.read_text(encoding="utf-8"))
    if missing := sorted(set(limits) - set(sizes)):
        raise SystemExit(f"{BUDGET.name}: {', '.join(missing)}: no such part; there are {', '.join(sizes)}")
    lines = []
    for name, limit in limits.items():
        room = limit - sizes[name]
        lines.append(
            f"{name}: {sizes[name]:,} of {limit:,}, " + (f"{room:,} left" if room >= 0 else f"{-room:,} TOO MANY")
        )
    kept = all(sizes[name] <= limit for name, limit in limits.items())
    if not kept:
        lines.append(f"Write less, or raise the limit in {BUDGET.relative_to(ROOT)}; CONTRIBUTING.md, Size, says how.")
    return "\n".join(lines), kept


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
    parser.add_argument("--check", action="store_true", help="only compare the sizes with scripts/budget.toml")
    args = parser.parse_args()
    sizes = {path: code_size(path) for folder in FOLDERS.values() for path in sources(folder)}
    scripts, pages = {name: tracked(pattern) for name, pattern in OTHERS.items()}, tracked("*.md")
    if args.check:
        counts = {name: sum(sizes[path][1] for path in files) for name, files in parts().items()}
        counts |= {name: sum(script_size(path)[1] for path in files) for name, files in scripts.items()}
        counts[WORDS] = words(pages)
        report, kept = check(counts)
        print(report)
        sys.exit(not kept)
    print("| part | lines of code | tokens | files |\n|---|---|---|---|")
    for name, files in parts().items():
        print(f"| {name} | {total(sizes[path] for path in files)} | {len(files)} |")
    shipped = (size for path, size in sizes.items() if FOLDERS["examples"] not in path.parents)
    for name, files in scripts.items():
        print(f"| {name} | {total(map(script_size, files))} | {len(files)} |")
    print(f"| packages, tests and benchmarks | {total(shipped)} | |")
    if args.folders:
        for package in (PACKAGES["prvr"], PACKAGES["prvr_search"], FOLDERS["tests"]):
            print("\n| folder | lines of code | tokens | files |\n|---|---|---|---|")
            for part in (package, *sorted(path for path in package.iterdir() if path.is_dir())):
                inside = [p for p in sizes if p.parent == part or (part != package and part in p.parents)]
                if inside:
                    name = part.relative_to(package.parent).as_posix()
                    print(f"| {name} | {total(sizes[path] for path in inside)} | {len(inside)} |")
    yaml = sum(
        len(path.read_text(encoding="utf-8").splitlines()) for path in ROOT.glob("packages/**/presets/**/*.yaml")
    )
    directly = [p for p in PACKAGES["prvr"].iterdir() if p.name[0] != "_" and p.name != "py.typed"]
    print(f"\nlines of presets: {yaml:,}\nfiles and folders directly in prvr: {len(directly)}")
    names = Counter(path.name for path in sources(PACKAGES["prvr"]))
    twice = sorted(name for name, count in names.items() if count > 1 and name != "__init__.py")
    print(f"file names that stand more than once in prvr: {', '.join(twice) or 'none'}")
    guides = [*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    print(f"{WORDS}: {words(pages):,} in {len(pages)} files, of which pages of documentation: {words(guides):,}")
    print(f"tracked files: {len(tracked()):,}")
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
