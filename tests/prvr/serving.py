"""A real index of videos that prvr draws, and its server in this process."""

import json
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from filelock import FileLock
from search_files import TOY, without
from video_files import plain, write_video

from prvr.data import open_corpus
from prvr.data.synthetic import read_toy_scenes, render
from prvr.data.synthetic.mp4 import write_mp4
from prvr.data.synthetic.world import FPS
from prvr.search import Library, VideoIndex, open_model
from prvr.serve import ServeSettings, create_app
from prvr.serve.server import Server
from prvr.serve.service import Source
from prvr.video import TextFeaturizer, VideoFeatures, open_featurizer

HOST = "http://127.0.0.1"
TOKEN = "a-token-of-the-tests-0123456789"
EVIL = "<img src=x onerror=alert(1)> & 'quotes'.mp4"
"""A file may be called so."""


@dataclass(frozen=True)
class Served:
    """An index, and where its parts lie.

    Args:
        index: its folder.
        films: of the videos.
    """

    index: Path
    films: Path

    def opened(self, text: TextFeaturizer | None = None, backend: str = "auto") -> VideoIndex:
        """The index, open."""
        return VideoIndex(self.index, open_model("zero-shot", TOY, text=text), TOY, backend=backend)

    def features(self) -> VideoFeatures:
        """The features of the films, encoded if they are new."""
        with Library(self.films, encoder="toy", home=self.index.parent / "library") as library:
            library.update()
            return library.features()


def shared(base: Path, root: Path) -> tuple[Served, list[str]]:
    """The index of most tests, made once per session by the first worker; read only. Its films, and one of each kind
    that is hard; a sentence about each film."""
    folder = base / "served"
    served = Served(folder / "index", folder / "films")
    with FileLock(base / "served.lock"):
        if not (folder / "told.json").exists():
            told = make_films(root, served.films)
            hard_films(served.films)
            make_index(folder)
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


def make_index(folder: Path, *names: str, frames: Sequence[np.ndarray] = GREYS) -> Served:
    """The films of a folder, extracted and indexed with the toy encoder, without training.

    Args:
        folder: the films are in `films` below it.
        names: of films that are written first.
        frames: of these films.
    """
    films = folder / "films"
    for name in names:
        (films / name).parent.mkdir(parents=True, exist_ok=True)
        write_video(films / name, frames)
    served = Served(folder / "index", films)
    with served.opened() as index:
        index.update(served.features())
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
    """The application of an index."""
    return create_app(served.opened(), ServeSettings(**settings))  # type: ignore[arg-type]


class Growing:
    """A source that gains a video while it is served.

    Args:
        served: an index of two videos; the second one is removed at first.
    """

    def __init__(self, served: Served) -> None:
        self.index, self._served, self.error = served.opened(), served, None
        self.index.update(without(served.features(), self.index.video_ids[1]))

    @property
    def progress(self) -> tuple[int, int]:
        return len(self.index.video_ids), 2

    def refresh(self) -> bool:
        return self.index.refresh()

    def grow(self) -> None:
        with self._served.opened() as index:
            index.update(self._served.features())


@contextmanager
def listening(served: Served | Source, settings: ServeSettings | None = None) -> Iterator[str]:
    """A server at a free port, in a thread; gives its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Server(served.opened() if isinstance(served, Served) else served, settings or ServeSettings())
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


class WatchedText:
    """Reads texts like the toy encoder.

    Args:
        watch: is called with every sentence before it is read.
    """

    def __init__(self, watch: Callable[[str], object]) -> None:
        self._watch, self._text = watch, open_featurizer("toy", "cpu")
        self.identity, self.word_dim, self.joint_dim = self._text.identity, self._text.word_dim, self._text.joint_dim

    def words(self, text: str) -> np.ndarray:
        return self._text.words(text)

    def sentence(self, text: str) -> np.ndarray:
        self._watch(text)
        return self._text.sentence(text)
