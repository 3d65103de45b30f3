"""The embedded corpus: a small simulated world that needs no download. Features are simulated, no pixel is drawn."""

from prvr.data.synthetic.corpus import COLLECTION as COLLECTION
from prvr.data.synthetic.corpus import write_corpus as write_corpus
from prvr.data.synthetic.text import embed_text as embed_text

__all__ = ["COLLECTION", "embed_text", "write_corpus"]
