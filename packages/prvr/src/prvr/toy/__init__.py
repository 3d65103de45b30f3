"""The toy world: videos that prvr draws itself, sentences about them, and an encoder that has never seen them.

Examples:
    >>> from prvr.data import pack
    >>> corpus = write_corpus("data", "tiny")  # doctest: +SKIP
    >>> with pack(corpus, "test", cache_dir="data/cache") as packed:  # doctest: +SKIP
    ...     len(packed), packed.video(0)[0].shape
    (20, torch.Size([32, 512]))
"""

from typing import TYPE_CHECKING

from prvr.errors import deferred

if TYPE_CHECKING:
    from prvr.toy.encoder import *
    from prvr.toy.rendering import *
    from prvr.toy.scenes import *
    from prvr.toy.toy_corpus import *
    from prvr.toy.world import *

__all__ = [
    "EXTENSIONS",
    "JointEncoder",
    "Scenes",
    "Sentence",
    "corpus_key",
    "load_encoder",
    "read_toy_scenes",
    "render",
    "render_frames",
    "write_corpus",
]

EXTENSIONS = {
    "commands": "prvr.toy.cli",
    "encoder": "prvr.toy.encoder",
    "collection": "prvr.toy.toy_corpus",
}
"""What this package adds, see `prvr.extensions`: `prvr data`, the encoder `toy`, and the collections `toy-*`."""

__getattr__ = deferred(__name__, "toy_corpus scenes rendering encoder world")
