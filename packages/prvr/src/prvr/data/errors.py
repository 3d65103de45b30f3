"""The one exception that bad data raises."""


class DataError(ValueError):
    """Data on disk that cannot be used: the message names the file or id, what was expected and how to mend it."""
