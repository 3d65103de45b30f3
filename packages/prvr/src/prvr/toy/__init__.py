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
    from prvr.toy.encoder import JointEncoder, load_encoder
    from prvr.toy.rendering import render, render_frames
    from prvr.toy.scenes import Scenes, Sentence
    from prvr.toy.toy_corpus import COLLECTIONS, corpus_key, read_toy_scenes, write_corpus

__all__ = [
    "COLLECTIONS",
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
    "encoder": "prvr.toy.featurizers",
    "collection": "prvr.toy.collections",
}
"""What this package adds, see `prvr.extensions`: `prvr data`, the encoder `toy`, and the collections `toy-*`."""

__getattr__ = deferred(
    __name__,
    {
        "prvr.toy.encoder": "JointEncoder load_encoder",
        "prvr.toy.rendering": "render render_frames",
        "prvr.toy.scenes": "Scenes Sentence",
        "prvr.toy.toy_corpus": "COLLECTIONS corpus_key read_toy_scenes write_corpus",
    },
)
