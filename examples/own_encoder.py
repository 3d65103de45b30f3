"""An encoder of your own, by which sentences find videos: the mean colour of a frame, and the names of colours.

`prvr search FILMS "something red" --encoder own_encoder:Colours` does the same, in the folder of this file.
"""

import tempfile
from pathlib import Path

import numpy as np

from prvr_search import Identity

COLOURS = ("red", "green", "blue")


class Colours:
    """Frames and sentences as three numbers: how much red, green and blue there is."""

    dim = joint_dim = word_dim = 3

    def __init__(self, name: str, device: object) -> None:
        self.identity = Identity(name, weights="version 1", preprocessing="the mean of all pixels")

    def prepare(self, pixels: np.ndarray) -> np.ndarray:
        return pixels.mean((0, 1), dtype=np.float32)  # a picture, (h, w, 3) of 0 to 255

    def encode(self, frames: np.ndarray) -> np.ndarray:
        return frames / np.float32(255)  # what `prepare` gave for n pictures; here (n, 3)

    def finish(self, rows: np.ndarray) -> np.ndarray:
        return rows  # all rows of a video, in order of time

    def words(self, text: str) -> np.ndarray:
        return np.array([[word == colour for colour in COLOURS] for word in text.lower().split()], np.float32)

    def sentence(self, text: str) -> np.ndarray:
        found = self.words(text).sum(0) + np.float32(0.01)  # a text without a colour is grey
        return found / np.linalg.norm(found)


def main() -> None:
    from prvr_search import Library
    from prvr_search.films.toy_videos import write_mp4

    with tempfile.TemporaryDirectory() as folder:
        videos = Path(folder) / "videos"
        videos.mkdir()
        for place, colour in enumerate(COLOURS):
            picture = np.full((64, 64, 3), 40, np.uint8)
            picture[:, :, place] = 200
            write_mp4(videos / f"{colour}.mp4", np.stack([picture] * 8), fps=2.0)
        with Library(videos, encoder="own_encoder:Colours", home=Path(folder) / "library") as library:
            for query in ("something red", "a green video"):
                hits = library.search(query).hits
                print(query, *(f"{hit.video_id} {hit.score:.2f}" for hit in hits), sep="  ")


if __name__ == "__main__":
    main()
