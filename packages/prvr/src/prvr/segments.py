"""The earlier name of `prvr.published.tf_prvr`."""

from prvr.published.tf_prvr import *  # noqa: F403
from prvr.published.tf_prvr import __all__  # noqa: F401
