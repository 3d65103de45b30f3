"""A collection of three films, its library and the commands on it; and faults of the operating system."""

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import av
import pytest
from commands import explained
from counting_encoder import NAME, film

from prvr.cli import main

ALL = ("day 2/blue.mp4", "green.mp4", "red.mp4")


class Collection:
    """Three films, and the library of the user; every film that is encoded leaves a line.

    Attributes:
        said: what the last command wrote on standard error.
    """

    def __init__(self, base: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.base, self.films, self.capsys, self.said = base, base / "films", capsys, ""
        self.home, self.cache = base / "data" / "prvr" / "library", base / "cache" / "prvr" / "search"
        for place, name in enumerate(("red.mp4", "green.mp4", "day 2/blue.mp4")):
            film(self.films / name, place)

    def add(self, name: str = "new.mp4", colour: int = 0, shade: int = 90) -> Path:
        return film(self.films / name, colour, shade)

    @property
    def encodings(self) -> int:
        """How many videos were encoded so far."""
        log = self.base / "encoded.txt"
        return len(log.read_text().splitlines()) if log.exists() else 0

    @property
    def feature_files(self) -> list[Path]:
        return sorted(self.home.rglob("*.features"))

    def run(self, *arguments: str, status: int = 0) -> str:
        """What a command prints."""
        self.capsys.readouterr()
        assert main([*arguments]) == status
        out, self.said = self.capsys.readouterr()
        return out

    def search(self, sentence: str = "something red", *options: str, folder: Path | None = None) -> list[str]:
        """The names of the videos that are found, best first."""
        folder = folder or self.films
        out = self.run("search", str(folder), sentence, "--encoder", NAME, "--paths", *options)
        return [Path(line).relative_to(folder.resolve()).as_posix() for line in out.splitlines()]

    def library(self, *options: str, status: int = 0) -> str:
        return self.run("library", str(self.films), "--encoder", NAME, *options, status=status)

    def refusal(self, command: str, *options: str) -> str:
        """What a command that must fail says."""
        return explained([command, str(self.films), *options, "--encoder", NAME], self.capsys)

    def check(self, encodings: int, names: Sequence[str] = ALL) -> None:
        """These videos are found, and so many were encoded so far."""
        assert sorted(self.search()) == sorted(names)
        assert self.encodings == encodings


@contextmanager
def refusing(owner: Any, name: str, *closed: Path, number: int = errno.EACCES) -> Iterator[None]:
    """A function of the operating system fails for some paths, or for all if there are none."""
    real = getattr(owner, name)

    def act(path: Any, *arguments: Any, **options: Any) -> Any:
        if not closed or (not isinstance(path, int) and Path(path) in closed):
            raise OSError(number, os.strerror(number), str(path))
        return real(path, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, act)
        yield


def files(folder: Path) -> dict[str, bytes]:
    """What the files below a folder hold."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def with_track(video: Path, target: Path, subtitles: str, language: str, begins: int = 0) -> None:
    """The stream of a video and a text track in a file of their own, whose clock begins so many seconds late; the video
    is deleted."""
    ass = video.with_suffix(".txt")
    ass.write_text(subtitles)
    with av.open(str(video)) as source, av.open(str(ass), format="ass") as texts, av.open(str(target), "w") as made:
        streams = {}
        for container in (source, texts):
            streams[container] = made.add_stream_from_template(container.streams[0])
        streams[texts].metadata["language"] = language
        for container, stream in streams.items():
            for packet in container.demux():
                if packet.size:
                    packet.pts, packet.dts = (round(t + begins / packet.time_base) for t in (packet.pts, packet.dts))
                    packet.stream = stream
                    made.mux(packet)
    video.unlink()
    ass.unlink()
