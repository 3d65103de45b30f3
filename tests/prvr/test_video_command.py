"""`prvr extract`: the table, the exit code, the bar, and what it refuses."""

import os
import re
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from commands import cells, explained
from video_files import UNREADABLE, plain, write_video

from prvr.cli import main
from prvr.video import VideoStore

pytest.importorskip("av")


@pytest.fixture
def video(tmp_path: Path) -> Path:
    return write_video(tmp_path / "a.mp4", plain(range(20, 220, 10)))


def test_all_that_is_broken_stands_in_the_table_and_the_rest_in_the_store(
    hostile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["extract", str(hostile), "--encoder", "toy", "--output", str(tmp_path / "store"), "--device", "cpu"]
    assert main(command) == 0
    out, err = capsys.readouterr()
    said = cells(out)
    assert "extracted 6" in said
    assert "moved or copied 2" in said  # of the same content as another
    assert "failed 5" in said
    for name, reason in UNREADABLE.items():
        assert name in said
        assert reason.split(" (")[0] in said
    assert "frames end at" in said  # the truncated one, among the warnings
    assert "\r" not in err  # no bar where there is no terminal
    assert len(VideoStore(tmp_path / "store").video_ids) == 8
    assert main(command) == 0
    assert "extracted 0" in (again := cells(capsys.readouterr().out))
    assert "unchanged 8" in again


def test_a_clip_in_a_folder_at_another_rate(
    video: Path, clip: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    command = ["extract", str(video), "--encoder", clip, "--output", str(store), "--device", "cpu"]
    assert main([*command, "--rate", "5", "--batch-size", "3"]) == 0
    opened = VideoStore(store)
    assert opened.read("a.mp4").shape == (10, 12)
    assert opened.rate == 5
    assert "at 5 frames per second; expected" in explained([*command, "--rate", "4"], capsys)


def test_the_exit_code_says_when_nothing_could_be_read(
    hostile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, videos in enumerate(([hostile / "empty.mp4", hostile / "sound.mp4"], [tmp_path / "none.mp4"])):
        store = str(tmp_path / f"store{number}")
        assert main(["extract", *map(str, videos), "--encoder", "toy", "--output", store, "--device", "cpu"]) == 2
        out, err = capsys.readouterr()
        assert f"failed {len(videos)}" in cells(out)
        assert f"None of the {len(videos)} files could be read" in err
    (tmp_path / "bare").mkdir()
    assert main(["extract", str(tmp_path / "bare"), "--encoder", "toy", "--output", str(tmp_path / "s")]) == 2
    assert "no video files found" in capsys.readouterr().err


def test_mistakes_are_explained(video: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["extract", str(video), "--output", str(tmp_path / "store"), "--device", "cpu"]
    assert "--encoder is required" in explained(command, capsys)
    assert "Expected 'toy'" in explained([*command, "--encoder", str(tmp_path)], capsys)
    command += ["--encoder", "toy"]
    assert "expected a positive number" in explained([*command, "--rate", "0"], capsys)
    assert "expected positive numbers" in explained([*command, "--max-hours", "-1"], capsys)
    for option, value in (
        ("rate", "nan"), ("rate", "inf"), ("rate", "1e9"), ("rate", "1e-9"), ("batch-size", "0"),
        ("max-hours", "nan"), ("max-hours", "inf"), ("max-megapixels", "nan"), ("max-megapixels", "inf"),
        ("max-megapixels", "0"), ("max-megapixels", "1e5"), ("batch-size", "1000000000"),
    ):  # fmt: skip
        assert re.search("expected|Must be", explained([*command, f"--{option}", value], capsys))
    assert "expected a whole number" in explained([*command, "--batch-size", "many"], capsys)
    assert "contains other files" in explained([*command[:3], str(tmp_path), *command[4:]], capsys)


def test_limits_can_be_set(video: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["extract", str(video), "--encoder", "toy", "--output", str(tmp_path / "store"), "--device", "cpu"]
    assert main([*command, "--max-megapixels", "0.001"]) == 2
    assert "at most 1,000 pixels are decoded" in cells(capsys.readouterr().out)
    assert main([*command, "--max-hours", "0.0001"]) == 2
    assert "2 s long, at most 0 s" in cells(capsys.readouterr().out)
    assert main(command) == 0


def test_names_obey_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither the terminal nor the table takes a name for an order."""
    try:
        (tmp_path / "\x1b[31m[red]x\n.mp4").touch()
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.mp4")).touch()
    except OSError:
        pytest.skip("this file system takes no such names")
    assert main(["extract", str(tmp_path), "--encoder", "toy", "--output", str(tmp_path / "store")]) == 2
    out, _ = capsys.readouterr()
    assert "\x1b[31m" not in out
    assert r"\x1b[31m[red]x\n.mp4" in out
    assert r"caf\udce9.mp4" in out


@pytest.mark.skipif(sys.platform == "win32", reason="a terminal of POSIX")
def test_the_bar_shows_the_time_left_on_a_terminal(
    video: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pty

    leader, follower = pty.openpty()
    shown = ""

    def read() -> None:  # all the time: a terminal that nobody reads is full soon
        nonlocal shown
        with suppress(OSError):  # how Linux says that the other end was closed
            while part := os.read(leader, 4096):
                shown += part.decode(errors="replace")

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(follower, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.delenv("NO_COLOR", raising=False)
        command = ["extract", str(video), "--encoder", "toy", "--output", str(tmp_path / "store"), "--device", "cpu"]
        assert main([*command, "--batch-size", "1"]) == 0
    reader.join()
    os.close(leader)
    assert "a.mp4" in shown
    assert "%" in shown
    assert "0:00:00" in shown


def test_without_the_extra_it_says_what_to_install(
    video: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for missing, encoder in (("av", "toy"), ("transformers", str(tmp_path))):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, missing, None)
            command = ["extract", str(video), "--encoder", encoder, "--output", str(tmp_path / missing)]
            assert 'pip install "prvr[video]"' in explained([*command, "--device", "cpu"], capsys)
