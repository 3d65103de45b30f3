"""A real library of videos that prvr draws, and its server in this process."""

import json
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from filelock import FileLock
from video_files import plain, write_video

from prvr.data import open_corpus
from prvr.encoders import Identity, open_encoder, open_featurizer
from prvr.toy import read_toy_scenes, render
from prvr.toy.world import FPS
from prvr_search import Library, VideoIndex
from prvr_search.films.toy_videos import write_mp4
from prvr_search.serve import ServeSettings, create_app
from prvr_search.serve.server import Server

HOST = "http://127.0.0.1"
TOKEN = "a-token-of-the-tests-0123456789"
EVIL = "<img src=x onerror=alert(1)> & 'quotes'.mp4"
"""A file may be called so."""


@dataclass(frozen=True)
class Served:
    """A folder of films and their library.

    Args:
        films: the folder.
        home: where the library lies.
        encoder: its name.
    """

    films: Path
    home: Path
    encoder: str = "toy"

    def library(self, **options: Any) -> Library:
        """The library, open."""
        return Library(self.films, encoder=self.encoder, home=self.home, device="cpu", **options)

    def opened(self) -> VideoIndex:
        """The index of the films that are encoded."""
        return self.library().index


def shared(base: Path, root: Path) -> tuple[Served, list[str]]:
    """The library of most tests, made once per session by the first worker; read only. Its films, and one of each kind
    that is hard; a sentence about each film."""
    folder = base / "served"
    served = Served(folder / "films", folder / "library")
    with FileLock(base / "served.lock"):
        if not (folder / "told.json").exists():
            told = make_films(root, served.films)
            hard_films(served.films)
            make_library(folder)
            (folder / "told.json").write_text(json.dumps(told))
    return served, json.loads((folder / "told.json").read_text())


def make_films(root: Path, films: Path, count: int = 4) -> list[str]:
    """The first videos of the test split as MP4, one below a folder; gives a sentence about each."""
    scenes = read_toy_scenes(open_corpus(root, "toy-tiny"))["test"]
    (films / "day 1").mkdir(parents=True)
    told = []
    for number, video in enumerate(scenes.videos[:count]):
        folder = films / "day 1" if number == 0 else films
        write_mp4(folder / f"{video.id}.mp4", render(video), fps=FPS)
        told.append(next(one.text for one in scenes.sentences if one.video_id == video.id))
    return told


GREYS = plain(range(40, 200, 8))
"""Frames of 2 s that grow brighter."""


def make_library(folder: Path, *names: str, frames: Sequence[np.ndarray] = GREYS, encoder: str = "toy") -> Served:
    """The films of a folder, encoded without training.

    Args:
        folder: the films are in `films` below it.
        names: of films that are written first.
        frames: of these films.
        encoder: its name.
    """
    served = Served(folder / "films", folder / "library", encoder)
    for name in names:
        (served.films / name).parent.mkdir(parents=True, exist_ok=True)
        write_video(served.films / name, frames)
    with served.library() as library:
        library.update()
    return served


def hard_films(films: Path) -> None:
    """Files that a browser cannot play, that lead elsewhere, or that are called like code."""
    still = [*GREYS, *(np.full((48, 64, 3), (200, 30, 30), np.uint8) for _ in range(20))]
    write_video(films / "old.avi", still, codec="mpeg4")
    # other contents and durations: copies, and videos that score alike, are one hit
    shutil.copy(write_video(films / EVIL, [*still, *still[-6:]]), films / "changing.mp4")
    write_video(films / "leaving.mp4", [*still, *still[-12:]])
    write_video(films.parent / "elsewhere.mp4", [*still, *still[-18:]])
    (films / "link.mp4").symlink_to(films.parent / "elsewhere.mp4")
    (films / "inner.mp4").symlink_to(films / "old.avi")


def app_of(served: Served, **settings: object):
    """The application of a library, in which nothing more is encoded, and what is changed is not noticed."""
    settings = {"rescan_seconds": 600.0} | settings
    return create_app(served.library(), ServeSettings(**settings), update=False)  # type: ignore[arg-type]


@contextmanager
def listening(served: Served, settings: ServeSettings | None = None, *, update: bool = False) -> Iterator[str]:
    """A server at a free port, in a thread; gives its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Server(served.library(), settings or ServeSettings(), update=update)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        wait_for(lambda: server.started or not thread.is_alive())
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(30)


def wait_for(true: Callable[[], object], seconds: float = 60.0) -> None:
    """Until something is so."""
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.02)


def keys_of(client, token: str = "") -> dict[str, str]:
    """The key of each video, by name."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return {one["name"]: one["key"] for one in client.get("/api/videos", headers=headers).json()["videos"]}


class Watched:
    """The toy encoder under another name, which calls `watch` with every sentence before it reads it."""

    watch: ClassVar[Callable[[str], object]] = staticmethod(lambda text: None)

    def __init__(self, name: str, device: object) -> None:
        frames, text = open_encoder("toy"), open_featurizer("toy")
        self.identity = Identity(name, "toy", "toy")
        self.dim, self.joint_dim, self.word_dim = frames.dim, frames.joint_dim, text.word_dim
        self.prepare, self.encode, self.finish = frames.prepare, frames.encode, frames.finish
        self.words, self._sentence = text.words, text.sentence

    def sentence(self, text: str) -> np.ndarray:
        Watched.watch(text)
        return self._sentence(text)


WATCHED = "serving:Watched"
