"""A page and an API to search one's own videos, on one's own machine.

Example:
    >>> serve("index", port=8000)  # doctest: +SKIP
"""

from prvr.serve.app import ServeSettings as ServeSettings
from prvr.serve.app import create_app as create_app
from prvr.serve.limits import ServeLimits as ServeLimits
from prvr.serve.security import read_token as read_token
from prvr.serve.server import check_bind as check_bind
from prvr.serve.server import serve as serve

__all__ = ["ServeLimits", "ServeSettings", "check_bind", "create_app", "read_token", "serve"]
