"""What every record of the configuration has in common."""

from pydantic import ConfigDict

__all__ = ["STRICT"]

STRICT = ConfigDict(extra="forbid")
"""A key that is not known is an error."""
