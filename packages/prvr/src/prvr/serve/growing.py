"""A library that is encoded while it is served: what is finished can be searched at once."""

import threading

from prvr.errors import PrvrError
from prvr.search import Library, VideoIndex


class _Stopped(Exception):
    """The server ends."""


class LibrarySource:
    """The index of a library as a `prvr.serve.service.Source`; a thread brings the library up to date.

    Args:
        library: a library whose encoder is known, see `prvr.Library.prepare`.
        every: seconds between two looks for new videos.

    Attributes:
        error: why the other videos cannot be encoded now; None if they are, or if there are none.
    """

    def __init__(self, library: Library, every: float = 10.0) -> None:
        self._library, self._every = library, every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="prvr-encode", daemon=True)
        self.error: str | None = None
        self._state = library.version
        self.index: VideoIndex = library.encoded()
        self._total = len(self.index)

    def start(self) -> None:
        """Starts to encode."""
        self._thread.start()

    def close(self, seconds: float = 5.0) -> bool:
        """Ends the thread after its current batch of frames; returns whether it ended in time."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(seconds)
        return not self._thread.is_alive()

    @property
    def progress(self) -> tuple[int, int]:
        """How many videos can be searched, and how many there are."""
        done = len(self.index)
        return done, max(done, self._total)

    def refresh(self) -> bool:
        """Reads what has been encoded since, and returns whether anything has."""
        state = self._library.version
        if state == self._state:
            return False
        before = self.index.source
        self.index, self._state = self._library.encoded(), state
        return self.index.source is not before

    def _follow(self) -> None:
        while not self._stop.is_set():
            try:
                self._total = len(self._library.list_videos().videos)
                report = self._library.update(self._check)
                self._total -= len(report.unreadable)
                self.error = report.problem or None
            except _Stopped:
                return
            except (PrvrError, OSError) as error:
                self.error = str(error)
            self._stop.wait(self._every)

    def _check(self, done: float, total: float, video: str) -> None:
        if self._stop.is_set():
            raise _Stopped
