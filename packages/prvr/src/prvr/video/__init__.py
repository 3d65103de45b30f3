"""Users' own videos as features: decoded as a stream, encoded in batches, kept in a store that survives a crash.

Examples:
    >>> report = extract(["videos"], open_encoder("toy"), "store")  # doctest: +SKIP
    >>> store = VideoStore("store")  # doctest: +SKIP
    >>> store.read("beach.mp4").shape, store.duration("beach.mp4")  # doctest: +SKIP
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
from prvr.video.excerpt import CONTAINERS, VideoClip, clip_name, write_clip
from prvr.video.extraction import ExtractReport, Named, Outcome, encode_video, extract, gather
from prvr.video.hub import DEFAULT_ENCODER, DownloadNeeded, HubUnreachable, download_size
from prvr.video.store import StoreHeader, VideoEntry, VideoStore, forget_videos

__all__ = [
    "CONTAINERS",
    "DEFAULT_ENCODER",
    "ENCODERS",
    "DownloadNeeded",
    "Encoder",
    "EncoderFamily",
    "ExtractReport",
    "Frame",
    "FrameEncoder",
    "HubUnreachable",
    "Identity",
    "Limits",
    "Named",
    "Outcome",
    "StoreHeader",
    "TextFeaturizer",
    "VideoClip",
    "VideoEntry",
    "VideoError",
    "VideoFile",
    "VideoInfo",
    "VideoStore",
    "check_joint",
    "clip_name",
    "download_size",
    "encode_video",
    "extract",
    "forget_videos",
    "gather",
    "open_encoder",
    "open_featurizer",
    "open_video",
    "write_clip",
]
