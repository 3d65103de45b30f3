"""Features of a folder of films, two frames per second, beside a plain loop of PyAV with the same encoder.

python benchmarks/extraction.py --folder ~/.cache/prvr-real-films
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np

from _harness import Contender, compare, parse_options, show
from prvr.encoders import open_encoder
from prvr_search.films import open_video
from prvr_search.store.encoding import encode_video


def plain(path: Path, encoder: Any) -> np.ndarray:
    pictures, middle = [], 0.25
    with av.open(str(path)) as film:
        film.streams.video[0].thread_type = "AUTO"
        for frame in film.decode(video=0):
            while frame.time is not None and frame.time >= middle:
                pictures.append(encoder.prepare(frame.to_ndarray(format="rgb24")))
                middle += 0.5
    return encoder.finish(encoder.encode(np.stack(pictures)))


def ours(path: Path, encoder: Any) -> np.ndarray:
    with open_video(path) as video:
        return encode_video(video, encoder, 2.0)


def reader(folder: Path, way: str) -> dict[str, Callable[[], Any]]:
    encoder, read = open_encoder("toy"), {"plain": plain, "ours": ours}[way]
    return {"all films": lambda: [read(path, encoder) for path in sorted(folder.iterdir())]}


if __name__ == "__main__":
    args = parse_options(__doc__, folder=Path("films"), rounds=5)
    times = compare([Contender(way, reader, (args.folder, way)) for way in ("plain", "ours")], rounds=args.rounds)
    show("encoding", ["films", "plain / ours"], [[task, times.ratio(task, "plain", "ours")] for task in times])
