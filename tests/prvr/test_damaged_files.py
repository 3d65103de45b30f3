"""Files that are damaged, empty, of another kind or made to do harm: one sentence of the project's own, never more."""

import faulthandler
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import h5py
import numpy as np
import pytest
from commands import explained
from file_formats import READERS, Reader, small
from fuzzing import damages

from prvr.data import open_features, open_query_features
from prvr.errors import DataError, PrvrError
from prvr.models import Retriever

LONGEST = 2_000
"""Letters of a message that somebody can read."""


@pytest.fixture(autouse=True)
def no_waiting() -> Iterator[None]:
    """A reader that waits for a pipe ends the process instead of stopping the suite."""
    faulthandler.dump_traceback_later(120, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def answer(reader: Reader, folder: Path) -> tuple[str | None, object]:
    """The message if it refuses the file, else None, and what it reads."""
    try:
        return None, reader.read(folder)
    except PrvrError as error:
        return str(error), None


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of POSIX")
@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_read_or_refused_with_one_sentence(name: str, tmp_path: Path) -> None:
    reader = READERS[name]
    file = reader.write(tmp_path)
    refusal, expected = answer(reader, tmp_path)
    assert (refusal is None) == reader.readable
    bad = []
    for damage, other in damages(file.read_bytes(), Random(0), reader.rounds):
        if len(other) > reader.most:
            continue
        file.write_bytes(other)
        try:
            said, content = answer(reader, tmp_path)
        except Exception as error:
            bad.append(f"{damage}: {error!r:.300}")
            continue
        if reader.sealed and said is None and content != expected:
            bad.append(f"{damage}: other content, which nothing noticed")
        if said is not None and (len(said) > LONGEST or not names(file, tmp_path, said)):
            bad.append(f"{damage}: said {said[:300]!r}, {len(said)} letters")
    assert bad == []
    for make in (Path.mkdir, os.mkfifo, lambda path: path.symlink_to(tmp_path / "nothing")):
        file.rmdir() if file.is_dir() else file.unlink()
        make(file)
        said, _ = answer(reader, tmp_path)
        assert said is None or len(said) < LONGEST


def names(file: Path, folder: Path, said: str) -> bool:
    return file.name in said or str(file.parent) in said


def hdf5(path: Path, fill: Callable[[h5py.File], object]) -> Path:
    with h5py.File(path, "w") as file:
        fill(file)
    return path


def link_to(target: object) -> Callable[[h5py.File], object]:
    return lambda file: file.__setitem__("v#enc#0", target)


@pytest.mark.parametrize(
    ("fill", "message"),
    [
        (link_to(h5py.ExternalLink("pipe", "/v")), "is a ExternalLink"),
        (lambda file: file.create_dataset("v#enc#0", (10**12, 4), "f4", chunks=(64, 4)), "of which the file holds 0"),
        (
            lambda file: file.create_dataset("v#enc#0", (1, 4), "f4", external=[("pipe", 0, 16)]),
            "is stored in another file",
        ),
        (link_to(np.full((2, 4), np.nan)), "NaN or infinity"),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="pipes of POSIX")
def test_hdf5_that_is_no_flat_file_of_matrices_is_refused(
    fill: Callable[[h5py.File], object], message: str, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")  # whoever follows a link to it waits forever
    with pytest.raises(DataError, match=message), open_query_features(hdf5(tmp_path / "q.hdf5", fill)) as queries:
        queries.read("v#enc#0")
    with pytest.raises(DataError, match=message), open_features(hdf5(tmp_path / "feature.hdf5", fill).parent) as videos:
        videos.read("v#enc#0")


def test_a_model_of_the_hub_is_looked_for_in_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"^owner/name: no such folder, and the hub does not give such a model"):
        Retriever.from_pretrained("owner/name", cache_dir=tmp_path / "cache", local_files_only=True)
    snapshot = tmp_path / "cache" / "models--owner--name" / "snapshots" / ("0" * 40)
    Retriever(small()).save_pretrained(snapshot)
    (snapshot.parent.parent / "refs").mkdir()
    (snapshot.parent.parent / "refs" / "main").write_text("0" * 40)
    loaded = Retriever.from_pretrained("owner/name", cache_dir=tmp_path / "cache", local_files_only=True)
    assert loaded.config == small()


@pytest.mark.parametrize(
    "content",
    [
        b"a: &a [x,x,x]\n" + b"".join(b"%c: &%c [*%c,*%c]\n" % (c + 1, c + 1, c, c) for c in range(97, 121)),
        b"x" * 10_000_000,
        b'base: gmmformer-toy\ndata: {root: "a\\0b", collection: tvr}\n',
        b"!!python/object/apply:os.system [true]\n",
    ],
)
def test_a_configuration_that_does_harm_is_refused(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_bytes(content)
    assert "mine.yaml" in explained(["train", "--config", str(file), "--output", str(tmp_path / "run")], capsys)
    assert not (tmp_path / "run").exists()
