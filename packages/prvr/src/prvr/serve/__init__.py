"""Serves an index: a search page and an API, by default for this machine alone.

Examples:
    >>> serve("index", port=8000)  # doctest: +SKIP
"""

from prvr.serve.app import create_app as create_app
from prvr.serve.security import read_token as read_token
from prvr.serve.server import check_bind as check_bind
from prvr.serve.server import serve as serve
from prvr.serve.settings import ServeLimits as ServeLimits
from prvr.serve.settings import ServeSettings as ServeSettings

__all__ = ["ServeLimits", "ServeSettings", "check_bind", "create_app", "read_token", "serve"]
