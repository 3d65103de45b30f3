"""Several folders in one search: ranked as one, with one encoder; a folder is never taken for a sentence."""

import shutil
from pathlib import Path

import pytest
from counting_encoder import NAME, film
from film_collections import Collection

from prvr.cli import main


def test_several_folders_are_ranked_as_one(collection: Collection) -> None:
    """Copies among them are one result, and what a line says counts in each."""
    other, third = collection.base / "other" / "films", collection.base / "third"
    film(other / "crimson.mp4", 0, shade=230)
    film(third / "grass.mp4", 1, shade=150)
    shutil.copy(collection.films / "green.mp4", other / "copy.mp4")
    (third / "grass.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\nsomething green\n")
    whole = collection.base / "whole"
    for folder, name in ((collection.films, ""), (other, "films"), (third, "third")):
        shutil.copytree(folder, whole / name, dirs_exist_ok=True)
    also = ("--also", str(other), "--also", str(third))
    for sentence in ("something red", "something green"):
        expected = collection.search(sentence, folder=whole)
        encodings = collection.encodings
        out = collection.run("search", str(collection.films), sentence, "--encoder", NAME, "--paths", *also)
        places = {other.resolve(): "films", third.resolve(): "third", collection.films.resolve(): "."}
        paths = [Path(line) for line in out.splitlines()]
        found = [
            next(
                Path(name) / path.relative_to(base) for base, name in places.items() if base in path.parents
            ).as_posix()
            for path in paths
        ]
        assert found == expected
        assert collection.encodings == encodings
    table = collection.run("search", str(collection.films), "something red", "--encoder", NAME, *also)
    assert "of 6 videos" in table
    lines = collection.run("search", str(collection.films), "--subtitles", "green", "--encoder", NAME, "--paths", *also)
    assert lines.split() == [str(third.resolve() / "grass.mp4")]


def test_a_file_is_one_result_however_many_folders_hold_it(collection: Collection) -> None:
    inner = collection.films / "day 2"
    film(inner / "crimson.mp4", 0, shade=230)
    also = ("--also", str(collection.films), "--also", str(inner))
    table = collection.run("search", str(collection.films), "something red", "--encoder", NAME, *also)
    assert "of 4 videos" in table
    assert "also" not in table


def test_a_new_folder_gets_the_encoder_of_the_first_and_another_rate_is_refused(
    collection: Collection, clip: str
) -> None:
    other = collection.base / "other"
    film(other / "crimson.mp4", 0, shade=230)
    collection.run("search", str(collection.films), "red", "--encoder", clip)
    command = ("search", str(collection.films), "red", "--paths", "--also", str(other))
    assert len(collection.run(*command).splitlines()) == 4
    table = "".join(collection.run("library", str(other)).replace("│", "").split())  # a long path is wrapped
    assert f"{clip},2framespersecond" in table
    collection.run("search", str(other), "red", "--encoder", clip, "--rate", "1")
    collection.run(*command, status=2)
    assert ", 1 frames per second" in collection.said
    assert "Pass --encoder and --rate for both" in collection.said


def test_a_folder_is_no_sentence(collection: Collection) -> None:
    for word in ("./flims", "/mnt/flims", "day 2/"):
        collection.run("search", str(collection.films), word, status=2)
        assert f"{word}: expected a sentence, got a folder. Search further ones with --also." in collection.said
    collection.run("search", str(collection.films), "red", "--also", str(collection.base / "flims"), status=2)
    assert "flims: no such file or directory" in collection.said
    assert collection.encodings == 0


def test_the_help_says_what_is_fetched(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", "--help"]) == 0
    assert "google/siglip-base-patch16-224 (0.8 GB)" in " ".join(capsys.readouterr().out.replace("│", " ").split())
