"""Registers the stages of papers."""

from prvr.published import qb_norm  # noqa: F401
from prvr.published.diffusionret import stage  # noqa: F401
