"""Damaged and malicious libraries: the answer is the clean one, nothing is encoded twice, and nothing else is touched.

`PRVR_FLIPS=100 pytest tests/prvr/test_library_damage.py -k flipped` flips so many bits in every kind of file, and cuts
it so many times; `PRVR_SEED` is the first seed.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from counting_encoder import NAME
from film_collections import ALL, Collection, files, refusing

from prvr.cli import main
from prvr_search import Library
from prvr_search.store.proof import HEAD, read_proven, write_proven

FLIPS, SEED = (int(os.environ.get(name, default)) for name, default in (("PRVR_FLIPS", "2"), ("PRVR_SEED", "0")))


@pytest.fixture
def collection(collection: Collection) -> Collection:
    """Three films, one of them with subtitles, which were searched once."""
    (collection.films / "red.en.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\nthe lantern\n")
    collection.check(3)
    return collection


def answers(collection: Collection, *options: str) -> list[str]:
    """All that is answered to a sentence, which matches a line as well, and to words of subtitles alone."""
    queries = (["blue lantern"], ["--subtitles", "lantern"])
    command = ("search", str(collection.films), "--encoder", NAME, "--json", "-", *options)
    return [collection.run(*command, *query) for query in queries]


def kinds(collection: Collection) -> Iterator[tuple[str, Path]]:
    """A file of each kind that a library and its cache are made of."""
    found = {}
    for place in (collection.home, collection.cache.parent):
        found |= {path.suffix or path.name: path for path in place.rglob("*") if path.is_file()}
    for kind in (".features", ".json", "changed", "films", "lines", "catalogue", ".vectors", ".mean"):
        yield kind, found.pop(kind)
    assert found.keys() <= {".lock", ".damaged"}


def flip(path: Path, random: Random | None = None) -> None:
    """Flips a bit, of the last byte or of any, and leaves the time of the file as it was."""
    content, status = bytearray(path.read_bytes()), path.stat()
    place, bit = (-1, 6) if random is None else (random.randrange(len(content)), random.randrange(8))
    content[place] ^= 1 << bit
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def flip_or_cut(path: Path, seed: int) -> None:
    """Flips any bit, or leaves out what follows any byte."""
    random = Random(f"{path.suffix or path.name} {seed}")
    if seed % 2:
        os.truncate(path, random.randrange(path.stat().st_size))
    else:
        flip(path, random)


def instead(path: Path, make: Callable[[Path], object]) -> None:
    """Puts something else in the place of a file, which lies beside the library then."""
    outside = path.rename(next(parent for parent in path.parents if parent.name == "prvr").parent / f"my-{path.name}")
    if make is os.symlink:
        path.symlink_to(outside)
    else:
        make(path)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "deleted": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: os.truncate(path, path.stat().st_size * 2 // 3),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\n"),
    "flipped": flip,
    "random": lambda path: path.write_bytes(np.random.default_rng(0).bytes(path.stat().st_size)),
    "link": lambda path: instead(path, os.symlink),
    "pipe": lambda path: instead(path, os.mkfifo),
    "folder": lambda path: instead(path, lambda path: (path / "inside").mkdir(parents=True)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_whatever_is_damaged_the_answer_is_the_clean_one(damage: str, collection: Collection) -> None:
    clean = answers(collection)
    for kind, path in kinds(collection):
        before, encodings = path.read_bytes(), collection.encodings
        DAMAGES[damage](path)
        assert answers(collection) == clean, kind
        assert collection.encodings - encodings == (kind == ".features"), kind
        for outside in collection.base.rglob(f"my-{path.name}"):
            assert outside.read_bytes() == before
        if path.is_dir():  # which is not ours
            shutil.rmtree(path)


def test_a_flipped_bit_never_changes_an_answer(collection: Collection) -> None:
    clean = answers(collection)
    for seed in range(SEED, SEED + 2 * FLIPS):
        for kind, path in kinds(collection):
            encodings = collection.encodings
            flip_or_cut(path, seed)
            assert answers(collection) == clean, (kind, seed)
            assert collection.encodings - encodings == (kind == ".features"), (kind, seed)


def test_a_flipped_bit_of_what_holds_no_features_changes_nothing(collection: Collection) -> None:
    """Of a film that was only described, and of why one cannot be encoded."""
    (collection.films / "broken.mp4").write_bytes(b"no film")
    new = str(collection.base / "new")
    collection.run("search", str(collection.films), "--subtitles", "lantern", "--library", new)
    collection.library("--import", new)
    clean, encodings = answers(collection), collection.encodings
    paths = [path for path in collection.feature_files if b'"frames": 0,' in path.read_bytes()]
    assert len(paths) == 5  # four were described, and one cannot be encoded
    for path in paths:
        content = path.read_bytes()
        for seed in range(SEED, SEED + FLIPS):
            flip_or_cut(path, seed)
            assert answers(collection) == clean, (path, seed)
            path.write_bytes(content)
    assert collection.encodings == encodings


@pytest.mark.parametrize("kind", [".taught", "moved.txt"])
def test_a_flipped_bit_of_what_cannot_be_made_again_is_said(kind: str, collection: Collection) -> None:
    captions, place = collection.base / "captions.csv", collection.base / "big disk"
    captions.write_text("video,text\n" + "".join(f"{name},{Path(name).stem}\n" for name in ALL))
    collection.run("teach", str(collection.films), str(captions), "--encoder", NAME)
    collection.library("--move", str(place))
    command = ["search", str(collection.films), "red", "--model", "taught", "--encoder", NAME, "--json", "-"]
    clean = collection.run(*command)
    (path,) = (path for home in (collection.home, place) for path in home.rglob(f"*{kind}"))
    content = path.read_bytes()
    for seed in range(SEED, SEED + 2 * FLIPS):
        flip_or_cut(path, seed)
        status = main(command)
        out, said = collection.capsys.readouterr()
        assert out == clean if status == 0 else (status, out) == (2, ""), seed
        assert "Traceback" not in said
        path.write_bytes(content)
    assert collection.encodings == 3


def test_files_of_a_kind_that_change_places_change_no_answer(collection: Collection) -> None:
    """Vectors of two models, means of two encoders, maps of two folders: each proves itself, but is not of its name."""
    other, captions = collection.base / "other", collection.base / "captions.csv"
    shutil.copytree(collection.films, other)
    taught = [("blue red green", collection.films), ("red green blue", other)]
    for colours, folder in taught:
        lines = (f"{name},{colour}\n" for name, colour in zip(ALL, colours.split(), strict=True))
        captions.write_text("video,text\n" + "".join(lines))
        collection.run("teach", str(folder), str(captions), "--encoder", NAME)
    kinds = [(collection.films, "taught", NAME), (other, "zero-shot", "counting_encoder:Turned")]
    kinds += [(other, model, NAME) for model in ("taught", "zero-shot", "training-free")]
    asked = "something red", "--json", "-"
    commands = [
        ["search", str(folder), *asked, "--model", model, "--encoder", encoder] for folder, model, encoder in kinds
    ]
    clean = [collection.run(*words) for words in commands]
    for suffix in (".vectors", ".mean", ".taught"):
        paths = sorted(collection.base.rglob(f"*{suffix}"))
        assert len(paths) > 1
        for first, second in pairwise(paths):
            contents = first.read_bytes(), second.read_bytes()
            first.write_bytes(contents[1])
            second.write_bytes(contents[0])
            for words, answer in zip(commands, clean, strict=True):
                status = main(words)
                out, said = collection.capsys.readouterr()
                assert out == answer if status == 0 else suffix == ".taught", (suffix, words)
                assert "Traceback" not in said
            if suffix == ".taught":
                first.write_bytes(contents[0])
                second.write_bytes(contents[1])
    assert [collection.run(*words) for words in commands] == clean


def test_a_note_of_a_move_that_is_cut_short_begins_no_library(collection: Collection) -> None:
    """Nor does the place of a disk that is not there."""
    place = collection.base / "disks" / "big disk"
    collection.library("--move", str(place))
    (note,) = collection.home.glob("moved.txt")
    content = note.read_bytes()
    for length in range(len(os.fsencode(collection.base)), len(content) - 1):
        note.write_bytes(content[:length])
        assert "not found; the library was moved there" in collection.refusal("search", "red")
    for damaged in (content[1:], b"/\0\n"):
        note.write_bytes(damaged)
        assert "expected the absolute path of a folder" in collection.refusal("search", "red")
    note.write_bytes(content)
    place.rename(collection.base / "away")
    place.mkdir()
    assert "Connect its disk" in collection.refusal("search", "red")
    assert [*place.iterdir()] == []
    place.rmdir()
    (collection.base / "away").rename(place)
    collection.check(3)


def test_a_file_of_vectors_that_is_cut_under_a_search_is_made_again(collection: Collection) -> None:
    with Library(collection.films, encoder=NAME) as library:
        hits = library.search("something red").hits
        for damage in ("cut", "flipped", "deleted"):
            (path,) = collection.cache.rglob("*.vectors")
            DAMAGES[damage](path)
            assert library.search("something red").hits == hits, damage
    assert collection.encodings == 3


def test_lines_that_are_damaged_under_an_open_library_are_those_that_it_has_read(collection: Collection) -> None:
    with Library(collection.films, encoder=NAME) as library:
        hits = library.search("lantern").hits
        assert any(hit.lines for hit in hits)
        for damage in ("cut", "flipped", "folder", "deleted"):
            (path,) = collection.cache.parent.glob("library/*/lines")
            content = path.read_bytes()
            DAMAGES[damage](path)
            assert library.search("lantern").hits == hits, damage
            shutil.rmtree(path, ignore_errors=True)
            path.write_bytes(content)


def test_what_is_known_of_a_folder_that_is_damaged_under_an_open_library_is_what_it_has_read(
    collection: Collection,
) -> None:
    (file,) = collection.home.glob("folders/*.json")
    content = file.read_bytes()
    with Library(collection.films, encoder=NAME) as library:
        hits = library.search("something red").hits
        for damage in ("cut", "flipped", "deleted"):
            DAMAGES[damage](file)
            library.store.touch()  # as another process does, so that all is read again
            assert library.search("something red", update=False).hits == hits, damage
            assert library.search("something red").hits == hits, damage
            file.write_bytes(content)
    assert collection.encodings == 3


@pytest.mark.parametrize("is_verified", [True, False])
def test_a_damaged_library_is_mended_and_harms_no_other(is_verified: bool, collection: Collection) -> None:
    clean, bad = answers(collection), collection.base / "bad"
    shutil.copytree(collection.home, bad)
    path = next(bad.rglob("*.features"))
    flip(path)
    if is_verified:
        out = collection.library("--library", str(bad), "--verify", status=1)
        assert path.name in out
        assert "damaged: 1 video;" in out
    for options in ([], ["--library", str(bad)], []):
        assert answers(collection, *options) == clean
    assert collection.encodings == 4
    for options in ([], ["--library", str(bad)]):
        assert "damaged: 0 videos" in collection.library("--verify", *options)


def test_a_copy_of_a_library_answers_by_itself(collection: Collection) -> None:
    clean, copy = answers(collection), collection.base / "copy"
    shutil.copytree(collection.home, copy)
    collection.search("red", "--rate", "1")
    assert answers(collection, "--library", str(copy)) == clean
    shutil.rmtree(collection.home)
    assert answers(collection, "--library", str(copy)) == clean
    assert collection.encodings == 6
    assert ", 2 frames per second" in collection.library("--library", str(copy))


def test_what_is_known_lies_with_the_features(clip: str, collection: Collection) -> None:
    """All else is deleted: the length of a film is the same; only the encoder of the folder has to be named."""
    command = ("search", str(collection.films), "red", "--json", "-", "--encoder", clip)
    clean = collection.run(*command)
    before = {path: path.stat().st_mtime_ns for path in collection.feature_files}
    for place in (collection.home / "folders", collection.cache.parent):
        shutil.rmtree(place)
    assert collection.run(*command) == clean
    assert {path: path.stat().st_mtime_ns for path in collection.feature_files} == before


def test_nothing_is_pruned_that_was_not_seen_again(collection: Collection) -> None:
    elsewhere = collection.base / "elsewhere"
    shutil.copytree(collection.films, elsewhere)
    collection.search(folder=elsewhere)
    (collection.films / "red.mp4").unlink()
    for path in (collection.home / "folders").glob("*.json"):
        if str(elsewhere) in path.read_text():
            flip(path)
    collection.library("--prune", status=2)
    assert "nothing was deleted" in collection.said  # where else it was seen is not known any more
    assert len(collection.search(folder=elsewhere)) == 3
    assert "pruned: 0 videos" in collection.library("--prune")
    shutil.rmtree(collection.home / "folders")
    (elsewhere / "green.mp4").unlink()
    for folder in (elsewhere, collection.films):
        collection.run("library", str(folder), "--encoder", NAME, "--prune")
        collection.search(folder=folder)
    assert len(collection.feature_files) == 3
    assert collection.encodings == 3


def test_what_cannot_be_read_now_is_neither_lost_nor_encoded_again(collection: Collection) -> None:
    names = {path.name for path in collection.home.rglob("*")}
    for path in (collection.feature_files[0], next((collection.home / "folders").glob("*.json"))):
        path.touch()
        with refusing(os, "open", path, number=24):  # too many open files
            assert main(["search", str(collection.films), "red", "--encoder", NAME]) in (0, 2)
        collection.check(3)
    assert {path.name for path in collection.home.rglob("*")} == names


# Libraries of others.


def rewritten(change: Callable[[dict[str, Any]], object], *, rows: bool = True) -> Callable[[Path], None]:
    """Changes the head of a file of features, whose hash is right again."""

    def act(path: Path) -> None:
        head, _, body = bytes(read_proven(path)[0]).partition(b"\n")
        change(values := json.loads(head))
        write_proven(path, [json.dumps(values).encode() + b"\n", body if rows else b""])

    return act


HEADS: dict[str, Callable[[Path], object]] = {
    "another video": rewritten(lambda head: head["film"].update(sha256="0" * 64)),
    "another encoder": rewritten(lambda head: head["spec"]["encoder"].update(weights="version 2")),
    "wide": rewritten(lambda head: head["spec"].update(dim=10**9)),
    "wrong type": rewritten(lambda head: head["film"].update(codec=5)),
    "objects": rewritten(lambda head: head.update(type="|O")),
    "more rows": rewritten(lambda head: head["film"].update(frames=10**9)),
    "fewer than none": rewritten(lambda head: head["film"].update(frames=-1)),
    "no rows": rewritten(lambda head: head["film"].update(frames=0), rows=False),
    "endless": rewritten(lambda head: head["film"].update(duration=1e300)),
    "no number": rewritten(lambda head: head["film"].update(start_time=float("nan"))),
    "line": rewritten(lambda head: head.update(lines=[[0.0, 1e308, "lantern", "en"]])),
    "list": lambda path: write_proven(path, [b"[]\n"]),
    "nested": lambda path: write_proven(path, [b"[" * 100_000]),
    "NaN": lambda path: write_proven(path, [path.read_bytes()[HEAD:-2] + b"\xff\xff"]),
}


@pytest.mark.parametrize("damages", [DAMAGES, HEADS], ids=["files", "heads"])
def test_an_import_takes_what_proves_itself_and_skips_the_rest(
    damages: dict[str, Callable[[Path], object]], collection: Collection
) -> None:
    clean = answers(collection)
    for number, damage in enumerate(sorted(damages.keys() - {"deleted"}), 1):
        other, new = (collection.base / f"{name} {number}" / "prvr" for name in ("other", "new"))
        path = shutil.copytree(collection.home, other) / collection.feature_files[0].relative_to(collection.home)
        damages[damage](path)
        flip(next((other / "folders").glob("*.json")))
        before = files(other)
        for said in ("2 videos; 1 skipped (features missing, damaged or invalid)", "0 videos; 1 skipped"):
            assert f"imported: {said}" in collection.library("--library", str(new), "--import", str(other)), damage
        assert files(other) == before, damage
        assert answers(collection, "--library", str(other)) == clean, damage  # as one's own
        assert collection.encodings == 3 + number, damage


def test_an_import_replaces_no_file(collection: Collection) -> None:
    other, path = shutil.copytree(collection.home, collection.base / "other"), collection.feature_files[0]
    flip(path)
    before = path.read_bytes()
    assert "imported: 0 videos\n" in collection.library("--library", str(collection.home), "--import", str(other))
    assert before in files(collection.home).values()


def test_the_places_of_another_library_lead_nowhere(collection: Collection) -> None:
    path = next((collection.home / "folders").glob("*.json"))
    about = json.loads(bytes(read_proven(path)[0]))
    mine = shutil.copy2(collection.films / "red.mp4", collection.base / "mine.mp4")
    _, *state, sha256 = about["places"][0]
    for name in ("../mine.mp4", str(mine), "day 2/../../mine.mp4", "", ".", "day 2//blue.mp4", "a\0b"):
        about["places"].append([name, *state, sha256])
    about["places"].append(["a.mp4", *state, "../../mine"])
    write_proven(path, [json.dumps(about).encode()])
    write_proven(path.with_name(f"{sha256}.json"), [json.dumps(about | {"folder": str(collection.base)}).encode()])
    other = collection.home.rename(collection.base / "other")
    collection.library("--import", str(other))
    away = collection.films.rename(collection.base / "away")
    for options in ([], ["--library", str(other)]):
        assert sorted(collection.search("red", *options)) == [*ALL]
    away.rename(collection.films)
    collection.library("--prune")
    assert mine.exists()
    assert collection.encodings == 3


def test_no_link_leads_out_of_the_library(collection: Collection) -> None:
    path, mine = collection.feature_files[0], collection.base / "mine"
    shutil.copytree(path.parent, mine)
    before = files(mine)
    shutil.rmtree(path.parent)
    path.parent.symlink_to(mine)
    assert len(collection.search()) == 2
    assert "a link, which is not followed" in collection.said
    for option in (["--prune"], ["--verify"], ["--drop", NAME]):
        collection.capsys.readouterr()
        collection.run("library", str(collection.films), *option, status=2 if "--drop" in option else 0)
    assert files(mine) == before


@pytest.mark.parametrize("part", ["claims", "folders", "features/0123456789abcdef"])
def test_a_link_in_a_library_of_others_costs_nothing_of_mine(part: str, collection: Collection) -> None:
    """Not what is used up at the end (locks), put aside (damaged files) or taken over (those of earlier versions)."""
    mine, other = collection.base / "mine", shutil.copytree(collection.home, collection.base / "other")
    mine.mkdir()
    for name in ("letter.txt", "package.json", "encoder.json", "process-1", "a.damaged"):
        (mine / name).write_text("precious")
    before = files(mine)
    shutil.rmtree(other / part, ignore_errors=True)
    (other / part).symlink_to(mine)
    for command in (["search", "red"], ["library", "--prune"], ["library", "--update"], ["library", "--verify"]):
        name, *options = command
        main([name, str(collection.films), *options, "--encoder", NAME, "--library", str(other)])
        assert "Traceback" not in collection.capsys.readouterr().err
        assert before.items() <= files(mine).items(), command
    assert files(mine) == before or part == "folders"


def test_what_a_library_says_of_a_film_reaches_no_terminal_raw(collection: Collection) -> None:
    first, second, _ = collection.feature_files
    rewritten(lambda head: head["film"].update(frames=0, reason="bad \x1b]0;x", remedy="\x1b[31m"), rows=False)(first)
    rewritten(lambda head: head.update(lines=[[0.0, 1.0, "lantern \x1b]0;x", "\x1b[31m"]]))(second)
    out = collection.run("search", str(collection.films), "--subtitles", "lantern", "--encoder", NAME)
    assert "lantern" in out
    assert "\x1b" not in out + collection.said + collection.library() + collection.said
