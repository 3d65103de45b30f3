"""What is said in a film, by Whisper of transformers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from prvr.encoders import Identity
from prvr.encoders.hub import explained, hash_model, import_transformers, locate, read_config
from prvr.errors import DataError
from prvr_search.films import SubtitleLine, VideoFile
from prvr_search.films.sound import read_sound

WHISPER = "openai/whisper-base"
"""The default model."""
_RATE = 16_000  # samples per second, which all of these models take
_SILENT = 1e-3  # of full scale; in silence Whisper invents words


class Speech:
    """Recognises the first sound of a film, in stretches of at most five minutes.

    Args:
        name: `speech`, or `speech:` and a Whisper, by its name on the Hugging Face hub or its folder.
        device: torch device of the model.

    Raises:
        prvr.encoders.DownloadNeeded: it is not on this computer.
        DataError: it is no Whisper, or cannot be loaded.
    """

    def __init__(self, name: str, device: Any = "cpu") -> None:
        model = name.partition(":")[2] or WHISPER
        folder = Path(model).expanduser()
        place = str(folder.resolve()) if folder.is_dir() else model
        kind = (config := read_config(place))["model_type"]
        if kind != "whisper":
            raise DataError(f"{place}: a model of type {kind!r}. Expected a Whisper, such as {WHISPER}.")
        with explained(place):
            self._pipeline = import_transformers().pipeline(
                "automatic-speech-recognition",
                model=str(locate(place)),
                device=device,
                model_kwargs={"use_safetensors": True},
            )
        self.identity = Identity(f"speech:{place}", hash_model(self._pipeline.model, config), "16 kHz, one channel")

    def recognise(self, video: VideoFile) -> Iterator[SubtitleLine]:
        """See `prvr_search.recognisers.Recogniser`."""
        for begins, samples in read_sound(video, _RATE):
            if np.abs(samples).max() < _SILENT:
                continue
            heard = self._pipeline({"raw": samples, "sampling_rate": _RATE}, return_timestamps=True)
            length = len(samples) / _RATE
            for part in heard["chunks"]:
                start, end = part["timestamp"]
                start = min(start or 0.0, length)
                end = max(start, length if end is None else min(end, length))
                yield SubtitleLine(begins + start, begins + end, part["text"], kind="said")
