"""Encoders of others' code: opened by MODULE:CLASS or a short name, and never imported because a file says so."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from commands import explained
from video_files import plain, write_video

from prvr.cli import main
from prvr.corpora.exported import read_export
from prvr.encoders import DownloadNeeded, Encoder, open_encoder, open_featurizer
from prvr.errors import DataError
from prvr_search import Library, open_model

pytest.importorskip("av")
EXAMPLE = Path(__file__).parents[2] / "examples" / "own_encoder.py"
NAME = "colour_rows:Colours"
QUERY = "something red"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the example as the module `colour_rows`, which says when it is imported, and four films."""
    for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.chdir(tmp_path)
    forget(monkeypatch)
    Path("colour_rows.py").write_text(f"open('imported', 'w')\n{EXAMPLE.read_text(encoding='utf-8')}")
    Path("films").mkdir()
    for place, name in enumerate(("red", "green", "blue", "grey")):
        frames = plain([60] * 10, 32, 48)
        for frame in frames:
            frame[..., place : place + 1] += 120
        write_video(Path("films") / f"{name}.mp4", frames)
    return tmp_path


@pytest.fixture
def installed(here: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Installs a package with the encoder, under the short name `colours`."""

    def install(package: str) -> None:
        folder = here / "site" / f"{package}-1.0.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[prvr.encoders]\ncolours = {NAME}\nopenai/clip = {NAME}\n")

    monkeypatch.syspath_prepend(here / "site")
    monkeypatch.syspath_prepend(here)
    return install


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process: the module is not imported yet."""
    monkeypatch.delitem(sys.modules, "colour_rows", raising=False)
    Path("imported").unlink(missing_ok=True)


def run(*arguments: str) -> None:
    assert main([*arguments, "--device", "cpu"]) == 0


def test_every_command_takes_a_class(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("export", "films", "--encoder", NAME, "--output", "exported")
    features = read_export("exported")
    assert (features.encoder.name, features.dim, features.joint_dim) == (NAME, 3, 3)
    np.testing.assert_allclose(features.read("red.mp4"), np.tile(np.array([[180, 60, 60]]) / 255, (2, 1)), atol=0.02)
    run("library", "films", "--encoder", NAME, "--update")
    capsys.readouterr()
    run("search", "films", QUERY, "--encoder", NAME, "-k", "1", "--paths")
    assert capsys.readouterr().out.endswith("red.mp4\n")
    lines = [f"{name},a {name} film" for name in ("red", "green", "blue", "grey")]
    Path("films.csv").write_text("\n".join(["video,text", *lines]))
    run("convert", "captions", "films.csv", "--features", "films", "--output", "data", "--text", NAME)


def test_a_class_that_a_file_names_is_not_imported(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(here)  # it could be imported
    with Library("films", encoder=NAME) as library:
        library.search(QUERY)
        features = library.features()
    forget(monkeypatch)

    for line in (["search", "films", QUERY],):
        said = explained([*line, "--device", "cpu"], capsys)
        assert f"add --encoder {NAME} to the command, or --text {NAME} to prvr convert" in said, line
    write_video(Path("films/new.mp4"), plain([200] * 10))
    attempts: list[Callable[[], object]] = [
        lambda: open_encoder(features.encoder),
        lambda: open_featurizer(features.encoder),
        lambda: open_model("zero-shot", features.spec),
        lambda: Library("films").update(),
    ]
    for attempt in attempts:
        with pytest.raises(DataError, match="Python code, which is not run because a file names it"):
            attempt()
    assert "colour_rows" not in sys.modules
    assert not Path("imported").exists()
    assert Library("films", encoder=NAME).search(QUERY, 1).hits[0].video_id == "red.mp4"
    assert Path("imported").exists()


def test_an_installed_encoder_has_a_short_name_that_files_may_hold(
    here: Path, installed: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed("colour-package")
    run("search", "films", QUERY, "--encoder", "colours")
    forget(monkeypatch)
    with Library("films") as library:  # the index names it, and it may be loaded
        assert library.search("something green", 1).hits[0].video_id == "green.mp4"
        assert library.features().encoder.name == "colours"
    assert Path("imported").exists()
    with pytest.raises(DownloadNeeded, match="Did you mean colours"):
        open_encoder("colour")
    with pytest.raises(DownloadNeeded):  # a name on the hub cannot be taken by a package
        open_encoder("openai/clip")
    installed("another-package")
    with pytest.raises(DataError, match=r"(another|colour)-package and (another|colour)-package both bring"):
        open_encoder("colours")


def test_a_changed_encoder_is_noticed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Library("films", encoder=NAME) as library:
        assert len(library.update().encoded) == 4
    with Library("films", encoder=NAME) as library:
        assert library.update().encoded == []
    code = Path("colour_rows.py")
    code.write_text(code.read_text().replace("version 1", "version 22"))
    forget(monkeypatch)
    with Library("films", encoder=NAME) as library:
        assert len(library.update().encoded) == 4


BROKEN = """
import numpy as np
from prvr.encoders import Identity

class Good:
    dim = joint_dim = word_dim = 3
    def __init__(self, name, device): self.identity = Identity(name, "1", "")
    def prepare(self, pixels): return pixels
    def encode(self, frames): return np.ones((len(frames), 3), np.float32)
    def finish(self, rows): return rows
    def words(self, text): return np.ones((2, 3), np.float32)
    def sentence(self, text): return np.float32([1, 0, 0])

class Raises(Good):
    def __init__(self, name, device): raise KeyError("no weights here")
class Narrow(Good):
    def encode(self, frames): return np.ones((len(frames), 2), np.float32)
    def words(self, text): return np.ones((2, 2), np.float32)
class Endless(Good):
    def encode(self, frames): return np.full((len(frames), 3), np.nan, np.float32)
    def words(self, text): return np.full((2, 3), np.inf, np.float32)
class Silent:
    dim = joint_dim = 3
    __init__, prepare, encode, finish = Good.__init__, Good.prepare, Good.encode, Good.finish
"""


@pytest.mark.parametrize(
    ("kind", "frames", "text"),
    [
        ("Raises", r"KeyError: 'no weights here'; .*broken\.py, line", "KeyError"),
        ("Narrow", r"shape \(2, 2\) for two frames.*\(2, 3\)", r"shape \(2, 2\) for the words.*\(2, 3\)"),
        ("Endless", "NaN or infinity for two frames", "NaN or infinity for the words"),
        ("Silent", None, "not an encoder of texts: Silent lacks word_dim, words, sentence"),
    ],
)
def test_what_breaks_the_protocol_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, frames: str | None, text: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    Path("broken.py").write_text(BROKEN)
    for open_, said in ((open_encoder, frames), (open_featurizer, text)):
        if said is None:
            assert open_(f"broken:{kind}").joint_dim == 3
        else:
            with pytest.raises(DataError, match=said):
                open_(f"broken:{kind}")
    monkeypatch.delitem(sys.modules, "broken", raising=False)


def test_modules_of_the_working_folder_come_last(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = list(sys.path)
    Path("json.py").write_text("raise SystemExit('imported in place of the library')")
    with pytest.raises(DataError, match="json has no Colours"):
        open_encoder("json:Colours")
    with pytest.raises(DataError, match="No module named 'nowhere'"):
        open_encoder("nowhere:Colours")
    assert sys.path == before
    assert isinstance(open_encoder(NAME), Encoder)


LOUD = """
import atexit, os
print("printed at import")
atexit.register(print, "printed at exit")
encode = Colours.encode
Colours.encode = lambda *args: (os.write(1, b"written\\n"), os.system("echo by a program"), encode(*args))[2]
"""


def test_what_an_encoder_prints_is_no_result(here: Path) -> None:
    with Path("colour_rows.py").open("a") as file:
        file.write(LOUD)
    command = [sys.executable, "-P", "-m", "prvr.cli", "search", "films", QUERY, "--encoder", NAME]
    done = subprocess.run([*command, "--json=-"], capture_output=True)
    assert done.returncode == 0, done.stderr
    for said in (b"printed at import", b"written", b"by a program", b"printed at exit"):
        assert said in done.stderr
    (result,) = json.loads(done.stdout)["results"]
    assert result["hits"][0]["video"]["path"] == str(here / "films" / "red.mp4")
