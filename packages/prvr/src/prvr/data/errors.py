"""The error that unusable data raises, under the name that the readers of this package import."""

from prvr.errors import DataError as DataError

__all__ = ["DataError"]
