"""Subtitles: the lines of files beside a video and of the text tracks inside it, by the decoders of FFmpeg."""

import io
import logging
import re
from collections.abc import Container, Iterable
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any

from prvr.errors import DataError, MissingExtraError, require
from prvr.reading import printable
from prvr.video.decode import VideoFile, read_faults

logger = logging.getLogger(__name__)
FORMATS = {".srt": "srt", ".vtt": "webvtt", ".ass": "ass", ".ssa": "ass"}
"""Suffixes of subtitle files, and what FFmpeg calls the format of each."""
_DRAWING = re.compile(r"\{[^}]*\\p[1-9].*?(?:\{[^}]*\\p0[^}]*\}|$)", re.DOTALL)
_TAG = re.compile(r"\{\\[^}]*\}|</?[A-Za-z][^>]*>")
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
    """

    start: float
    end: float
    text: str
    language: str = ""


def named_video(name: str, videos: Container[str]) -> tuple[str, str]:
    """The video that a subtitle file belongs to, and the language in the name; what is missing is empty.

    Args:
        name: the path of the file.
        videos: the paths of videos without their suffixes; of several that fit, the longest is taken.

    Examples:
        >>> named_video("day 1/beach.en.sdh.srt", {"day 1/beach"}), named_video("beach.srt", {"sea"})
        (('day 1/beach', 'en'), ('', ''))
    """
    path, language = PurePosixPath(name).with_suffix(""), ""
    while str(path) not in videos:
        if not path.suffix:
            return "", ""
        language = path.suffix[1:] if _LANGUAGE.fullmatch(path.suffix[1:]) else language
        path = path.with_suffix("")
    return str(path), language


def parse_subtitles(content: bytes, name: str, language: str = "") -> list[SubtitleLine]:
    """The lines of a subtitle file, in order of time.

    UTF-8, and UTF-16 with a byte order mark, are recognised. Of everything else chardet guesses the encoding, which a
    warning names; it is read as CP1252 (Latin-1) where chardet finds none or is not installed.

    Args:
        content: of the file.
        name: its path; the suffix says what the format is.
        language: of the lines.

    Raises:
        DataError: it holds no line.
    """
    av, lines = require("av", "video", "Reading subtitles"), []
    encoding = _encoding(content)
    text = io.BytesIO(content.decode(encoding, "replace").replace("\0", "").encode())
    with suppress(*read_faults()), av.open(text, format=FORMATS[PurePosixPath(name).suffix.lower()]) as container:
        lines = _lines(container.demux(), Fraction(0), language)
    if not lines:
        raise DataError(f"{name}: not subtitles, or broken; skipped. Save it again, as SubRip in UTF-8.")
    if encoding not in _CERTAIN:
        advice = "If its words are wrong, save it as UTF-8."
        logger.warning("%s: not UTF-8; it was read as %s. %s", printable(name), encoding, advice)
    return lines


def read_tracks(video: VideoFile) -> list[SubtitleLine]:
    """The lines of all text tracks of an open video, in order of time; the whole file is read if there is one."""
    return _lines(video.text_packets(), video.origin)


def _encoding(content: bytes) -> str:
    utf_8, utf_16 = _CERTAIN
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return utf_16
    try:
        content.decode(utf_8)
    except UnicodeDecodeError:
        with suppress(MissingExtraError):
            chardet = require("chardet", "video", "Reading subtitles that are not UTF-8")
            eras = chardet.EncodingEra.MODERN_WEB | chardet.EncodingEra.LEGACY_ISO
            return chardet.detect(content, encoding_era=eras)["encoding"] or "CP1252"
        return "CP1252"
    return utf_8


def _lines(packets: Iterable[Any], origin: Fraction, language: str = "") -> list[SubtitleLine]:
    """What packets of PyAV hold; what cannot be decoded is left out, and so are pictures and drawings."""
    lines, faults = [], read_faults()
    for packet in packets:
        if not packet.size or packet.pts is None:
            continue
        try:
            texts = [part.dialogue.decode("utf-8", "replace") for part in packet.decode() if part.type == b"ass"]
        except faults:
            continue
        text = " ".join(_TAG.sub("", _DRAWING.sub("", " ".join(texts))).replace("\\h", " ").split())
        start = packet.pts * packet.time_base - origin
        length = packet.duration * packet.time_base if packet.duration else 0
        end = start + (length if length > 0 else _WITHOUT_END)
        if text and end > 0:
            lines.append(SubtitleLine(float(max(start, 0)), float(end), text, language or packet.stream.language or ""))
    return sorted(lines, key=lambda line: line.start)
