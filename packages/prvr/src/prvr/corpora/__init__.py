"""Corpora from captions and features of users' own videos, and what public annotations add to a corpus.

Readers of tables stand here and need no torch. `prvr.corpora.caption_corpus` writes corpora of them.
"""

from prvr.corpora.annotations import Conversion
from prvr.corpora.user_captions import SplitShares, UserCaption, read_user_captions, split_videos

__all__ = ["Conversion", "SplitShares", "UserCaption", "read_user_captions", "split_videos"]
