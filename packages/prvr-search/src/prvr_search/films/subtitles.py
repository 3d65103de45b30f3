"""Subtitles: the lines of files beside a video and of the text tracks inside it, by the decoders of FFmpeg."""

import io
import logging
import re
from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any, Literal

from prvr.errors import DataError
from prvr_search.films.decode import VideoFile
from prvr_search.films.info import read_faults

logger = logging.getLogger(__name__)
_FOLDERS = {"subs", "subtitles"}
FORMATS = {".srt": "srt", ".vtt": "webvtt", ".ass": "ass", ".ssa": "ass"}
"""Suffixes of subtitle files, and what FFmpeg calls the format of each."""
SUBTITLE_BYTES = 2**24
"""Bytes: the limit of a subtitle file, which may bring fonts."""
_MOST_LINES, _MOST_TEXT = 100_000, 2**23  # packets and bytes of a file: one each second of a day, 5000 pages
_LONGEST = 2**16  # bytes of a line: each letter of it may have a colour
# Nothing that these look for holds what it begins with, so that no text is looked through twice.
_BLOCK = re.compile(r"(\{[^{}]*\})")
_DRAWN = re.compile(r"\\p(\d)")
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_LANGUAGE = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*")
_CERTAIN = ("utf-8-sig", "utf-16")  # encodings that are recognised, not guessed
_WITHOUT_END = Fraction(2)  # seconds that a line is shown whose end is missing, or before its start


@dataclass(frozen=True)
class SubtitleLine:
    """What is said, or written on the screen, in a part of a video.

    Args:
        start, end: in seconds from the start of the video.
        text: without tags, on one line.
        language: as the name of the file or the track states it, for example `de` or `ger`; empty if it does not.
        kind: `said` or `written`, if a recogniser gave the line; empty for subtitles.
    """

    start: float
    end: float
    text: str
    language: str = ""
    kind: Literal["", "said", "written"] = ""


def named_video(name: str, videos: Container[str]) -> tuple[str, str]:
    """The video that a subtitle file belongs to, and the language in the name; what is missing is empty.

    It lies beside the video, in a folder `Subs` or `Subtitles` there, or in a folder of that with the video's name.

    Args:
        name: the path of the file.
        videos: the paths of videos without their suffixes; of several that fit, the longest is taken.

    Examples:
        >>> named_video("day 1/beach.en.sdh.srt", {"day 1/beach"}), named_video("beach.srt", {"sea"})
        (('day 1/beach', 'en'), ('', ''))
        >>> named_video("Subs/beach.en.srt", {"beach"}), named_video("Subs/beach/2_English.srt", {"beach"})
        (('beach', 'en'), ('beach', ''))
    """
    path = PurePosixPath(name)
    places = [path]
    if path.parent.name.casefold() in _FOLDERS:
        places.append(path.parent.parent / path.name)
    if path.parent.parent.name.casefold() in _FOLDERS:
        places.append(path.parents[2] / f"{path.parent.name}{path.suffix}")
    for place in places:
        stem, language = place.with_suffix(""), ""
        while str(stem) not in videos and stem.suffix:
            language = stem.suffix[1:] if _LANGUAGE.fullmatch(stem.suffix[1:]) else language
            stem = stem.with_suffix("")
        if str(stem) in videos:
            return str(stem), language
    return "", ""


def parse_subtitles(content: bytes, name: str, language: str = "") -> list[SubtitleLine]:
    """The lines of a subtitle file, in order of time.

    UTF-8, and UTF-16 with a byte order mark, are recognised. Of everything else chardet guesses the encoding, which a
    warning names; it is read as CP1252 (Latin-1) where chardet finds none.

    Args:
        content: of the file.
        name: its path; the suffix says what the format is.
        language: of the lines.

    Raises:
        DataError: it holds no line.
    """
    import av

    lines, encoding = list[SubtitleLine](), _encoding(content)
    with suppress(*read_faults()):
        text = io.BytesIO(content.decode(encoding, "replace").replace("\0", "").encode())
        with av.open(text, "r", format=FORMATS[PurePosixPath(name).suffix.lower()]) as container:
            lines = _lines(container.demux(), Fraction(0), name, language)
    if not lines:
        raise DataError(f"{name}: not subtitles, or broken; skipped. Save it again, as SubRip in UTF-8.")
    if encoding not in _CERTAIN:
        advice = "If its words are wrong, save it as UTF-8."
        logger.warning("%s: not UTF-8; it was read as %s. %s", name, encoding, advice)
    return lines


def read_tracks(video: VideoFile) -> list[SubtitleLine]:
    """The lines of all text tracks of an open video, in order of time; the whole file is read if there is one."""
    return _lines(video.text_packets(), video.origin, video.path.name)


def _encoding(content: bytes) -> str:
    utf_8, utf_16 = _CERTAIN
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return utf_16
    try:
        content.decode(utf_8)
    except UnicodeDecodeError:
        import chardet

        eras = chardet.EncodingEra.MODERN_WEB | chardet.EncodingEra.LEGACY_ISO
        return chardet.detect(content, encoding_era=eras)["encoding"] or "CP1252"
    return utf_8


def _lines(packets: Iterable[Any], origin: Fraction, name: str, language: str = "") -> list[SubtitleLine]:
    """What packets of PyAV hold; what cannot be decoded is left out, and so are pictures and drawings."""
    lines, size, is_short = list[SubtitleLine](), 0, True
    with suppress(*read_faults()):  # what was read before stays
        for number, packet in enumerate(packets):
            if number == _MOST_LINES or size > _MOST_TEXT:
                is_short = False
                break
            is_short &= packet.size <= _LONGEST
            if 0 < packet.size <= _LONGEST and packet.pts is not None:
                size += packet.size
                with suppress(*read_faults()):
                    lines += _decode(packet, origin, language)
    if not is_short:
        most = f"{_MOST_LINES:,} lines and {_MOST_TEXT:,} bytes in all, {_LONGEST:,} bytes of a line"
        logger.warning("%s: more subtitles than are read (%s); the rest is left out.", name, most)
    return sorted(lines, key=lambda line: line.start)


def _decode(packet: Any, origin: Fraction, language: str) -> Iterator[SubtitleLine]:
    texts = [part.dialogue.decode("utf-8", "replace") for part in packet.decode() if part.type == b"ass"]
    text, stated = _plain(" ".join(texts)), packet.stream.language or ""
    start = packet.pts * packet.time_base - origin
    length = packet.duration * packet.time_base if packet.duration else 0
    end = start + (length if length > 0 else _WITHOUT_END)
    if text and end > 0:
        stated = stated if _LANGUAGE.fullmatch(stated) else ""
        yield SubtitleLine(float(max(start, 0)), float(end), text, language or stated)


def _plain(text: str) -> str:
    """A text without tags, drawings and line breaks."""
    shown, is_drawing = [], False
    for number, part in enumerate(_BLOCK.split(text)):
        if number % 2:
            modes = _DRAWN.findall(part)
            is_drawing = modes[-1] != "0" if modes else is_drawing
        elif not is_drawing:
            shown.append(part)
    return " ".join(_TAG.sub("", "".join(shown)).replace("\\h", " ").split())
