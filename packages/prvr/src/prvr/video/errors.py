"""The one exception that a video file raises."""

from pathlib import Path

from prvr.errors import DataError


class VideoError(DataError):
    """A file of which no picture can be had.

    Args:
        path: the file.
        reason: what is wrong with it.
        remedy: what to do, a sentence.

    Example:
        >>> print(VideoError(Path("a.mp4"), "it is empty (0 bytes)", "Copy it again."))
        a.mp4: it is empty (0 bytes). Copy it again.
    """

    def __init__(self, path: Path, reason: str, remedy: str) -> None:
        super().__init__(f"{path}: {reason}. {remedy}")
        self.path, self.reason, self.remedy = path, reason, remedy

    def __reduce__(self) -> tuple[type["VideoError"], tuple[Path, str, str]]:
        return type(self), (self.path, self.reason, self.remedy)  # so that a worker process can raise it
