"""What the wheels promise: types, a small public surface that resolves, presets, one version, independence."""

import dataclasses
import email
import importlib
import inspect
import json
import os
import pkgutil
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tarfile
import threading
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import ClassVar

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version


def numbers_of_equations(text: str) -> set[int]:
    """The numbers of "eq. 4", "eq. 5-6", "eq. 7 to 9" and "eq. 5 and 6"."""
    found = re.findall(r"\beq\. (\d+)(?:(?:-| to | and )(\d+))?", text)
    return {number for first, last in found for number in range(int(first), int(last or first) + 1)}


def rows_of_papers_to_code() -> list[str]:
    text = (ROOT / "docs" / "papers-to-code.md").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line.startswith("| ")]


def objects_of_row(row: str) -> list[object]:
    """What the dotted names of our packages stand for; fails where one of them stands for nothing."""
    return [
        pkgutil.resolve_name(name) for name in re.findall(r"`((?:lorentz|regdiff|prvr|prvr_search)(?:\.\w+)+)`", row)
    ]


ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("lorentz", "regdiff", "prvr", "prvr_search")
NEEDED = {"prvr": ("lorentz", "regdiff"), "prvr_search": ("lorentz", "regdiff", "prvr")}
"""The packages of this repository that one of them needs."""


def folder(package: str) -> Path:
    return ROOT / "packages" / package.replace("_", "-")


def project(package: str) -> dict:
    """The [project] table of one package, with the dependencies that a hook adds to."""
    read = tomllib.loads((folder(package) / "pyproject.toml").read_text(encoding="utf-8"))
    return {**read["tool"]["hatch"].get("metadata", {}).get("hooks", {}).get("custom", {}), **read["project"]}


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_resolve_and_are_few(package: str) -> None:
    module = importlib.import_module(package)
    names = module.__all__
    assert resources.files(package).joinpath("py.typed").is_file()
    assert [name for name in names if not hasattr(module, name)] == []
    assert 1 <= len(names) <= (35 if package == "lorentz" else 28)  # a reader learns them in one sitting


@pytest.fixture(scope="module")
def release() -> dict:
    """The names of scripts/release.py."""
    return runpy.run_path(str(ROOT / "scripts" / "release.py"))


@pytest.fixture(scope="module")
def released(release: dict, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheels of a release; the source archives lie beside them."""
    if not (ROOT / ".git").exists():
        pytest.skip("only a clone is released, no archive of the repository")
    built = tmp_path_factory.mktemp("released")
    for name in release["DISTRIBUTIONS"]:
        release["build"](name, built, "https://example.org/o/n", "people@example.org")
    return {path.name.partition("-")[0]: path for path in built.glob("*.whl")}


def metadata_of(wheel: Path) -> email.message.Message:
    """What an installer reads of a package."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_one_version_for_all_packages(released: dict[str, Path]) -> None:
    """It stands in prvr/__init__.py; prvr and prvr-search ask for their siblings of the same version."""
    of = {name: metadata_of(wheel) for name, wheel in released.items()}
    assert {message["Version"] for message in of.values()} == {importlib.import_module("prvr").__version__}
    version = of["prvr"]["Version"]
    assert {f"lorentz-nn=={version}", f"regdiff=={version}"} <= set(of["prvr"].get_all("Requires-Dist"))
    assert f"prvr[encoders]=={version}" in of["prvr_search"].get_all("Requires-Dist")
    assert "https://example.org/o/n/blob/v" in of["lorentz_nn"].get_payload()
    assert {message["Author-email"] for message in of.values()} == {"The authors of prvr <people@example.org>"}


class Index(SimpleHTTPRequestHandler):
    """A package index (PEP 503) of the wheels in its folder."""

    asked: ClassVar[set[str]] = set()

    def do_GET(self) -> None:
        if found := re.fullmatch("/simple/([a-z-]+)/", self.path):
            self.asked.add(found[1])
            names = [path.name for path in Path(self.directory).glob(f"{found[1].replace('-', '_')}-*.whl")]
            page = "".join(f'<a href="/{name}">{name}</a>' for name in names).encode()
            self.send_response(200 if names else 404)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(page)
        else:
            super().do_GET()

    def log_message(self, *args: object) -> None:
        """Nothing is printed."""


@pytest.mark.skipif(sys.platform == "win32", reason="symbolic links need a right there")
def test_one_line_installs_everything_from_an_index(released: dict[str, Path], tmp_path: Path) -> None:
    """What others wrote is there already, by links; ours comes from an index, without a clone."""
    others = tmp_path / "others"
    others.mkdir()
    for path in Path(pytest.__file__).parents[1].iterdir():
        if not re.match("_editable|__editable|_?(lorentz|regdiff|prvr)", path.name):
            (others / path.name).symlink_to(path)
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    python = tmp_path / "env" / "bin" / "python"
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    (site / "others.pth").write_text(f"{others}\n")
    (line,) = re.findall("`pip install (.prvr.+?)`", (ROOT / "docs" / "install.md").read_text(encoding="utf-8"))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Index, directory=released["prvr"].parent)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        index = f"http://127.0.0.1:{server.server_port}/simple/"
        command = [sys.executable, "-m", "pip", "--isolated", "--python", python, "install", "--index-url", index]
        alone = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
        alone |= {"PIP_CONFIG_FILE": os.devnull, "NO_PROXY": "127.0.0.1"}
        options = ["--no-cache-dir", "--disable-pip-version-check", *shlex.split(line)]
        done = subprocess.run([*command, *options], capture_output=True, text=True, env=alone)
        server.shutdown()
    assert done.returncode == 0, done.stderr
    assert Index.asked == {"prvr", "prvr-search", "lorentz-nn", "regdiff"}
    said = subprocess.run([python.with_name("prvr"), "--version"], capture_output=True, text=True, env=alone)
    version = metadata_of(released["prvr"])["Version"]
    expected = [f"{name} {version}" for name in ("prvr", "prvr-search", "lorentz-nn", "regdiff")]
    assert said.stdout.splitlines() == expected, said.stderr


def test_what_is_announced_to_be_removed_is_removed_in_time(release: dict) -> None:
    version = importlib.import_module("prvr").__version__
    for package in PACKAGES:
        for path in (folder(package) / "src").rglob("*.py"):
            assert release["overdue"](path.read_text(encoding="utf-8"), version) == [], path
    said = "since 0.2, removed in 0.4: use f"
    for text, at, wrong in [
        (said, "0.3.9", ""), (said, "0.4.0", "remove it"), (said, "1.0", "remove it"),
        ("since 0.9, removed in 1.0: use f", "0.9", ""), ("since 0.2, removed in 0.3: use f", "0.2", "two minor"),
        ("use f", "0.2", "expected 'since"),
    ]:  # fmt: skip
        found = release["overdue"](f"@typing_extensions.deprecated({text!r})\ndef g(): ...\n", at)
        assert len(found) == bool(wrong), found
        assert all(wrong in line for line in found)


HEAVY = [
    "matplotlib", "fastapi", "transformers", "diffusers", "pymilvus", "scipy", "pywt", "pandas", "IPython", "geoopt",
    "torch._dynamo",
]  # fmt: skip
IMPORTS = {
    "lorentz": """
import lorentz
lorentz.models, lorentz.distributions, lorentz.plot
expect_absent()
lorentz.manifold
assert "geoopt" in sys.modules
""",
    "regdiff": """
import regdiff
regdiff.capabilities("euler")
assert "regdiff.registers" not in sys.modules
regdiff.registers.make_register_generator(8, 3, 2, kind="condition")
expect_absent()
regdiff.registers.make_register_generator(8, 3, 2)
assert "diffusers" in sys.modules
assert not [m for m in sys.modules if m.startswith(("diffusers.pipelines", "diffusers.models"))]
""",
    "prvr": """
import pkgutil
import prvr, prvr.cli, prvr.stages
expect_absent()
for module in pkgutil.walk_packages(prvr.__path__, "prvr."):
    if module.name != "prvr.cli.__main__":
        __import__(module.name)
""",
    "prvr_search": """
import prvr_search, prvr_search.cli, prvr_search.library
expect_absent()
""",
}
"""What each package imports only where it is used."""


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_alone_and_quietly(package: str) -> None:
    """A fresh interpreter imports the package without those that it does not need, and says nothing."""
    absent = [other for other in PACKAGES if other != package and other not in NEEDED.get(package, ())]
    absent += ["av", "chardet", "fastapi", "transformers", "uvicorn"] if package == "prvr" else []
    code = f"""
import sys
sys.modules.update(dict.fromkeys({absent!r}))
def expect_absent():
    assert not {{name for name in {HEAVY!r} if sys.modules.get(name)}}, "imported before it is used"
{IMPORTS[package]}
"""
    warnings = ["-W", "error"] if package == "lorentz" else []
    done = subprocess.run([sys.executable, *warnings, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


ALL_MODULES = """
import importlib, pkgutil, sys
sys.modules.update(dict.fromkeys({absent!r}))
package = importlib.import_module({package!r})
for module in pkgutil.walk_packages(package.__path__, {package!r} + "."):
    if module.name.rpartition(".")[2] != "__main__" and module.name not in {without!r}:
        importlib.import_module(module.name)
"""


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_imports_where_warnings_are_errors(package: str) -> None:
    code = ALL_MODULES.format(absent=[], package=package, without=[])
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("package", PACKAGES)
def test_without_geoopt_everything_imports_but_its_manifolds(package: str) -> None:
    """A later torch may drop what geoopt asks for; `lorentz.manifold` then says which versions go together."""
    without = ["lorentz.manifold", "lorentz._manifold", "lorentz._ball"]
    code = ALL_MODULES.format(absent=["geoopt"], package=package, without=without)
    if package == "lorentz":
        code += """
assert lorentz_dist() == 0.0
try:
    import lorentz.manifold
except ImportError as error:
    print(error)
"""
        code = (
            "def lorentz_dist():\n    import lorentz, torch\n"
            "    x = lorentz.expmap0(torch.ones(3))\n    return float(lorentz.dist(x, x))\n" + code
        )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    if package == "lorentz":
        assert re.match("lorentz.manifold needs geoopt, which cannot be imported", done.stdout)
        assert "geoopt>=0.5.1,<0.6" in done.stdout
        assert "torch>=2.10" in done.stdout


def test_geoopt_is_imported_in_one_module_only() -> None:
    """So that it is no single point of failure."""
    imports = re.compile(r"^\s*(?:import|from) geoopt\b", flags=re.MULTILINE)
    sources = [path for package in PACKAGES for path in (folder(package) / "src").rglob("*.py")]
    found = [
        path.name
        for path in sources
        if imports.search(re.sub(r'""".*?"""', "", path.read_text("utf-8"), flags=re.DOTALL))
    ]
    assert found == ["_manifold.py"]


SAFE = {
    "torch": "2.6",  # CVE-2025-32434: weights_only=True ran code
    "filelock": "3.20.3",  # it followed a link in the place of the lock
    "starlette": "0.49.1",  # CVE-2025-62727: a Range header that takes quadratic time
    "fastapi": "0.120.1",  # the first that allows this starlette
    "h11": "0.16",  # CVE-2025-43859: chunks of a request that proxies read otherwise
}
"""The first releases without a vulnerability that concerns us."""


def test_lower_bounds_admit_no_release_with_a_known_vulnerability() -> None:
    bounds: dict[str, list[Requirement]] = {name: [] for name in SAFE}
    for package in PACKAGES:
        known = project(package)
        optional = known.get("optional-dependencies", {}).values()
        for requirement in map(Requirement, [*known["dependencies"], *(line for lines in optional for line in lines)]):
            bounds.get(requirement.name, []).append(requirement)
    for name, safe in SAFE.items():
        assert bounds[name], f"{name}: no bound"
        for requirement in bounds[name]:
            lowest = [Version(bound.version) for bound in requirement.specifier if bound.operator == ">="]
            assert max(lowest, default=Version("0")) >= Version(safe), f"{requirement}: expected at least {safe}"


def test_documentation_names_only_keys_that_exist() -> None:
    from prvr.config import LOSSES, Config, records_of
    from prvr.published.diffusionret.run_config import RerankerRunConfig

    def exists(key: str) -> bool:
        if key.startswith("loss."):
            term, _, setting = key.removeprefix("loss.").partition(".")
            return term in LOSSES.names and (not setting or hasattr(LOSSES[term].settings(), setting))
        records: tuple = (Config, RerankerRunConfig)
        for name in key.split("."):
            found = [field.type for record in records for field in dataclasses.fields(record) if field.name == name]
            if not found:
                return False
            records = tuple(record for kind in found for record in records_of(kind))
        return True

    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    pages.remove(ROOT / "docs" / "own-part.md")  # registers a loss
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    groups, no_key = "model|loss|optim|data|train|reranker|candidates", r"md\b|py\b|json\b|tsv\b|safetensors\b"
    keys = set(re.findall(rf"(?<![\w./])(?:{groups})\.(?!{no_key})[a-z_0-9]+(?:\.[a-z_0-9]+)*", text))
    assert len(keys) > 10
    assert sorted(key for key in keys if not exists(key)) == []


def test_papers_to_code_names_only_what_exists() -> None:
    text = (ROOT / "docs" / "papers-to-code.md").read_text(encoding="utf-8")
    names = re.findall(r"`((?:lorentz|regdiff|prvr|prvr_search)(?:\.\w+)+)`", text)
    assert len([pkgutil.resolve_name(name) for name in names]) > 40  # it fails where there is nothing


def test_the_reference_of_the_command_line_has_a_section_for_every_command() -> None:
    page = runpy.run_path(str(ROOT / "scripts" / "reference.py"))["commands"]()
    sections = dict(re.findall(r"^#+ (prvr .+)\n\n```console\n(.*)$", page, flags=re.MULTILINE))
    assert {"prvr search", "prvr library", "prvr papers run", "prvr convert captions"} <= set(sections)
    assert [name for name, text in sections.items() if not text.startswith(name)] == []


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs", "benchmarks/studies/README.md"])
def test_documents_name_only_files_of_the_repository(page: str) -> None:
    """Scripts that were removed are named as such: in the history."""
    path = ROOT / page
    for document in path.rglob("*.md") if path.is_dir() else [path]:
        text = document.read_text(encoding="utf-8")
        file = r"(?:benchmarks|scripts|examples|tests)/[\w/-]+\.(?:py|yaml|ipynb|sh)"
        names = re.findall(rf"(?<![\w/])({file})\b(?!`?,? in the history)", text)
        assert [name for name in names if not (ROOT / name).exists()] == [], document


PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "packages").glob("*/README.md")),
]


@pytest.fixture
def registries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a page registers is removed after it."""
    from prvr.cli import add_commands, app
    from prvr.config import BLOCKS, CLIPS, FUSIONS, LOSSES, POOLINGS
    from prvr.encoders import ENCODERS
    from prvr.papers.benchmarks import BENCHMARKS
    from prvr.plot import PLOTS
    from prvr.stages import STAGES
    from prvr_search.ranking.backends import BACKENDS

    for registry in (BLOCKS, CLIPS, FUSIONS, POOLINGS, LOSSES, BENCHMARKS, PLOTS, BACKENDS, STAGES, ENCODERS):
        monkeypatch.setattr(registry, "_entries", dict(registry._all))
    add_commands()
    commands = set(app)
    yield
    for name in set(app) - commands:
        del app[name]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
@pytest.mark.usefixtures("registries", "toy_cache")
def test_python_in_the_documentation_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict = {"__name__": "__main__"}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
        exec(compile(block, str(page), "exec"), namespace)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_readme_on_an_index_needs_no_clone(package: str, release: dict) -> None:
    readme = (folder(package) / "README.md").read_text(encoding="utf-8")
    # it stops at a link to what is not there
    absolute = release["as_on_an_index"](readme, folder(package).name, "https://example.org/owner/name", "v1.0.0")
    assert re.findall(r"\]\((?!https://|#)|\./packages| clone", absolute) == []
    assert re.search(rf"^pip install .*{canonicalize_name(project(package)['name'])}", absolute, flags=re.MULTILINE)
    assert len(re.findall(r"\]\(", absolute)) == len(re.findall(r"\]\(", readme))


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="a clone is released")
def test_a_release_holds_what_is_committed_and_nothing_else(tmp_path: Path) -> None:
    clone, built = tmp_path / "clone", tmp_path / "built"
    subprocess.run(["git", "clone", "--quiet", "--shared", ROOT, clone], check=True)
    shutil.copy(ROOT / "scripts" / "release.py", clone / "scripts" / "release.py")
    source = clone / "packages" / "regdiff" / "src" / "regdiff"
    (source / "notes.txt").touch()
    build = runpy.run_path(str(clone / "scripts" / "release.py"))["build"]
    wheel, archive = sorted(build("regdiff", built, "https://example.org/o/n"), key=lambda path: path.suffix != ".whl")
    with zipfile.ZipFile(wheel) as files, tarfile.open(archive) as sources:
        names = [*files.namelist(), *sources.getnames()]
    assert [name for name in names if name.endswith("notes.txt")] == []
    assert sum(name.endswith("regdiff/diffusion.py") for name in names) == 2

    (source / "diffusion.py").write_text("")
    archive = runpy.run_path(str(clone / "scripts" / "release.py"))["archive"](built)
    with tarfile.open(archive) as sources:
        names = {name.partition("/")[2] for name in sources.getnames()}
    assert {"Makefile", "constraints.txt", "tests/test_packaging.py", "tests/fixtures/prvr_ms-sl.npz"} <= names
    assert not any(name.endswith("notes.txt") for name in names)
    command = [sys.executable, clone / "scripts" / "release.py", "https://example.org/o/n", "people@example.org"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "packages/regdiff/src/regdiff/diffusion.py: changed since" in done.stderr


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="git says what an archive of it holds")
def test_an_unpacked_archive_has_the_size_of_its_clone(tmp_path: Path) -> None:
    """`make lint` compares it; there git lists no files."""
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
    clone, unpacked = tmp_path / "clone", tmp_path / "unpacked"
    subprocess.run(["git", "clone", "--quiet", "--shared", ROOT, clone], check=True)
    unpacked.mkdir()
    subprocess.run(["tar", "-x"], cwd=unpacked, input=archive, check=True)
    (unpacked / ".venv").mkdir()
    (unpacked / ".venv" / "README.md").write_text("of a package that is installed")
    tables = []
    for root in (clone, unpacked):
        shutil.copy(ROOT / "scripts" / "count.py", root / "scripts" / "count.py")
        command = [sys.executable, root / "scripts" / "count.py"]
        tables.append(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert tables[0] == tables[1]


SERVICE = ROOT / "examples" / "service"


@pytest.mark.parametrize(("file", "setting"), [("prvr.service", "TimeoutStopSec="), ("Containerfile", "-timeout ")])
def test_a_service_is_given_the_time_that_its_server_takes_to_stop(file: str, setting: str) -> None:
    limits = pytest.importorskip("prvr_search.serve.settings").ServeLimits()
    (seconds,) = re.findall(rf"{setting}(\d+)", (SERVICE / file).read_text(encoding="utf-8"))
    assert int(seconds) > limits.grace_seconds


def test_the_unit_leaves_few_rights(tmp_path: Path) -> None:
    """By the rating of systemd, 0 to 10."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd rates it")
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=40"]  # in tenths
    unit, bare = SERVICE / "prvr.service", tmp_path / "bare.service"
    bare.write_text(unit.read_text(encoding="utf-8").partition("UMask=")[0])
    if "unrecognized option" in subprocess.run([*command, unit], capture_output=True, text=True).stderr:
        pytest.skip("from systemd 250 on")
    assert [subprocess.run([*command, file], capture_output=True).returncode for file in (unit, bare)] == [0, 1]


def test_every_mutant_has_its_place_and_its_test() -> None:
    """They take minutes and are seldom run, so that this says early what moved without its mutant."""
    mutants = runpy.run_path(str(ROOT / "scripts" / "mutants.py"))
    for package, some in mutants["MUTANTS"].items():
        for mutant in some:
            mutants["mutated"](mutants["place_of"](package, mutant), mutant)  # an error names what is gone
            for test in mutants["tests_of"](package, mutant, None):
                file, *names = re.sub(r"\[.*", "", test).split("::")
                text = (ROOT / file).read_text(encoding="utf-8")
                assert all(f"def {name}(" in text or f"class {name}" in text for name in names), test


def test_constraints_name_every_direct_dependency() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {canonicalize_name(Requirement(line).name) for line in lines if "==" in line and not line.startswith("#")}
    for package in PACKAGES:
        for line in project(package)["dependencies"]:
            name = canonicalize_name(Requirement(line).name)
            assert name in pinned | {"lorentz-nn", "regdiff", "prvr"}, (
                f"{package}: {name} has no line in constraints.txt"
            )


def test_every_part_is_documented() -> None:
    """By its name, in the table or list that CONTRIBUTING.md names."""
    from prvr.config import LOSSES
    from prvr.encoders import ENCODERS
    from prvr.papers.benchmarks import BENCHMARKS
    from prvr.plot import PLOTS
    from prvr.stages import STAGES
    from prvr_search.ranking.backends import BACKENDS

    pages = {"search": ENCODERS, "pipelines": STAGES, "data": BENCHMARKS, "serve": BACKENDS, "evaluation": PLOTS}
    texts = {page: (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8") for page in pages}
    texts["papers-to-code"] = " ".join(re.findall("`(.*?)`", "\n".join(rows_of_papers_to_code())))
    for page, parts in {**pages, "papers-to-code": LOSSES}.items():
        words = set(re.findall(r"[\w-]+", texts[page].lower()))
        assert [part.name for part in parts if part.name not in words and not part.is_own] == [], f"docs/{page}.md"


def test_every_loss_is_a_public_name_of_its_package() -> None:
    losses = importlib.import_module("prvr.losses")
    found = {
        name
        for module in pkgutil.iter_modules(losses.__path__, "prvr.losses.")
        for name, value in vars(importlib.import_module(module.name)).items()
        if inspect.isfunction(value) and value.__module__ == module.name and name.endswith("_loss")
    }
    assert sorted(found - set(losses.__all__)) == []


@pytest.mark.parametrize("row", [row for row in rows_of_papers_to_code() if "eq." in row])
def test_an_equation_of_a_paper_stands_where_papers_to_code_says(row: str) -> None:
    documented = [inspect.getdoc(found) or "" for found in objects_of_row(row)]
    assert numbers_of_equations(row) <= {number for text in documented for number in numbers_of_equations(text)}
    for paper in re.findall(r"(\w+) (?:supplement )?eq\.", row):
        assert any(paper in text for text in documented), f"{paper} is named in no docstring of {row}"


def test_every_picture_of_the_documentation_can_be_made_again() -> None:
    """Each is shown by a page and has a record; the graph of imports is that of the packages."""
    images = ROOT / "docs" / "images"
    records = json.loads((images / "records.json").read_text(encoding="utf-8"))
    shown = {path.name for path in images.iterdir()} - {"records.json"}
    pages = [path.read_text(encoding="utf-8") for path in ROOT.rglob("*.md") if ".venv" not in path.parts]
    assert shown == set(records)
    assert [name for name in shown if not any(f"images/{name})" in page for page in pages)] == []
    pictures = runpy.run_path(str(ROOT / "scripts" / "pictures.py"))
    assert {record["picture"] for record in records.values()} == set(pictures["PICTURES"])
    imports = records["imports.svg"]["labels"]
    assert imports == [f"{importer} -> {imported}" for importer, imported in pictures["arrows"]()]
    drawn = (images / "imports.svg").read_text(encoding="utf-8").replace("&#45;", "-").replace("&gt;", ">")
    assert [arrow for arrow in imports if f"<title>{arrow.replace(' -> ', '->')}</title>" not in drawn] == []
