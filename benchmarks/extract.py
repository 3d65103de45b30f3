"""What extraction costs and what it is worth: parts of the time, memory of a long film, features beside stored ones.

    python benchmarks/extract.py [--seconds 120] [--height 720] [--rate 2] [--clip FOLDER]

Ratios of processor times of all threads, best of three. The film is drawn noise that moves, 25 frames per second of
H.264, in a temporary folder. Without --clip (a folder or a name on the hub) the embedded encoder is used.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np

from prvr.data import open_corpus, write_corpus
from prvr.data.synthetic.corpus import read_embedded_scenes
from prvr.data.synthetic.mp4 import write_mp4
from prvr.data.synthetic.render import render
from prvr.data.synthetic.world import FPS
from prvr.video import FrameEncoder, VideoStore, encode_video, extract, open_encoder, open_video

_PEAK = """
import re, sys
from pathlib import Path
from prvr.video import open_video
with open_video(sys.argv[1]) as video:
    print(sum(1 for _ in video.sample(25.0)), re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""


def write_film(path: Path, seconds: float, height: int) -> Path:
    width = height * 16 // 9 // 2 * 2
    picture = (
        np.random.default_rng(0).integers(0, 255, (height // 8, width // 8, 3), np.uint8).repeat(8, 0).repeat(8, 1)
    )
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=25, options={"preset": "veryfast"})
        stream.height, stream.width, stream.pix_fmt = *picture.shape[:2], "yuv420p"
        for number in range(round(25 * seconds)):
            frame = av.VideoFrame.from_ndarray(np.roll(picture, 2 * number, 1), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def best(run: Callable[[], object], repeats: int = 3) -> float:
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def show_parts(film: Path, rate: float, encoder: FrameEncoder) -> None:
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

    frames = np.stack(prepare())
    alone, all_of_it = best(decode), best(whole)
    print("decoding every frame = 1")
    print(f"  sampled at {rate:g} per second, in colours    {best(sample) / alone:6.2f}")
    print(f"  and made small                       {best(prepare) / alone:6.2f}")
    print(f"  encoding alone, {len(frames):5d} frames          {best(lambda: encoder.encode(frames)) / alone:6.2f}")
    print(f"  all, decoded while encoded           {all_of_it / alone:6.2f}")
    with tempfile.TemporaryDirectory() as store:
        first = best(lambda: extract([film], encoder, store, rate=rate), 1)
        again = best(lambda: extract([film], encoder, store, rate=rate))
        print(f"  into a store                         {first / alone:6.2f}")
        print(f"  again, unchanged                     {again / alone:6.4f}")


def show_memory(folder: Path, height: int) -> None:
    if not Path("/proc/self/status").exists():
        return
    found = {}
    for seconds in (4, 80):
        film = write_film(folder / f"{seconds}.mp4", seconds, height)
        said = subprocess.run([sys.executable, "-c", _PEAK, film], capture_output=True, text=True, check=True).stdout
        found[seconds] = [int(word) for word in said.split()]
    (few, low), (many, high) = found[4], found[80]
    size = (many - few) * height * (height * 16 // 9) * 3 / 2**20
    print(
        f"memory: {many} frames take {(high - low) / 1024:.0f} MB more than {few}; their pixels alone are {size:.0f} MB"
    )


def show_embedded(folder: Path) -> None:
    """Every test video of embedded-tiny as an MP4 file, extracted, beside what the corpus holds."""
    write_corpus(folder, "tiny")
    corpus, encoder = open_corpus(folder, "embedded-tiny"), open_encoder("embedded")
    (folder / "mp4").mkdir()
    videos = read_embedded_scenes(corpus)["test"].videos
    for video in videos:
        write_mp4(folder / "mp4" / f"{video.id}.mp4", render(video), fps=FPS)
    report = extract([folder / "mp4"], encoder, folder / "store", rate=FPS)
    store = VideoStore(folder / "store")
    width = encoder.joint_dim
    with corpus.open_features() as stored:
        pairs = [(stored.read(video.id), store.read(store.find(video.id))) for video in videos]
    cosine = np.concatenate([(a[:, :width] * b[:, :width]).sum(1) for a, b in pairs])
    same = all(a.shape == b.shape for a, b in pairs)
    print(f"embedded-tiny, test split through MP4: {len(report.extracted)} videos, frames equal in number: {same};")
    print(f"  cosine of each frame with the stored one: mean {cosine.mean():.5f}, lowest {cosine.min():.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--height", type=int, default=720)
    parser.add_argument("--rate", type=float, default=2.0)
    parser.add_argument("--clip", default="embedded")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        film = write_film(folder / "film.mp4", args.seconds, args.height)
        show_parts(film, args.rate, open_encoder(args.clip))
        show_memory(folder, args.height)
        show_embedded(folder)


if __name__ == "__main__":
    main()
