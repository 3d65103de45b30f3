"""An encoder of one's own for tests: frames by their mean colour, and lines in files of what was encoded."""

import os
import time
from pathlib import Path

import numpy as np

from prvr.encoders import Identity
from prvr_search.films.toy_videos import write_mp4

NAME = "counting_encoder:Colours"
COLOURS = ("red", "green", "blue")


class Colours:
    """Three numbers; `ENCODED` and `READ` name the files that get a line for every video and for every sentence,
    `UNTIL` one that a video waits for.
    """

    dim = joint_dim = word_dim = 3
    weights = "version 1"

    def __init__(self, name: str, device: object) -> None:
        self.identity = Identity(name, weights=self.weights, preprocessing="mean colour")

    def prepare(self, pixels: np.ndarray) -> np.ndarray:
        return pixels.mean((0, 1), dtype=np.float32)

    def encode(self, frames: np.ndarray) -> np.ndarray:
        return frames / np.float32(255)

    def finish(self, rows: np.ndarray) -> np.ndarray:
        if len(rows) > 2:  # not the trial when it is opened
            while (until := os.environ.get("UNTIL")) and not Path(until).exists():
                time.sleep(0.02)
            if log := os.environ.get("ENCODED"):
                with Path(log).open("a") as file:
                    file.write(f"{rows.mean(0).round(4).tolist()}\n")
        return rows

    def words(self, text: str) -> np.ndarray:
        words = [[float(word == colour) for colour in COLOURS] for word in text.lower().split()]
        return np.array(words, np.float32) + np.float32(0.01)

    def sentence(self, text: str) -> np.ndarray:
        if log := os.environ.get("READ"):
            with Path(log).open("a") as file:
                file.write(f"{text}\n")
        total = self.words(text).sum(0)
        return total / np.linalg.norm(total)


class Turned(Colours):
    """Takes each colour of a sentence for the next one."""

    weights = "version 2"

    def words(self, text: str) -> np.ndarray:
        return np.roll(super().words(text), 1, axis=1)


def film(path: Path, colour: int, shade: int = 200) -> Path:
    """Four seconds of a colour; films of another shade have another content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = np.full((32, 32, 3), 40, np.uint8)
    picture[:, :, colour] = shade
    write_mp4(path, np.stack([picture] * 8), fps=2.0)
    return path
