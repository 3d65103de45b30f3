"""What others put beside our files stays: nothing is deleted that this program has not provably made."""

import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from kills import die, killed
from search_files import without

from prvr.data import DataError
from prvr.data.atomic import new_folder, publish, replace_file, temporary_folder, write_file, write_output
from prvr.encoders import VideoFeatures
from prvr.training import TrainingError
from prvr.training.checkpoint import recover, replace_folder
from prvr_search import VideoIndex

LONG_AGO = (0, 0)


def thesis(folder: Path) -> Path:
    """Somebody's folder, untouched for years."""
    folder.mkdir(parents=True)
    (folder / "thesis.tex").write_text("mine")
    os.utime(folder / "thesis.tex", LONG_AGO)
    os.utime(folder, LONG_AGO)
    return folder


def intact(folder: Path) -> bool:
    return (folder / "thesis.tex").read_text() == "mine"


def killed_while_writing(target: Path) -> Path:
    """The folder that a process leaves which is killed while it fills one."""

    def act() -> None:
        with temporary_folder(target) as folder:
            (folder / "deep").mkdir()
            (folder / "deep" / "half").write_text("half")
            die()

    assert killed(act)
    (left,) = (path for path in target.parent.iterdir() if path.is_dir())
    for path in [*left.rglob("*"), left]:
        os.utime(path, LONG_AGO)
    return left


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked and killed as POSIX does")
def test_what_a_killed_process_left_goes_after_a_day_and_only_that_of_the_same_target(tmp_path: Path) -> None:
    left = killed_while_writing(tmp_path / "index")
    other = shutil.copytree(left, tmp_path / left.name.replace("index", "thesis"))
    linked = tmp_path / left.name.replace("index", "index-")
    thesis(tmp_path / "elsewhere")
    linked.symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    recent = shutil.copytree(left, left.with_name(left.name[:-16] + "0a1b2c3d" * 2))
    os.utime(recent)
    with temporary_folder(tmp_path / "index"):
        assert not left.exists()
        assert recent.exists()
        assert other.exists()
    assert intact(linked)


def test_a_folder_that_holds_anything_else_is_not_replaced(tmp_path: Path) -> None:
    target = thesis(tmp_path / "target")
    with temporary_folder(target) as folder:
        (folder / "meta.json").write_text("ours")
        with pytest.raises(DataError, match=r"target: holds thesis\.tex.*another"):
            publish(folder, target, lambda _: False)
    assert intact(target)
    link = tmp_path / "link"
    link.symlink_to(target, target_is_directory=True)
    with temporary_folder(link) as folder:
        (folder / "thesis.tex").write_text("ours")
        with pytest.raises(DataError, match="link: is a symbolic link"):
            publish(folder, link, lambda _: False)
    assert intact(target)


def test_a_new_folder_appears_whole_and_takes_no_place_of_others(tmp_path: Path) -> None:
    target, other = tmp_path / "target", tmp_path / "other"
    with suppress(KeyboardInterrupt), new_folder(target) as folder:
        (folder / "half").write_text("ours")
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())
    target.mkdir()
    with new_folder(target) as folder:
        (folder / "whole").write_text("ours")
        assert not list(target.iterdir())
    assert [path.name for path in target.iterdir()] == ["whole"]
    with pytest.raises(DataError, match="target: already exists and is not empty"), new_folder(target):
        pass
    with pytest.raises(DataError, match="other: another process has just written to it"), new_folder(other):
        thesis(other)
    assert intact(other)
    assert {path.name for path in tmp_path.iterdir()} == {"target", "other"}


def test_a_link_in_the_place_of_a_half_written_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / f"out.json.{os.getpid()}.prvr-tmp").symlink_to(tmp_path / "mine")
    replace_file(tmp_path / "out.json", lambda file: file.write(b"{}"))
    assert (tmp_path / "mine").read_text() == "mine"
    assert (tmp_path / "out.json").read_text() == "{}"


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of POSIX")
def test_a_pipe_and_a_link_that_the_user_names_are_written_to_and_stay(tmp_path: Path) -> None:
    pipe, link, file = (tmp_path / name for name in ("pipe", "link", "file"))
    os.mkfifo(pipe)
    link.symlink_to(file)
    file.write_text("before")
    with ThreadPoolExecutor() as threads:
        content = threads.submit(pipe.read_bytes)
        write_output(pipe, b"{}")
        assert content.result(timeout=20) == b"{}"
    write_output(link, b"{}")
    assert pipe.is_fifo()
    assert (link.is_symlink(), file.read_text()) == (True, "{}")
    with pytest.raises(DataError, match="Is a device or a pipe"):
        write_file(pipe, lambda file: file.write(b"{}"))
    assert sorted(tmp_path.iterdir()) == [file, link, pipe]


# Run folders.


def test_cleaning_a_run_folder_leaves_what_others_put_there(tmp_path: Path) -> None:
    run = tmp_path / "run"
    kept = [thesis(run / name) for name in ("best", "notes", "notes.replaced", "best.replaced", "x.prvr-tmp")]
    thesis(tmp_path / "home" / "a.prvr-tmp")
    (tmp_path / "home" / "b.prvr-tmp").write_text("mine")
    (run / "linked").symlink_to(tmp_path / "home", target_is_directory=True)
    (run / "last").symlink_to(tmp_path / "home", target_is_directory=True)
    recover(run)
    assert all(map(intact, kept))
    assert intact(tmp_path / "home" / "a.prvr-tmp")
    assert (tmp_path / "home" / "b.prvr-tmp").exists()


def test_a_link_in_the_place_of_best_is_neither_replaced_nor_filled(tmp_path: Path) -> None:
    thesis(tmp_path / "home")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "best").symlink_to(tmp_path / "home", target_is_directory=True)
    with pytest.raises(TrainingError, match="best: is a symbolic link"):
        replace_folder(tmp_path / "run" / "best", lambda folder: (folder / "new").write_text("new"))
    assert intact(tmp_path / "run" / "best")
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["thesis.tex"]


# Indices.


def test_vectors_in_a_linked_folder_delete_nothing(index: VideoIndex, features: VideoFeatures, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    thesis(elsewhere / "mine")
    for name in ("notes.vectors", f"{'a' * 64}.vectors"):
        (elsewhere / name).write_text("mine")
    shutil.rmtree(index.folder)
    index.folder.symlink_to(elsewhere, target_is_directory=True)
    before = sorted(elsewhere.rglob("*"))
    for left in (features, without(features, "v000.mp4"), features):
        with suppress(DataError):
            index.update(left)
    assert set(before) <= set(elsewhere.rglob("*"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked and killed as POSIX does")
def test_a_link_in_the_place_of_a_left_over_folder_protects_what_is_there(tmp_path: Path) -> None:
    left = killed_while_writing(tmp_path / "index")
    away = left.rename(tmp_path / "away")
    left.symlink_to(away, target_is_directory=True)
    with temporary_folder(tmp_path / "index"):
        assert (away / "deep" / "half").exists()
