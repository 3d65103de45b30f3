"""The commands on videos: a module for each command that prvr-search adds to `prvr`, or for a few that belong together.

Every module is imported for its commands, as those of `prvr.cli` are, and imports what needs torch when a command runs.
"""

from prvr_search.cli import clip, demo, libraries, search, serve

__all__ = ["clip", "demo", "libraries", "search", "serve"]
