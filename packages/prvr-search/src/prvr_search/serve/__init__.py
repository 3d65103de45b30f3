"""Serves a library: a search page and an API, by default for this machine alone.

Examples:
    >>> serve(library, port=8000)  # doctest: +SKIP
"""

from prvr_search.serve.app import create_app
from prvr_search.serve.server import serve
from prvr_search.serve.settings import ServeLimits, ServeSettings, check_bind, read_token

__all__ = [
    "ServeLimits",
    "ServeSettings",
    "check_bind",
    "create_app",
    "read_token",
    "serve",
]
