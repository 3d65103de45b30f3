"""The toy world: videos that prvr draws itself, sentences about them, and an encoder that has never seen them."""

from prvr.data.synthetic.encoder import JointEncoder, load_encoder
from prvr.data.synthetic.render import render, render_frames
from prvr.data.synthetic.scenes import Scenes, Sentence
from prvr.data.synthetic.toy_corpus import COLLECTIONS, corpus_key, read_toy_scenes, write_corpus

__all__ = [
    "COLLECTIONS",
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
