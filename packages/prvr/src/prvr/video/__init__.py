"""Users' own videos to features: decoded as a stream, encoded in batches, kept in a store that survives a kill.

Example:
    >>> report = extract(["films"], open_encoder("embedded"), "store")  # doctest: +SKIP
    >>> store = VideoStore("store")  # doctest: +SKIP
    >>> store.read("beach.mp4").shape, store.duration("beach.mp4")  # doctest: +SKIP
    ((41, 512), 20.5)
"""

from prvr.video.decode import Frame as Frame
from prvr.video.decode import Limits as Limits
from prvr.video.decode import VideoFile as VideoFile
from prvr.video.decode import VideoInfo as VideoInfo
from prvr.video.decode import open_video as open_video
from prvr.video.encoders import FrameEncoder as FrameEncoder
from prvr.video.encoders import Identity as Identity
from prvr.video.encoders import TextFeaturizer as TextFeaturizer
from prvr.video.encoders import check_joint as check_joint
from prvr.video.errors import VideoError as VideoError
from prvr.video.extraction import ExtractReport as ExtractReport
from prvr.video.extraction import Outcome as Outcome
from prvr.video.extraction import encode_video as encode_video
from prvr.video.extraction import extract as extract
from prvr.video.opening import open_encoder as open_encoder
from prvr.video.opening import open_featurizer as open_featurizer
from prvr.video.reader import VideoStore as VideoStore
from prvr.video.store import StoreHeader as StoreHeader
from prvr.video.store import VideoEntry as VideoEntry

__all__ = [
    "ExtractReport",
    "Frame",
    "FrameEncoder",
    "Identity",
    "Limits",
    "Outcome",
    "StoreHeader",
    "TextFeaturizer",
    "VideoEntry",
    "VideoError",
    "VideoFile",
    "VideoInfo",
    "VideoStore",
    "check_joint",
    "encode_video",
    "extract",
    "open_encoder",
    "open_featurizer",
    "open_video",
]
