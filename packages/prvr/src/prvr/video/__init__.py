"""Users' own videos as features: decoded as a stream, encoded in batches, kept in a library that survives a crash.

Examples:
    >>> with Library("films", encoder="toy") as library:  # doctest: +SKIP
    ...     features = library.features()
    >>> features.read("beach.mp4").shape, features.duration("beach.mp4")  # doctest: +SKIP
    ((41, 512), 20.5)
"""

from prvr.video.decode import Frame, Limits, VideoError, VideoFile, VideoInfo, open_video
from prvr.video.encoders import (
    ENCODERS,
    Encoder,
    EncoderFamily,
    FrameEncoder,
    Identity,
    TextFeaturizer,
    check_joint,
    open_encoder,
    open_featurizer,
)
from prvr.video.encoding import Progress, Unreadable, UpdateReport, encode_listed, encode_video
from prvr.video.entries import FeatureSpec, VideoEntry, VideoFeatures
from prvr.video.excerpt import CONTAINERS, VideoClip, clip_name, write_clip
from prvr.video.hub import DEFAULT_ENCODER, DownloadNeeded, HubUnreachable, download_size
from prvr.video.listing import Listing, VideoPath, list_videos
from prvr.video.storage import Storage, library_home
from prvr.video.subtitles import SubtitleLine

__all__ = [
    "CONTAINERS",
    "DEFAULT_ENCODER",
    "ENCODERS",
    "DownloadNeeded",
    "Encoder",
    "EncoderFamily",
    "FeatureSpec",
    "Frame",
    "FrameEncoder",
    "HubUnreachable",
    "Identity",
    "Limits",
    "Listing",
    "Progress",
    "Storage",
    "SubtitleLine",
    "TextFeaturizer",
    "Unreadable",
    "UpdateReport",
    "VideoClip",
    "VideoEntry",
    "VideoError",
    "VideoFeatures",
    "VideoFile",
    "VideoInfo",
    "VideoPath",
    "check_joint",
    "clip_name",
    "download_size",
    "encode_listed",
    "encode_video",
    "library_home",
    "list_videos",
    "open_encoder",
    "open_featurizer",
    "open_video",
    "write_clip",
]
