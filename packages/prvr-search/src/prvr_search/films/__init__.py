"""Video files: found below a folder, decoded as a stream, cut into clips; and their subtitles.

Examples:
    >>> with open_video("beach.mp4") as video:  # doctest: +SKIP
    ...     print(video.info.duration)
    20.5
"""

from prvr_search.films.clips import CONTAINERS, VideoClip, clip_name, write_clip
from prvr_search.films.decode import Frame, VideoFile, open_video
from prvr_search.films.info import Film, Limits, VideoError, VideoPath
from prvr_search.films.listing import Listing, list_videos
from prvr_search.films.subtitles import SubtitleLine

__all__ = [
    "CONTAINERS",
    "Film",
    "Frame",
    "Limits",
    "Listing",
    "SubtitleLine",
    "VideoClip",
    "VideoError",
    "VideoFile",
    "VideoPath",
    "clip_name",
    "list_videos",
    "open_video",
    "write_clip",
]
