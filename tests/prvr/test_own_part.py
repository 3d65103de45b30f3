"""The page of own parts, followed in an empty folder: every file and every command of it."""

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from commands import explained

from prvr.cli import main
from prvr.config import BLOCKS, CLIPS, LOSSES, ConfigError, load_config, read_values
from prvr.models import load_pretrained
from prvr.papers import read_table
from prvr.stages import STAGES, Pipeline

PAGE = (Path(__file__).parents[2] / "docs" / "own-part.md").read_text(encoding="utf-8")
COMMANDS = [
    shlex.split(line)[1:] for line in re.findall(r"```bash\n(.*?)```", PAGE, flags=re.DOTALL)[0].splitlines() if line
]
PARTS = ((LOSSES, "centring"), (BLOCKS, "running_mean"), (CLIPS, "neighbours"), (STAGES, "mean_frame"))


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def forget() -> None:
    """As a new process."""
    sys.modules.pop("myparts", None)
    for registry, name in PARTS:
        registry._entries.pop(name, None)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder with the files of the page."""
    (tmp_path / "myparts.py").write_text("\n\n".join(blocks("python")), encoding="utf-8")
    for name, text in zip(("mine.yaml", "ablation.yaml"), blocks("yaml"), strict=True):  # one seed instead of two
        (tmp_path / name).write_text(text.replace("seeds: [0, 1]", "seeds: [0]"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    forget()
    yield tmp_path
    forget()


def test_each_part_is_short() -> None:
    lengths = [len(text.splitlines()) for text in blocks("python")]
    assert len(lengths) == len(PARTS)
    assert max(lengths) < 40


@pytest.mark.usefixtures("toy_cache")
def test_every_command_of_the_page_does_its_job(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for words in COMMANDS:
        forget()
        if "--import" in words:  # a file that does not import them itself
            alone = [word for word in words if word not in ("--import", "myparts")]
            assert re.search("uses parts of myparts|--import MODULE|of your own", explained(alone, capsys))
        assert main([*words, "-q"]) == 0, words
        printed.append(capsys.readouterr().out)
    config = yaml.safe_load((folder / "run" / "config.yaml").read_text(encoding="utf-8"))
    assert (config["imports"], config["loss"]["centring"]) == (["myparts"], {"weight": 0.1, "power": 3.0})
    table = next(text for text in printed if "tabular" in text)
    assert all(f"\n{row} & " in table for row in ("base", "loss", "block", "clips", "block and stage"))
    assert "1. mean_frame" in printed[2]
    forget()
    for read, source in (
        (lambda: load_pretrained(folder / "run" / "best"), "config.json"),
        (lambda: Pipeline.from_pretrained(folder / "system"), "pipeline.json"),
        (lambda: load_config(folder / "run" / "config.yaml"), "config.yaml"),
        (lambda: load_config(folder / "mine.yaml"), "mine.yaml"),  # Python imports by itself
        (lambda: read_table(folder / "ablation.yaml"), "ablation.yaml"),
    ):
        with pytest.raises(ConfigError, match=rf"{source}: uses parts of myparts, .*add --import myparts"):
            read()
    assert "myparts" not in sys.modules


def test_only_a_file_that_the_command_names_imports(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "config.yaml").write_text((folder / "mine.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "child.yaml").write_text("name: child\nbase: mine.yaml\n", encoding="utf-8")
    for name in ("config.yaml", "child.yaml"):  # what a run holds; what another file names
        error = explained(["train", "--config", name, "--print-config"], capsys)
        assert f"{name}: uses parts of myparts, which is not imported" in error
        assert "myparts" not in sys.modules
    assert main(["train", "--config=mine.yaml", "--print-config"]) == 0
    (folder / "child.yaml").write_text("name: child\nbase: mine.yaml\nimports: [json]\n", encoding="utf-8")
    assert read_values(folder / "child.yaml")[1]["imports"] == ["myparts", "json"]


@pytest.mark.parametrize(
    "command",
    [
        "search films --file x.yaml",
        "search x.yaml query",
        "search films query --json=x.yaml",
        "search films query --save x.yaml",
        "library x.yaml",
        "library films --library x.yaml",
        "clip x.yaml 0-1",
        "clip films/none.mp4 0-1 --output x.yaml",
        "serve x.yaml",
        "evaluate x.yaml",
        "pipeline x.yaml --output system",
        "describe x.yaml",
        "presets x.yaml",
        "train --preset x.yaml",
        "train --preset gmmformer-toy --output x.yaml --print-config",
        "train --config config.yaml --print-config",
        "plot scores x.yaml",
        "convert captions x.yaml --features films --output data",
        "papers show x.yaml",
        "papers show hlformer-table-2 --output x.yaml",
        "papers pack x.yaml",
        "data show x.yaml",
    ],
)
def test_a_file_that_is_no_configuration_and_no_table_imports_nothing(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "films").mkdir()
    (tmp_path / "marked.py").write_text("open('ran', 'w')\n")
    for name in ("x.yaml", "config.yaml"):
        (tmp_path / name).write_text("imports: [marked]\nname: x\nbase: gmmformer-toy\n")
    main(shlex.split(command))
    assert not (tmp_path / "ran").exists()
    assert "marked" not in sys.modules


@pytest.mark.parametrize(
    "command", ["train --print-config --config=mine.yaml", "papers plan ablation.yaml", "papers list ablation.yaml"]
)
def test_only_the_named_module_comes_from_the_working_folder(
    folder: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what it imports itself; no library that is not installed, whoever asks for it meanwhile."""
    (folder / "site").mkdir()  # where libraries are installed may lie below
    (folder / "site" / "wanting.py").write_text("try:\n    import no_such_library\nexcept ImportError:\n    pass\n")
    monkeypatch.syspath_prepend(folder / "site")
    (folder / "beside.py").write_text("open('beside', 'w')\n")
    (folder / "no_such_library.py").write_text("open('library', 'w')\n")
    text = (folder / "myparts.py").read_text(encoding="utf-8")
    text += "\nimport beside\nimport wanting\nfrom prvr.errors import MissingExtraError, require\n"
    text += "try:\n    require('no_such_library', 'x', 'It')\nexcept MissingExtraError:\n    open('absent', 'w')\n"
    (folder / "myparts.py").write_text(text, encoding="utf-8")
    assert main(shlex.split(command)) == 0
    assert {path.name for path in folder.iterdir()} >= {"beside", "absent"}
    assert not (folder / "library").exists()
    for name in ("beside", "wanting"):
        sys.modules.pop(name)


def test_an_installed_package_may_name_its_module(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    about = folder / "parts-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: parts\nVersion: 1.0\n", encoding="utf-8")
    (about / "entry_points.txt").write_text("[prvr.parts]\nshort = myparts\n", encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    text = (folder / "mine.yaml").read_text(encoding="utf-8").replace("[myparts]", "[short]")
    (folder / "mine.yaml").write_text(text, encoding="utf-8")
    assert main(["train", "--config", "mine.yaml", "--print-config"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["imports"] == ["short", "myparts"]
