"""An encoder of clips of your own, by which sentences find movements: where the light goes in two seconds.

`prvr search FILMS "it moves up" --encoder own_clip_encoder:Motion` does the same, in the folder of this file.
"""

import tempfile
from pathlib import Path

import numpy as np

from prvr_search import ClipWindow, Identity

WAYS = {"right": (1, 0, 0), "left": (-1, 0, 0), "down": (0, 1, 0), "up": (0, -1, 0), "still": (0, 0, 1)}


class Motion:
    """Clips and sentences as three numbers: how far the light moves to the right, and down, and whether it stays."""

    dim = joint_dim = word_dim = 3
    window = ClipWindow(seconds=2.0, frames=8, stride=1.0)  # two seconds around each second, of 8 frames

    def __init__(self, name: str, device: object) -> None:
        self.identity = Identity(name, weights="version 1", preprocessing="the centre of light")

    def prepare(self, pixels: np.ndarray) -> np.ndarray:
        light = pixels.sum(2, dtype=np.float32) ** 2 + 1  # of a frame, (h, w, 3)
        return (np.indices(light.shape) / np.array(light.shape)[:, None, None] * light).sum((1, 2)) / light.sum()

    def encode(self, clips: np.ndarray, times: np.ndarray) -> np.ndarray:
        down, right = (clips[:, -1] - clips[:, 0]).T  # (n, 8, 2) of `prepare`; times (n, 8) in seconds
        return np.column_stack([right, down, np.full(len(clips), 0.02)]).astype(np.float32)

    def finish(self, rows: np.ndarray) -> np.ndarray:
        return rows

    def words(self, text: str) -> np.ndarray:
        return np.array([WAYS.get(word, (0, 0, 0)) for word in text.lower().split()], np.float32)

    def sentence(self, text: str) -> np.ndarray:
        way = self.words(text).sum(0) + np.float32([0, 0, 1e-3])
        return way / np.linalg.norm(way)


def main() -> None:
    from prvr_search import Library
    from prvr_search.films.toy_videos import write_mp4

    with tempfile.TemporaryDirectory() as folder:
        videos = Path(folder) / "videos"
        videos.mkdir()
        for name, ways in {"square": ("right", "down", "left", "up"), "bounce": ("up", "down", "up")}.items():
            frames, place = [], np.array([80.0, 80.0])
            for way in ways:
                for _ in range(40):  # four seconds
                    place += WAYS[way][:2]
                    frames.append(np.zeros((160, 160, 3), np.uint8))
                    x, y = place.round().astype(int)
                    frames[-1][y - 8 : y + 8, x - 8 : x + 8] = 255
            write_mp4(videos / f"{name}.mp4", np.stack(frames), fps=10.0)
        with Library(videos, encoder="own_clip_encoder:Motion", home=Path(folder) / "library") as library:
            for query in ("it moves left", "it moves up"):
                hits = library.search(query).hits
                print(query, *(f"{x.video_id} {x.score:.2f} {x.start:.0f}-{x.end:.0f} s" for x in hits), sep="  ")


if __name__ == "__main__":
    main()
