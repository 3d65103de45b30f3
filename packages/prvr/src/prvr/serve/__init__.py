"""Serves a library: a search page and an API, by default for this machine alone.

Examples:
    >>> serve(library, port=8000)  # doctest: +SKIP
"""

from prvr.serve.app import create_app
from prvr.serve.security import read_token
from prvr.serve.server import check_bind, serve
from prvr.serve.settings import ServeLimits, ServeSettings

__all__ = ["ServeLimits", "ServeSettings", "check_bind", "create_app", "read_token", "serve"]
