"""`prvr library` and `prvr export`: what they print, the bar, and what they refuse."""

import os
import re
from pathlib import Path

import pytest
from commands import cells, explained
from counting_encoder import NAME
from video_files import UNREADABLE, plain, write_video

from prvr.cli import main

pytest.importorskip("av")


@pytest.fixture
def video(tmp_path: Path) -> Path:
    (tmp_path / "films").mkdir()
    return write_video(tmp_path / "films" / "a.mp4", plain(range(20, 220, 10)))


def test_all_that_is_broken_is_listed_and_the_rest_is_encoded(
    hostile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["library", str(hostile), "--encoder", "toy", "--library", str(tmp_path / "home"), "--device", "cpu"]
    assert main([*command, "--update"]) == 0
    out, err = capsys.readouterr()
    said = cells(out)
    assert "8 of 13 encoded" in said
    for name, reason in UNREADABLE.items():
        assert re.search(f"^{name}: .*{re.escape(reason)}", err, re.M)
        assert name in said
        assert reason.split(" (")[0] in said
    assert "\r" not in err  # no bar where there is no terminal


def test_mistakes_are_explained(video: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["library", str(video.parent), "--update", "--library", str(tmp_path / "home"), "--device", "cpu"]
    assert "not a model of transformers" in explained([*command, "--encoder", str(tmp_path)], capsys)
    command += ["--encoder", "toy"]
    for option, value in (("rate", "0"), ("shard", "3/2")):
        assert re.search("expected|Invalid", explained([*command, f"--{option}", value], capsys))
    assert "only be used with --update" in explained(["library", str(video.parent), "--shard", "1/2"], capsys)
    assert "no library found" in explained(["library", str(video.parent), "--import", str(tmp_path)], capsys)


def test_names_obey_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither the terminal nor the table takes a name for an order."""
    try:
        (tmp_path / "\x1b[31m[red]x\n.mp4").touch()
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.mp4")).touch()
    except OSError:
        pytest.skip("this file system takes no such names")
    assert main(["library", str(tmp_path), "--encoder", "toy", "--library", str(tmp_path / "home"), "--update"]) == 0
    out, _ = capsys.readouterr()
    assert "\x1b[31m" not in out
    assert r"\x1b[31m[red]x\n.mp4" in out
    assert r"caf\udce9.mp4" in out


def test_a_query_is_text(video: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search = ["search", str(video.parent), "--encoder", NAME, "--library", str(tmp_path / "home"), "-q"]
    for words in (["caf\udce9"], ["--subtitles=\udcff"], ["red", "--with=\udcff"], ["red", "--without=\udcff"]):
        assert "expected text, got bytes that are not UTF-8" in explained([*search, *words], capsys)


def test_an_output_may_have_any_name(video: Path, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    output = tmp_path / os.fsdecode(b"caf\xe9.json")
    options = ["--encoder", "toy", "--library", str(tmp_path / "home"), "--json", str(output)]
    assert main(["search", str(video.parent), "red", *options]) == 0
    assert output.is_file()
    assert rb"caf\udce9.json: written" in capsysbinary.readouterr().out
