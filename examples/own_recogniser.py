"""A recogniser of your own: what the QR codes in a film say, as lines that are searched.

`prvr library FILMS --recognise own_recogniser:Codes` does the same, in the folder of this file. It needs OpenCV, which
`pip install "prvr-search[ocr]"` brings.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np

from prvr_search import Identity
from prvr_search.films import SubtitleLine, VideoFile


class Codes:
    """Looks for a QR code in a picture of each second."""

    def __init__(self, name: str, device: object) -> None:
        self.identity = Identity(name, weights="QRCodeDetector", preprocessing="1 picture per second")
        self.detector = cv2.QRCodeDetector()

    def recognise(self, video: VideoFile) -> Iterator[SubtitleLine]:
        for frame in video.sample(1.0):
            text, _, _ = self.detector.detectAndDecode(frame.pixels)
            if text:
                yield SubtitleLine(frame.time - 0.5, frame.time + 0.5, text, kind="written")


def main() -> None:
    from prvr_search import Library, Query
    from prvr_search.films.toy_videos import write_mp4

    code = cv2.QRCodeEncoder.create().encode("tickets at the harbour")
    code = np.pad(code.repeat(4, 0).repeat(4, 1), 8, constant_values=255)
    pictures = [np.full_like(code, 90)] * 3 + [code] * 2 + [np.full_like(code, 90)] * 2
    with tempfile.TemporaryDirectory() as folder:
        videos = Path(folder) / "videos"
        videos.mkdir()
        write_mp4(videos / "poster.mp4", np.stack([np.stack([picture] * 3, -1) for picture in pictures]), fps=1.0)
        with Library(videos, home=Path(folder) / "library") as library:
            library.recognise("own_recogniser:Codes")
            for hit in library.search(Query(subtitles="harbour")).hits:
                print(hit.video_id, hit.start, hit.end, hit.lines[0].kind, hit.lines[0].text)


if __name__ == "__main__":
    main()
