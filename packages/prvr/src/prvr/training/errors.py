"""How a run ends other than by being done."""

from prvr.errors import PrvrError

__all__ = ["Terminated", "TrainingError"]


class TrainingError(PrvrError, RuntimeError):
    """A run that cannot start, go on or be saved; the message says what was found and what to do."""


class Terminated(SystemExit):
    """Raised by `train` after SIGTERM, once the run is saved; uncaught, the process exits with code 143 (128 + 15)."""

    def __init__(self) -> None:
        super().__init__(143)
