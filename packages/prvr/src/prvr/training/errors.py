"""The one exception of a run that cannot start, go on or be saved."""


class TrainingError(RuntimeError):
    """A run that cannot start, go on or be saved; the message says what was found and what to do."""
