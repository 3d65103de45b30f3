"""Films with random damage, for tests and for longer searches: small, of several containers, the same for a seed."""

from fractions import Fraction
from pathlib import Path

import numpy as np
from video_files import noise, plain, write_video

INTACT = ("intact-a.mp4", "intact-b.mkv")
"""Files of `damaged_films` that are left as they are."""


def sound_films(folder: Path) -> list[Path]:
    """Small films of a few containers and codecs, as they should be."""
    folder.mkdir(parents=True, exist_ok=True)
    frames = [*plain(range(20, 200, 20)), *noise(4)]
    quick = {"movflags": "faststart"}
    return [
        write_video(folder / "a.mp4", frames, options=quick),
        write_video(folder / "b.webm", frames, codec="libvpx"),
        write_video(folder / "c.avi", frames, codec="mpeg4"),
        write_video(
            folder / "d.mkv", frames, codec="mpeg4", pixel_shape=Fraction(4, 3),
            times=[130 * k for k in range(len(frames))],
        ),
        write_video(folder / "e.mov", frames, turned=(90, True, False), pixel_shape=Fraction(3, 4)),
        write_video(folder / "f.ts", frames),
        write_video(folder / "g.mp4", frames, options={"movflags": "frag_keyframe+empty_moov"}),
    ]  # fmt: skip


def damaged_films(folder: Path, seed: int, count: int) -> list[Path]:
    """A folder with so many damaged films, and with those of `INTACT`.

    Args:
        folder: new.
        seed: of the damage; the same gives the same files.
        count: of damaged files.

    Returns:
        the damaged ones.
    """
    rng = np.random.default_rng(seed)
    sound = sound_films(folder / ".sound")  # hidden: not gathered
    contents = [(path.suffix, path.read_bytes()) for path in sound]
    for name, source in zip(INTACT, (sound[0], sound[3]), strict=True):
        (folder / name).write_bytes(source.read_bytes())
    paths = []
    for number in range(count):
        suffix, content = contents[number % len(contents)]
        path = folder / f"{number:05d}{suffix}"
        path.write_bytes(damage(content, rng))
        paths.append(path)
    return paths


def damage(content: bytes, rng: np.random.Generator) -> bytes:
    """One to four mutations: bits, bytes, extreme numbers, blocks zeroed, swapped, doubled or cut out."""
    data = bytearray(content)
    for _ in range(rng.integers(1, 5)):
        size = len(data)
        if size < 16:
            break
        # Half of them in the first or last part, where heads and tables lie.
        where = (0, size), (0, min(size, 1024)), (max(0, size - 1024), size), (0, min(size, 200))
        low, high = where[rng.integers(len(where))]
        start = int(rng.integers(low, high))
        length = int(min(size - start, 2 ** rng.integers(0, 11)))
        other = int(rng.integers(0, size - length + 1))
        match int(rng.integers(9)):
            case 0:
                data[start] ^= 1 << int(rng.integers(8))
            case 1:
                data[start] = int(rng.integers(256))
            case 2:
                data[start : start + 4] = EDGES[rng.integers(len(EDGES))]
            case 3:
                data[start : start + length] = bytes(length)
            case 4:
                data[start : start + length], data[other : other + length] = (
                    data[other : other + length],
                    data[start : start + length],
                )
            case 5:
                data[start : start + length] = rng.bytes(length)
            case 6:
                data[start:start] = data[other : other + length]
            case 7:
                del data[start : start + length]
            case _ if rng.random() < 0.3:
                del data[int(rng.integers(size // 4, size)) :]
            case _:
                data[start : start + 8] = EDGES[rng.integers(len(EDGES))] * 2
    return bytes(data)


EDGES = tuple(
    value.to_bytes(4, order)
    for value in (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x00010000, 65535, 7680)
    for order in ("big", "little")
)
"""Numbers at which programs stumble."""
