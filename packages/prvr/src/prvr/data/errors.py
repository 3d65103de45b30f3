"""The error that unusable data raises."""

from prvr.errors import PrvrError


class DataError(PrvrError, ValueError):
    """Data on disk that cannot be used: the message names the file or id, what was expected and how to mend it."""
