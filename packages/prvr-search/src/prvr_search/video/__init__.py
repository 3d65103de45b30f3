"""Users' own videos as features: decoded as a stream, encoded in batches, kept in a library that survives a crash.

Examples:
    >>> with Library("films", encoder="toy") as library:  # doctest: +SKIP
    ...     features = library.features()
    >>> features.read("beach.mp4").shape, features.duration("beach.mp4")  # doctest: +SKIP
    ((41, 512), 20.5)
"""

from prvr_search.video.decode import Frame, Limits, VideoError, VideoFile, VideoInfo, open_video
from prvr_search.video.encoding import Progress, Unreadable, UpdateReport, encode_listed, encode_video
from prvr_search.video.excerpt import CONTAINERS, VideoClip, clip_name, write_clip
from prvr_search.video.listing import Listing, VideoPath, list_videos
from prvr_search.video.storage import Storage, library_home
from prvr_search.video.subtitles import SubtitleLine

__all__ = [
    "CONTAINERS",
    "Frame",
    "Limits",
    "Listing",
    "Progress",
    "Storage",
    "SubtitleLine",
    "Unreadable",
    "UpdateReport",
    "VideoClip",
    "VideoError",
    "VideoFile",
    "VideoInfo",
    "VideoPath",
    "clip_name",
    "encode_listed",
    "encode_video",
    "library_home",
    "list_videos",
    "open_video",
    "write_clip",
]
