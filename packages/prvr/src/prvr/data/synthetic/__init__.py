"""The embedded world: videos that prvr draws itself, sentences about them, and an encoder that has never seen them."""

from prvr.data.synthetic.corpus import COLLECTIONS as COLLECTIONS
from prvr.data.synthetic.corpus import corpus_key as corpus_key
from prvr.data.synthetic.corpus import read_embedded_scenes as read_embedded_scenes
from prvr.data.synthetic.corpus import write_corpus as write_corpus
from prvr.data.synthetic.corpus import write_videos as write_videos
from prvr.data.synthetic.encoder import JointEncoder as JointEncoder
from prvr.data.synthetic.encoder import load_encoder as load_encoder
from prvr.data.synthetic.render import render as render
from prvr.data.synthetic.render import render_frames as render_frames
from prvr.data.synthetic.scenes import Scenes as Scenes
from prvr.data.synthetic.scenes import Sentence as Sentence

__all__ = [
    "COLLECTIONS",
    "JointEncoder",
    "Scenes",
    "Sentence",
    "corpus_key",
    "load_encoder",
    "read_embedded_scenes",
    "render",
    "render_frames",
    "write_corpus",
    "write_videos",
]
