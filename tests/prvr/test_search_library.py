"""A library follows its folder: nothing is encoded twice, what is gone is forgotten, what is away is not."""

import copy
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import explained
from search_files import tiny_model
from video_files import plain, write_video
from video_models import tiny_clip

from prvr import Library
from prvr.cli import main
from prvr.data.atomic import owned
from prvr.data.synthetic.encoder import load_encoder
from prvr.data.synthetic.mp4 import write_mp4
from prvr.errors import DataError
from prvr.search import LibraryBusy
from prvr.search.film_library import library_folder
from prvr.video import DEFAULT_ENCODER, DownloadNeeded, open_encoder
from prvr.video.encoders import toy
from prvr.video.encoders.toy import ToyEncoder

pytest.importorskip("av")
QUERY = "a red square"


@pytest.fixture
def films(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three films, in a home of their own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "films"
    (folder / "day 2").mkdir(parents=True)
    for place, name in enumerate(("red.mp4", "green.mp4", "day 2/blue.mp4")):
        frames = plain([60] * 30, 64, 64)
        for frame in frames[10 : 20 + place]:
            frame[16:48, 16:48, place] = 250
        write_video(folder / name, frames)
    return folder


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many frames each call of the encoder got."""
    calls: list[int] = []
    encode = ToyEncoder.encode

    def counted(self: Any, frames: np.ndarray) -> np.ndarray:
        calls.append(len(frames))
        return encode(self, frames)

    monkeypatch.setattr(ToyEncoder, "encode", counted)
    return calls


def updated(folder: Path, encoder: str | None = None) -> Any:
    with Library(folder, encoder=encoder) as library:
        return library.update()


def shown(folder: Path) -> dict[str, str]:
    """Path of every film that a search finds, by its id."""
    with Library(folder) as library:
        return {hit.video_id: hit.video.path for hit in library.search(QUERY, 100).hits}


def test_a_library_follows_its_folder(films: Path, encoded: list[int]) -> None:
    report = updated(films, "toy")
    assert set(report.encoded) == {"red.mp4", "green.mp4", "day 2/blue.mp4"}
    assert (report.reused, report.forgotten, report.unreadable, report.away) == ((), (), (), False)
    assert len(encoded) == 3
    encoded.clear()

    assert updated(films) == type(report)()
    (films / "red.mp4").rename(films / "renamed.mp4")
    (films / "green.mp4").rename(films / "day 2" / "green.mp4")
    shutil.copy2(films / "renamed.mp4", films / "copy.mp4")
    os.utime(films / "day 2" / "blue.mp4", ns=(10**18, 10**18))
    report = updated(films)
    assert set(report.reused) == {"renamed.mp4", "day 2/green.mp4", "copy.mp4"}
    assert (report.encoded, report.forgotten) == ((), ())

    (films / "copy.mp4").unlink()
    report = updated(films)
    assert (report.encoded, report.reused, report.forgotten) == ((), (), ("copy.mp4",))
    assert encoded == []

    write_video(films / "renamed.mp4", plain([200] * 30))
    write_video(films / "new.mp4", plain([20] * 30))
    assert set(updated(films).encoded) == {"renamed.mp4", "new.mp4"}
    assert len(encoded) == 2
    expected = {path.relative_to(films).as_posix(): str(path) for path in films.rglob("*.mp4")}
    assert shown(films) == expected
    assert updated(films) == type(report)()


def test_the_best_film_comes_first_and_a_search_brings_up_to_date(films: Path) -> None:
    with Library(films, encoder="toy") as library:
        assert library.search(QUERY, 1).hits[0].video_id == "red.mp4"
    (films / "red.mp4").unlink()
    with Library(films) as library:
        assert "red.mp4" not in {hit.video_id for hit in library.search(QUERY).hits}
        assert library.report is not None
        assert library.report.forgotten == ("red.mp4",)


@pytest.mark.parametrize("how", ["the folder is gone", "all films are gone"])
def test_what_is_away_is_not_forgotten(films: Path, encoded: list[int], how: str) -> None:
    updated(films, "toy")
    encoded.clear()
    aside = films.with_name("disk")
    films.rename(aside)
    if how == "all films are gone":
        films.mkdir()
    assert updated(films).away
    assert len(shown(films)) == 3
    if films.exists():
        films.rmdir()
    aside.rename(films)
    assert not updated(films).away
    assert len(shown(films)) == 3
    assert encoded == []


def test_a_folder_that_was_moved_takes_its_library_along(films: Path, encoded: list[int]) -> None:
    updated(films, "toy")
    encoded.clear()
    moved = films.rename(films.with_name("another disk"))
    assert updated(moved).encoded == ()
    assert shown(moved)["red.mp4"] == str(moved / "red.mp4")
    assert encoded == []
    assert shown(films)["red.mp4"] == str(films / "red.mp4")  # what is known of the old place is still there


def test_films_that_cannot_be_read_are_named_and_tried_again_when_they_change(films: Path, encoded: list[int]) -> None:
    (films / "broken.mp4").write_bytes(b"no film")
    assert [one.id for one in updated(films, "toy").unreadable] == ["broken.mp4"]
    encoded.clear()
    (again,) = updated(films).unreadable
    assert again.id == "broken.mp4"
    assert again.reason
    assert again.remedy
    write_video(films / "broken.mp4", plain([100] * 30))
    report = updated(films)
    assert (report.encoded, report.unreadable) == (("broken.mp4",), ())
    (films / "gone.mp4").write_bytes(b"no film")
    assert len(updated(films).unreadable) == 1
    (films / "gone.mp4").unlink()
    assert updated(films).unreadable == ()
    with Library(films) as library:
        assert library.unreadable == ()


def test_each_encoder_has_a_place_and_a_moved_one_is_recognised(films: Path, tmp_path: Path) -> None:
    clip = tiny_clip(tmp_path / "clip")
    updated(films, "toy")
    assert len(updated(films, str(clip)).encoded) == 3
    assert updated(films, "toy").encoded == ()
    assert updated(films).encoded == ()  # the one used last is recognised too
    with Library(films) as library:
        assert library.index.source.manifest.encoder.encoder == open_encoder("toy").identity
    updated(films, str(clip))
    moved = clip.rename(tmp_path / "moved")
    write_video(films / "new.mp4", plain([20] * 30))
    with pytest.raises(DataError, match="clip"):
        updated(films)
    assert updated(films, str(moved)).encoded == ("new.mp4",)
    with Library(films, encoder=str(moved)) as library:
        assert len(library.search("a red circle").hits) == 4


def test_the_encoder_of_another_release_starts_anew(films: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoder that ships keeps its name when a release of prvr trains it again."""
    updated(films, "toy")
    other = copy.deepcopy(load_encoder())
    other.sha256 = "0" * 64
    with torch.no_grad():
        for weight in other.parameters():
            weight *= 1.01
    with monkeypatch.context() as released:
        released.setattr(toy, "load_encoder", lambda: other)
        for again in (False, True):
            with Library(films) as library:
                assert len(library.search(QUERY).hits) == 3
                assert library.report is not None
                assert len(library.report.encoded) == (0 if again else 3)
                assert library.index.source.manifest.encoder.encoder.weights == other.sha256
    assert updated(films).encoded == ()  # that of the release before is still there


def test_an_encoder_that_was_replaced_starts_anew_once_there_is_a_new_film(films: Path, tmp_path: Path) -> None:
    clip = tiny_clip(tmp_path / "clip")
    updated(films, str(clip))
    tiny_clip(clip, nudge=1.0)
    assert updated(films).encoded == ()
    write_video(films / "new.mp4", plain([20] * 30))
    assert len(updated(films).encoded) == 4
    with Library(films) as library:
        assert len(library.search(QUERY).hits) == 4
        assert library.index.source.manifest.encoder.encoder == open_encoder(str(clip)).identity


def test_a_library_works_from_every_folder(films: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_clip(tmp_path / "clip")
    monkeypatch.chdir(tmp_path)
    updated(Path("films"), "clip")
    monkeypatch.chdir(films / "day 2")
    with Library(Path("..")) as library:
        assert len(library.search("a red circle").hits) == 3


def test_a_model_has_one_index_wherever_it_is_named(
    films: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model that ships goes by its name; a folder of this name is meant by its path."""
    updated(films, "toy")
    tiny_model(tmp_path / "toy-world")
    found = []
    for model in ("toy-world", Path("toy-world"), "./toy-world", "../toy-world"):
        monkeypatch.chdir(films if str(model).startswith("..") else tmp_path)
        with Library(films, encoder="toy", model=model) as library:
            library.update()
            found.append((library.index.folder, library.index.model.dim))
    monkeypatch.chdir(films)
    with Library(films, encoder="toy", model="toy-world") as library:
        found.append((library.index.folder, library.index.model.dim))
    assert found[0] == found[4]
    assert found[1] == found[2] == found[3] == (found[1][0], 16)
    assert found[0] != found[1]


def test_drawn_films_alone_are_given_to_the_encoder_of_drawn_films(films: Path, tmp_path: Path) -> None:
    drawn = tmp_path / "drawn"
    drawn.mkdir()
    write_mp4(drawn / "a.mp4", np.stack(plain([60] * 4, 16, 16)))
    assert updated(drawn).encoded == ("a.mp4",)
    shutil.copy(films / "red.mp4", drawn)
    with pytest.raises(DataError, match=r"red\.mp4 is not a video of the toy corpus.*--encoder"):
        updated(drawn)
    assert updated(drawn, "toy").encoded == ("red.mp4",)


def test_one_process_at_a_time_changes_a_library(films: Path, caplog: pytest.LogCaptureFixture) -> None:
    updated(films, "toy")
    (films / "red.mp4").unlink()
    with owned(library_folder(films), "busy"):
        with pytest.raises(LibraryBusy, match="another process"):
            updated(films)
        assert main(["search", str(films), QUERY, "--device", "cpu"]) == 0
    assert "Using the saved index" in caplog.text


def test_commands_search_a_folder(films: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (films.parent / "empty").mkdir()
    assert "no videos found" in explained(["search", str(films.parent / "empty"), QUERY], capsys)
    assert "not found" in explained(["search", str(films / "nowhere"), QUERY], capsys)
    assert "none indexed yet" in command(["where", str(films)], capsys)
    out = command(["search", str(films), QUERY, "--encoder", "toy", "-k", "1"], capsys)
    assert "red.mp4" in out
    assert "1 of 3 videos" in out
    (films / "red.mp4").unlink()
    assert "red.mp4" in command(["search", str(films), QUERY, "--no-update", "-k", "1"], capsys)
    assert "red.mp4" not in command(["search", str(films), QUERY], capsys)
    (films / "broken.mp4").write_bytes(b"no film")
    command(["search", str(films), QUERY], capsys)
    out = command(["where", str(films)], capsys)
    assert "cannot be read: broken.mp4" in out
    assert "toy" in out
    index = next(library_folder(films).glob("*/index"))
    assert "--model" in explained(["search", str(index), QUERY, "--model", "zero-shot"], capsys)


def command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


def test_nothing_is_downloaded_without_consent(films: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DownloadNeeded, match="--download"):
        open_encoder("owner/name")
    said = explained(["search", str(films), QUERY, "--encoder", "openai/clip-vit-base-patch23"], capsys)
    assert "Did you mean openai/clip-vit-base-patch32" in said
    assert "--download" in explained(["extract", str(films), "--encoder", "owner/name", "--output", "store"], capsys)


TWO_SEARCHES = """
import shutil, sys
from prvr import Library
from prvr.cli import main
films, hub, library = sys.argv[1:]
assert main(["search", films, "a red circle", "--device", "cpu"]) == 0
with Library(films) as opened:
    print(opened.index.source.manifest.encoder.encoder.name)
for folder in (hub, library):
    shutil.rmtree(folder)
sys.exit(main(["search", films, "a red circle"]))
"""


def test_a_downloaded_encoder_is_found(films: Path, tmp_path: Path) -> None:
    """In a process of its own, because the hub's library reads its settings when it is imported."""
    hub = tmp_path / "hf" / "hub"
    folder = hub / "models--owner--clip"
    tiny_clip(folder / "snapshots" / ("1" * 40))
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("1" * 40)
    environment = os.environ | {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"}
    environment.pop("HF_HUB_CACHE", None)
    run = [sys.executable, "-c", TWO_SEARCHES, str(films), str(hub), str(library_folder(films))]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    assert done.returncode == 2, done.stderr
    assert "of 3 videos" in done.stdout
    assert "\nowner/clip\n" in done.stdout
    assert DEFAULT_ENCODER in done.stderr
    assert "--download" in done.stderr
