"""What is written in a film, by RapidOCR, whose models come with it."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from prvr.encoders import Identity
from prvr.errors import require
from prvr_search.films import SubtitleLine, VideoFile

_RATE = 1.0  # pictures per second


class Text:
    """Reads a picture a second; a line that stands in consecutive pictures is one.

    Args:
        name: of the recogniser.
        device: not used; onnxruntime computes on the CPU.

    Raises:
        prvr.MissingExtraError: RapidOCR or onnxruntime is not installed.
    """

    def __init__(self, name: str, device: Any = "cpu") -> None:
        for library in ("onnxruntime", "rapidocr"):
            require(library, "prvr-search[ocr]", "Text in pictures")
        from rapidocr import RapidOCR  # pyright: ignore[reportMissingImports]

        self._read: Any = RapidOCR(params={"Global.log_level": "error"})
        parts = (self._read.cfg[part] for part in ("Det", "Cls", "Rec"))
        models = [f"{part.ocr_version.value} {part.model_type.value}" for part in parts]
        self.identity = Identity(name, ", ".join(models), f"{_RATE:g} picture per second")

    def recognise(self, video: VideoFile) -> Iterator[SubtitleLine]:
        """See `prvr_search.recognisers.Recogniser`."""
        shown: dict[str, SubtitleLine] = {}
        pixels, texts = None, dict[str, str]()
        for frame in video.sample(_RATE):
            if frame.pixels is not pixels:  # it is where the same picture is sampled again
                pixels = frame.pixels
                found = self._read(np.ascontiguousarray(pixels[..., ::-1])).txts or ()
                texts = {"".join(filter(str.isalnum, text.casefold())): text for text in found}
            for key in shown.keys() - texts.keys():
                yield shown.pop(key)
            start, end = frame.time - 0.5 / _RATE, frame.time + 0.5 / _RATE
            for key, text in texts.items():
                first = shown.get(key, SubtitleLine(start, end, text, kind="written"))
                shown[key] = SubtitleLine(first.start, end, first.text, kind="written")
        yield from shown.values()
