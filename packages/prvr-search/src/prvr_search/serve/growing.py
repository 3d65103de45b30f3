"""A library that grows while it is served: what is finished can be searched at once."""

import threading

from prvr.errors import PrvrError
from prvr_search import Library, VideoIndex

_EVERY = 10.0  # seconds between two looks for new videos


class _Stopped(Exception):
    """The server ends."""


class GrowingIndex:
    """The index of a library, which a thread brings up to date while it is served.

    Args:
        library: the library.
        update: whether new videos are encoded; otherwise only those appear that other processes encode.

    Attributes:
        index: the index as it was last read, which may be empty.
        error: why the other videos cannot be encoded now; None if they are, or if there are none.

    Raises:
        DataError: as `Library.prepare`; without `update`, no video is encoded yet.
    """

    def __init__(self, library: Library, update: bool) -> None:
        if update and library.spec is None:
            library.prepare()
        self._library, self._update = library, update
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="prvr-encode", daemon=True)
        self.error: str | None = None
        self._version = library.version
        self.index: VideoIndex = library.encoded() if update else library.index
        self._shown = self.index.snapshot
        self._total = len(self.index)

    def start(self) -> None:
        """Starts to follow the library, if it does not yet."""
        if self._thread.ident is None:
            self._thread.start()

    def close(self, seconds: float) -> bool:
        """Ends the thread after its current batch of frames; returns whether it ended in time."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(seconds)
        return not self._thread.is_alive()

    @property
    def progress(self) -> tuple[int, int]:
        """How many videos can be searched, and how many there are in all."""
        done = len(self.index)
        return done, max(done, self._total)

    def refresh(self, is_damaged: bool) -> bool:
        """Reads what has been encoded since, and returns whether anything has.

        Args:
            is_damaged: whether the index cannot be searched; it is opened again, and made again where it is damaged.

        Raises:
            DataError: the index cannot be read; then the state that was last read stays.
        """
        version = self._library.version
        if is_damaged:
            self._library.close()
        elif version == self._version:
            return False
        before = self._shown
        self.index, self._version = self._library.encoded(), version
        self._shown = self.index.snapshot
        return self._shown is not before

    def _follow(self) -> None:
        while not self._stop.is_set():
            try:
                self._total = len(self._library.list_videos().videos)
                if self._update:
                    report = self._library.update(self._check)
                    self._total -= len(report.unreadable)
                    self.error = report.problem or None
            except _Stopped:
                return
            except (PrvrError, OSError) as error:
                self.error = str(error)
            self._stop.wait(_EVERY)

    def _check(self, done: float, total: float, video: str) -> None:
        if self._stop.is_set():
            raise _Stopped
