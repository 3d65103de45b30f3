"""Videos of the toy world as MP4 files, which players show; the only videos that the encoder `toy` supports."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import BinaryIO

import numpy as np
from jaxtyping import UInt8

from prvr.data import Corpus
from prvr.data.atomic import publish, replace_file, temporary_folder
from prvr.encoders import Identity, choose_encoder
from prvr.errors import InputError, MissingExtraError
from prvr.toy import Scenes, read_toy_scenes, render
from prvr.toy.encoder import TOY
from prvr.toy.rendering import DAY, with_look
from prvr.toy.scenes import draw_split
from prvr.toy.toy_corpus import Progress, two_at_a_time
from prvr.toy.world import FPS, Video
from prvr_search.films import VideoError, VideoPath, open_video
from prvr_search.films.clips import BT709, LIMITED, say_709

ENCODER = "libx264"
DRAWN = "drawn by prvr"
"""The comment in these files, which marks drawn videos."""
_OPTIONS = {"crf": "16", "preset": "veryfast", "g": "20"}  # a key frame every 10 s at least, to seek to


def write_mp4(path: Path | str, frames: UInt8[np.ndarray, "n h w 3"], *, fps: float = FPS, scale: int = 4) -> None:
    """Writes frames as H.264 (yuv420p) that any player shows; the file appears whole or not at all.

    Each pixel becomes a block of scale x scale: H.264 keeps colour at half the resolution, and so loses none of it.

    Args:
        path: the file to write; its folder exists.
        frames: red green blue.
        fps: frames per second.
        scale: even.

    Raises:
        ValueError: no frame, an odd scale, or a rate that is not positive.
        prvr.MissingExtraError: PyAV has no H.264 encoder.
        OSError: the file cannot be written.

    Examples:
        >>> from prvr.toy import render
        >>> write_mp4("v0.mp4", render(video))  # doctest: +SKIP
    """
    if not frames.size or scale < 2 or scale % 2 or not fps > 0:
        raise InputError(
            f"write_mp4: frames {frames.shape}, scale={scale}, fps={fps}; expected at least one frame, an even scale "
            "(chroma has half the resolution) and a positive rate"
        )
    import av
    from av.video.reformatter import Interpolation

    if ENCODER not in av.codecs_available:
        raise MissingExtraError(
            f"write_mp4: this PyAV {av.__version__} was built without the encoder {ENCODER}; the wheels on PyPI have "
            "it: pip install --force-reinstall --only-binary av prvr-search"
        )

    def write(file: BinaryIO) -> None:
        with av.open(file, "w", format="mp4") as container:
            container.metadata["comment"] = DRAWN
            stream = container.add_stream(ENCODER, rate=Fraction(fps).limit_denominator(1001), options=_OPTIONS)
            stream.height, stream.width = (scale * side for side in frames.shape[1:3])
            stream.pix_fmt = "yuv420p"
            stream.codec_context.thread_count = 1  # the bytes do not depend on the number of cores
            say_709(stream)
            for number, pixels in enumerate(frames):
                frame = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(
                    stream.width,
                    stream.height,
                    "yuv420p",
                    dst_colorspace=BT709,
                    dst_color_range=LIMITED,
                    interpolation=Interpolation.POINT | Interpolation.ACCURATE_RND,  # or it is a step too dark
                )
                frame.pts = number
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))

    replace_file(Path(path), write)


def write_videos(
    corpus: Corpus, ids: Sequence[str] | None = None, folder: Path | None = None, *, progress: Progress | None = None
) -> Path:
    """Writes videos of a toy corpus as files ``ID.mp4``, all or none.

    Args:
        corpus: a corpus of `write_corpus`.
        ids: the ids of the videos; by default, all of them.
        folder: to write; by default ``videos`` in the folder of the corpus. If it exists, it is left as it is.
        progress: called with (videos written, videos in all).

    Returns:
        The folder of the videos.

    Raises:
        DataError: the corpus has no scene graphs, or the disk is full.
    """
    drawn = {video.id: video for scenes in read_toy_scenes(corpus).values() for video in scenes.videos}
    videos = [replace(drawn[name], id=f"{name}.mp4") for name in (drawn if ids is None else ids)]
    return _write_files(folder or corpus.folder / "videos", videos, corpus.about.get("look", DAY), progress)


def write_short_videos(folder: Path, count: int, seed: int) -> Scenes:
    """Draws short videos that are in no corpus of another seed, and writes them as `film-N.mp4`, all or none.

    Args:
        folder: to write, two videos at a time; if it exists, it is left as it is.
        count: the number of videos: the shortest of nine times as many, because of few drawn at once most differ in one
            detail only.
        seed: the seed of the videos.

    Returns:
        The videos and the sentences about them; their ids are the names of the files.

    Raises:
        DataError: the disk is full.
    """
    drawn = draw_split("train", 9 * count, seed)  # "train": a test split would make room for near misses
    shortest = enumerate(sorted(drawn.videos, key=lambda video: video.duration)[:count], 1)
    videos = {video.id: replace(video, id=f"film-{number}.mp4") for number, video in shortest}
    own = (sentence for sentence in drawn.sentences if sentence.video_id in videos)
    sentences = tuple(replace(sentence, video_id=videos[sentence.video_id].id) for sentence in own)
    films = Scenes(tuple(videos.values()), sentences)
    _write_files(folder, films.videos, DAY)
    return films


def _write_files(folder: Path, videos: Sequence[Video], look: str, progress: Progress | None = None) -> Path:
    """Writes videos whose ids are names of files, two at a time, all or none; a folder that exists is left as it is."""

    def write(video: Video) -> None:
        write_mp4(temporary / video.id, with_look(render(video), look))

    if folder.exists():
        return folder
    with temporary_folder(folder) as temporary:
        for _ in two_at_a_time(write, videos, progress):
            pass
        publish(temporary, folder, lambda _: True)
    return folder


def _is_toy_video(video: VideoPath) -> bool | None:
    """Whether a video is of the toy corpus; None where it cannot be read."""
    try:
        with open_video(video.path) as file:
            return file.info.comment == DRAWN
    except VideoError:
        return None


def default_encoder(videos: Iterable[VideoPath]) -> str:
    """The encoder of videos for which none is named: `toy` if all that can be read are of the toy corpus.

    Args:
        videos: the files; all are opened.
    """
    return TOY if {*map(_is_toy_video, videos)} - {None} == {True} else choose_encoder()


def foreign_video(encoder: Identity, videos: Iterable[VideoPath]) -> Path | None:
    """The first video that is not of the toy corpus if the encoder is `toy`, which supports no others; or None.

    Args:
        encoder: the identity of the encoder of frames.
        videos: the files, which are opened up to that video; none for other encoders.
    """
    return (
        next((video.path for video in videos if _is_toy_video(video) is False), None) if encoder.name == TOY else None
    )
