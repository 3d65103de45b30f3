"""Films with random damage, for tests and for longer searches: small, of several containers, the same for a seed."""

from fractions import Fraction
from pathlib import Path
from random import Random

from fuzzing import mutations
from video_files import noise, plain, write_video

INTACT = ("intact-a.mp4", "intact-b.mkv")
"""Files of `damaged_films` that are left as they are."""


def damaged_films(folder: Path, seed: int, count: int) -> list[Path]:
    """A folder with so many damaged films, and with those of `INTACT`.

    Args:
        folder: new.
        seed: of the damage; the same gives the same files.
        count: of damaged files.

    Returns:
        the damaged ones.
    """
    sound = folder / ".sound"  # hidden: not gathered
    sound.mkdir(parents=True)
    frames = [*plain(range(20, 200, 20)), *noise(4)]
    times = [130 * number for number in range(len(frames))]
    films = [
        write_video(sound / "a.mp4", frames, options={"movflags": "faststart"}),
        write_video(sound / "b.webm", frames, codec="libvpx"),
        write_video(sound / "c.avi", frames, codec="mpeg4"),
        write_video(sound / "d.mkv", frames, codec="mpeg4", pixel_shape=Fraction(4, 3), times=times),
        write_video(sound / "e.mov", frames, turned=(90, True, False), pixel_shape=Fraction(3, 4)),
        write_video(sound / "f.ts", frames),
        write_video(sound / "g.mp4", frames, options={"movflags": "frag_keyframe+empty_moov"}),
    ]
    for name, film in zip(INTACT, (films[0], films[3]), strict=True):
        (folder / name).write_bytes(film.read_bytes())
    random, paths = Random(seed), []
    for number in range(count):
        film = films[number % len(films)]
        content = film.read_bytes()
        for _ in range(random.randint(1, 4)):
            _, content = random.choice([*mutations(content, random)])
        paths.append(folder / f"{number:05d}{film.suffix}")
        paths[-1].write_bytes(content)
    return paths
