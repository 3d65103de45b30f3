"""Build what goes to a package index: wheels and source archives of the four packages, with links that work there.

    python scripts/release.py https://HOST/OWNER/NAME MAIL@HOST [--output FOLDER]

An index shows a README far from the repository: its relative links become addresses below that address, at the tag of
this version, `./packages/NAME` becomes the name on the index, and the packages name the address under [project.urls]
and the mail address as their authors'. The version stands in prvr/__init__.py alone; CHANGELOG.md must have an entry
for it, and nothing may stand in the packages that was announced to be removed by it. Only files that git tracks are
built, without changes that are not committed; beside them, one archive holds the repository with its tests.
`twine check --strict` reads what was built. Nothing is uploaded, and the packages in this folder stay as they are.
CONTRIBUTING.md says what to do before and after.
"""

import argparse
import ast
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
DISTRIBUTIONS = {"lorentz": "lorentz-nn", "regdiff": "regdiff", "prvr": "prvr", "prvr-search": "prvr-search"}
"""The name on an index of each folder of packages/; that of the import is the folder's, with underscores."""
LINK = re.compile(r"(!?\[[^\]]*\]\()((?![a-z]+:|#)[^)\s]+)")
IMAGE = (".png", ".svg", ".gif", ".jpg")
AUTHORS = 'authors = [{ name = "The authors of prvr" }]'
ANNOUNCED = re.compile(r"since (\d+)\.(\d+), removed in (\d+)\.(\d+): \w.*")


def git(*arguments: str) -> list[str]:
    """The lines that a command of git prints in this repository."""
    command = ["git", "-c", "core.quotePath=false", *arguments]
    return subprocess.run(command, cwd=ROOT, text=True, encoding="utf-8", capture_output=True).stdout.splitlines()


def version() -> str:
    """The version of all packages."""
    source = (ROOT / "packages" / "prvr" / "src" / "prvr" / "__init__.py").read_text(encoding="utf-8")
    return re.findall(r'^__version__ = "(.+)"$', source, flags=re.MULTILINE)[0]


def as_on_an_index(text: str, package: str, address: str, tag: str) -> str:
    """A README that installs from the index; relative links lead into the repository at that tag."""

    def absolute(match: re.Match[str]) -> str:
        target, _, anchor = match[2].partition("#")
        path = (ROOT / "packages" / package / target).resolve()
        if not path.is_relative_to(ROOT) or not path.exists():
            raise SystemExit(f"packages/{package}/README.md links to {match[2]}, which is not there")
        kind = "raw" if path.suffix in IMAGE else "tree" if path.is_dir() else "blob"
        place = path.relative_to(ROOT).as_posix()
        return f"{match[1]}{address}/{kind}/{tag}/{place}" + (f"#{anchor}" if anchor else "")

    text = re.sub(r"\./packages/([\w-]+)", lambda match: DISTRIBUTIONS[match[1]], text)
    return LINK.sub(absolute, re.sub(r"In a clone(?: of the repository)?, in a", "In a", text))


def urls(package: str, address: str, tag: str) -> str:
    """The [project.urls] of a package."""
    page = {"prvr": "index", "prvr-search": "search"}.get(package, package)
    return (
        f'\n[project.urls]\nHomepage = "{address}"\nDocumentation = "{address}/blob/{tag}/docs/{page}.md"\n'
        f'Changelog = "{address}/blob/{tag}/CHANGELOG.md"\nIssues = "{address}/issues"\n'
        f'Security = "{address}/blob/{tag}/SECURITY.md"\n'
    )


def overdue(source: str, version: str) -> list[str]:
    """What is wrong with the announcements in a module that a name will be removed, see docs/stability.md."""
    wrong = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or ast.unparse(node.func).rpartition(".")[2] != "deprecated":
            continue
        text = ast.literal_eval(node.args[0])
        said = ANNOUNCED.fullmatch(text)
        numbers = [int(number) for number in said.groups()] if said else []
        since, until = tuple(numbers[:2]), tuple(numbers[2:])
        if not numbers:
            wrong.append(f"line {node.lineno}: {text!r}, expected 'since 0.2, removed in 0.4: what to use'")
        elif until < (since[0], since[1] + 2):
            wrong.append(f"line {node.lineno}: {text!r}, expected two minor versions between")
        elif Version(version).release >= until:
            wrong.append(f"line {node.lineno}: {text!r}, and this is {version}; remove it")
    return wrong


def archive(output: Path) -> Path:
    """The whole repository as it is committed, with its tests."""
    name = f"prvr-repository-{version()}"
    output.mkdir(parents=True, exist_ok=True)
    path = output / f"{name}.tar.gz"
    subprocess.run(["git", "archive", f"--prefix={name}/", f"--output={path}", "HEAD"], cwd=ROOT, check=True)
    return path


def build(package: str, output: Path, address: str | None = None, contact: str = "") -> list[Path]:
    """The wheel and the source archive of one package.

    Args:
        package: its folder in packages/.
        output: where they are written.
        address: of the repository, where links and [project.urls] lead.
        contact: the authors' mail address; with an address only.
    """
    tag = f"v{version()}"
    with tempfile.TemporaryDirectory(prefix=f"release-{package}-") as scratch:
        folder = ROOT / "packages" / package
        if address is not None:  # all of them, since the version stands in one of them
            for name in git("ls-files", "packages"):
                (Path(scratch) / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, Path(scratch) / name)
            folder = Path(scratch) / "packages" / package
            readme, project = folder / "README.md", folder / "pyproject.toml"
            text = as_on_an_index(readme.read_text(encoding="utf-8"), package, address, tag)
            readme.write_text(text, encoding="utf-8", newline="\n")
            described = project.read_text(encoding="utf-8") + urls(package, address, tag)
            described = described.replace(AUTHORS, f'{AUTHORS[:-3]}, email = "{contact}" }}]' if contact else AUTHORS)
            project.write_text(described, encoding="utf-8", newline="\n")
        # no isolation: the environment that runs this holds hatchling already, so no second copy of it is fetched
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(output), str(folder)]
        process = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if process.returncode:
            raise SystemExit(f"{package} was not built:\n{process.stdout}")
    stem = DISTRIBUTIONS[package].replace("-", "_")
    return sorted(output.glob(f"{stem}-*"))


def check(built: list[Path]) -> None:
    """What twine says of names, descriptions and metadata; stops at the first complaint."""
    process = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *map(str, built)],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if process.returncode:
        raise SystemExit(process.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="where the repository can be read, https://HOST/OWNER/NAME")
    parser.add_argument("contact", help="a mail address that reaches the maintainers")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "dist", help="folder to write to; must not hold files yet"
    )
    options = parser.parse_args()
    if not re.fullmatch(r"https://[^/\s]+/\S+[^/\s]", options.address):
        parser.error(f"address: got {options.address!r}, expected https://HOST/OWNER/NAME without a slash at the end")
    if not re.fullmatch(r"[^@\s\"\\]+@[^@\s\"\\]+", options.contact):
        parser.error(f"contact: got {options.contact!r}, expected a mail address")
    if options.output.is_dir() and any(options.output.iterdir()):
        parser.error(f"--output: {options.output} holds files; name an empty folder, so that nothing else is uploaded")
    released = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    if version() not in released:
        raise SystemExit(f"CHANGELOG.md: no entry for {version()}, only for {', '.join(released)}; add one")
    if changed := git("diff", "--name-only", "HEAD", "--", "packages"):
        raise SystemExit(f"{', '.join(changed)}: changed since the last commit; commit or restore what is released")
    sources = {path: path.read_text(encoding="utf-8") for path in (ROOT / "packages").glob("*/src/**/*.py")}
    if late := [f"{path}, {what}" for path, text in sources.items() for what in overdue(text, version())]:
        raise SystemExit("\n".join(late))
    built = [
        path for package in DISTRIBUTIONS for path in build(package, options.output, options.address, options.contact)
    ]
    check(built)
    print(*built, archive(options.output), sep="\n")
    tag = f"v{version()}"
    if tag in git("tag", "--points-at", "HEAD"):
        print(f"checked; upload with: {sys.executable} -m twine upload {' '.join(map(str, built))}")
    else:
        print(
            f"checked; this was a rehearsal: {tag} is no tag of this commit. To release, tag and push it, and run again"
        )


if __name__ == "__main__":
    main()
