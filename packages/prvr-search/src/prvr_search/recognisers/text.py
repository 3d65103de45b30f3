"""What is written in a film, by RapidOCR, whose models come with it."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from prvr.encoders import Identity
from prvr.errors import require
from prvr_search.films import SubtitleLine, VideoFile

_RATE = 1.0  # pictures per second
_GRID, _NOISE = (128, 128), 4.0  # parts of a picture, of 255: it is read again where the mean of one differs by more


class Text:
    """Reads one picture per second, unless it looks like the last; equal lines of consecutive pictures are joined.

    Args:
        name: name of the recogniser.
        device: not used; onnxruntime computes on the CPU.

    Raises:
        prvr.MissingExtraError: RapidOCR or onnxruntime is not installed.
    """

    def __init__(self, name: str, device: Any = "cpu") -> None:
        for library in ("onnxruntime", "rapidocr"):
            require(library, "prvr-search[ocr]", "Text in pictures")
        from rapidocr import RapidOCR  # pyright: ignore[reportMissingImports]

        self._read: Any = RapidOCR(params={"Global.log_level": "error"})
        parts = map(self._read.cfg.get, ("Det", "Cls", "Rec"))
        models = ", ".join(f"{part.ocr_version.value} {part.model_type.value}" for part in parts)
        self.identity = Identity(name, models, f"{_RATE:g} picture per second")

    def recognise(self, video: VideoFile) -> Iterator[SubtitleLine]:
        """See `prvr_search.recognisers.Recogniser`."""
        import cv2  # pyright: ignore[reportMissingImports]

        shown, texts = dict[str, SubtitleLine](), dict[str, str]()
        before = np.full(_GRID, np.inf)
        for frame in video.sample(_RATE):
            means = cv2.resize(frame.pixels, _GRID, interpolation=cv2.INTER_AREA).mean(2)
            if np.abs(means - before).max() > _NOISE:
                before = means
                lines = self._read(np.ascontiguousarray(frame.pixels[..., ::-1])).txts or ()
                texts = {key: text for text in lines if (key := "".join(filter(str.isalnum, text.casefold())))}
            for key in shown.keys() - texts.keys():
                yield shown.pop(key)
            start, end = frame.time - 0.5 / _RATE, frame.time + 0.5 / _RATE
            for key, text in texts.items():
                line = shown.get(key, SubtitleLine(start, end, text, kind="written"))
                shown[key] = replace(line, end=end)
        yield from shown.values()
