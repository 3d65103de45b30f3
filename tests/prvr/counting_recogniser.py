"""A recogniser of one's own for tests: the colour of a film as a line, and lines in a file of what was recognised."""

import os
from collections.abc import Iterator
from pathlib import Path

from counting_encoder import COLOURS

from prvr.encoders import Identity
from prvr_search.films import SubtitleLine, VideoFile

NAME = "counting_recogniser:Walls"


class Walls:
    """Says "a red wall" in the second second of a red film, and nothing of a grey one; `RECOGNISED` names the file that
    gets a line for every film, `BREAKS` the one that it fails on.
    """

    def __init__(self, name: str, device: object) -> None:
        self.identity = Identity(name, weights="version 1", preprocessing="mean colour")

    def recognise(self, video: VideoFile) -> Iterator[SubtitleLine]:
        with Path(os.environ["RECOGNISED"]).open("a") as file:
            file.write(f"{video.path.name}\n")
        if video.path.name == os.environ.get("BREAKS"):
            raise ValueError("too   colourful")
        mean = next(video.sample(1.0)).pixels.mean((0, 1))
        if mean.max() > mean.min() + 20:
            yield SubtitleLine(1.0, 2.0, f" a {COLOURS[mean.argmax()]}\n wall", kind="written")
