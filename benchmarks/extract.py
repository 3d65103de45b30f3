"""What extraction costs and what it is worth: parts of the time, memory of a long film, features beside stored ones.

    python benchmarks/extract.py [--seconds 120] [--height 720] [--rate 2] [--clip FOLDER]

Ratios of processor times of all threads, medians of all rounds. The film is drawn noise that moves, 25 frames per
second of H.264, in a temporary folder. Without --clip (a folder or a name on the hub) the toy encoder is used.
"""

import tempfile
from collections import deque
from functools import partial
from pathlib import Path

import av
import numpy as np

from _harness import Contender, Tasks, alone, compare, environment, memory, parse_options, show, write_figures
from against import write_film
from prvr.data import write_corpus
from prvr.data.synthetic import write_videos
from prvr.data.synthetic.world import FPS
from prvr.video import VideoStore, encode_video, extract, open_encoder, open_video

PARTS = (
    "decoded, every frame",
    "sampled, in colours",
    "and made small",
    "encoded alone",
    "all, decoded while encoded",
    "into a store",
    "again, unchanged",
)


def tasks(film: Path, rate: float, name: str, part: str) -> Tasks:
    """A part of extraction, by its name in `PARTS`."""
    encoder = open_encoder(name)

    def decode() -> None:
        with av.open(str(film)) as container:
            container.streams.video[0].thread_type = "AUTO"
            deque(container.decode(video=0), 0)

    def sample() -> None:
        with open_video(film) as video:
            deque(video.sample(rate), 0)

    def prepare() -> list[np.ndarray]:
        with open_video(film) as video:
            return [encoder.prepare(frame.pixels) for frame in video.sample(rate)]

    def whole() -> None:
        with open_video(film) as video:
            encode_video(video, encoder, rate)

    def store() -> None:
        with tempfile.TemporaryDirectory() as folder:
            extract([film], encoder, folder, rate=rate)

    if part == "encoded alone":
        return {"film": partial(encoder.encode, np.stack(prepare()))}
    if part == "again, unchanged":
        again = film.parent / "store"
        extract([film], encoder, again, rate=rate)
        return {"film": lambda: extract([film], encoder, again, rate=rate)}
    return {"film": dict(zip(PARTS, (decode, sample, prepare, None, whole, store), strict=False))[part]}  # type: ignore[dict-item]


def peak(film: Path) -> tuple[int, int]:
    """Frames of a film that is decoded by a process that does nothing else, and its memory."""
    with open_video(film) as video:
        return sum(1 for _ in video.sample(25.0)), memory()


def show_memory(folder: Path, height: int) -> None:
    (few, low), (many, high) = (
        alone(peak, write_film(folder / f"{seconds}.mp4", seconds, height)) for seconds in (4, 80)
    )
    size = (many - few) * height * (height * 16 // 9) * 3 / 2**20
    more = (high - low) / 2**20
    print(f"memory: {many} frames take {more:.0f} MB more than {few}; their pixels alone are {size:.0f} MB")


def show_toy(folder: Path) -> None:
    """Every test video of toy-tiny as an MP4 file, extracted, beside what the corpus holds."""
    corpus, encoder = write_corpus(folder, "tiny"), open_encoder("toy")
    videos = corpus.split("test").video_ids
    report = extract([write_videos(corpus, videos)], encoder, folder / "store", rate=FPS)
    store, width = VideoStore(folder / "store"), encoder.joint_dim
    with corpus.open_features() as stored:
        pairs = [(stored.read(video), store.read(store.find(video))) for video in videos]
    cosine = np.concatenate([(a[:, :width] * b[:, :width]).sum(1) for a, b in pairs])
    same = all(a.shape == b.shape for a, b in pairs)
    print(f"toy-tiny, test split through MP4: {len(report.extracted)} videos, frames equal in number: {same};")
    print(f"  cosine of each frame with the stored one: mean {cosine.mean():.5f}, lowest {cosine.min():.4f}")


def main() -> None:
    args = parse_options(__doc__, seconds=120.0, height=720, rate=2.0, clip="toy", rounds=3)
    print(environment())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        film = write_film(folder / "film.mp4", args.seconds, args.height)
        sides = [Contender(part, tasks, (film, args.rate, args.clip, part)) for part in PARTS]
        found = compare(sides, rounds=args.rounds, threads=args.threads)
        rows = [[part, found.ratio("film", part, "decoded, every frame")] for part in PARTS]
        show(
            f"{args.seconds:g} s at {args.height} lines, {args.rate:g} frames per second kept", ["time", "ratio"], rows
        )
        write_figures(args, found.figures())
        show_memory(folder, args.height)
        show_toy(folder)


if __name__ == "__main__":
    main()
