"""What is said and written in films is recognised once, kept, and found as lines of subtitles are."""

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from commands import explained
from counting_recogniser import NAME, Walls
from film_collections import Collection
from kills import die, killed
from test_library_damage import FLIPS, flip
from video_files import FILM_SECONDS, plain, write_film, write_video
from video_models import tiny_clip, tiny_whisper

from prvr.encoders import DownloadNeeded, FeatureSpec, Identity
from prvr.errors import DataError
from prvr_search import Library, Query
from prvr_search.films import SubtitleLine, VideoFile, open_video
from prvr_search.films.sound import read_sound
from prvr_search.store.encoding import Update

av = pytest.importorskip("av")
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def collection(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> Collection:
    """Four films, of which a grey one has no line."""
    monkeypatch.setenv("RECOGNISED", str(collection.base / "recognised.txt"))
    write_video(collection.films / "grey.mp4", plain([90] * 20))
    return collection


def recognised(collection: Collection) -> list[str]:
    """The films that were given to the recogniser so far."""
    log = collection.base / "recognised.txt"
    return log.read_text().splitlines() if log.exists() else []


def lines(collection: Collection, words: str, *options: str) -> dict[str, list[dict[str, Any]]]:
    """The lines that words find, by video."""
    out = collection.run("search", str(collection.films), "--subtitles", words, "--json", "-", *options)
    return {hit["video"]["id"]: hit["lines"] for hit in json.loads(out)["results"][0]["hits"]}


RED = {"red.mp4": [{"start": 1.0, "end": 2.0, "text": "a red wall", "language": "", "kind": "written"}]}


def test_a_film_is_recognised_once_whatever_it_is_called(collection: Collection) -> None:
    out = collection.library("--recognise", NAME)
    assert f"{NAME}: 4 videos" in out
    assert "videos: 4 recognised" in collection.said
    assert len(recognised(collection)) == 4
    assert lines(collection, "red wall") == RED
    assert sorted(lines(collection, "wall")) == ["day 2/blue.mp4", "green.mp4", "red.mp4"]
    assert "0:01 written: a red wall" in collection.run("search", str(collection.films), "--subtitles", "red wall")
    (collection.films / "red.mp4").rename(collection.films / "day 2" / "wall.mp4")
    shutil.copy(collection.films / "grey.mp4", collection.films / "copy.mp4")
    collection.add()
    collection.library("--recognise", NAME)
    assert recognised(collection)[4:] == ["new.mp4"]
    assert lines(collection, "red wall").keys() == {"day 2/wall.mp4", "new.mp4"}
    assert collection.search("a red wall")[0] in ("day 2/wall.mp4", "new.mp4")  # beside an encoder, which counts anew
    assert collection.encodings == 5


def test_what_is_recognised_lies_beside_subtitles(collection: Collection) -> None:
    (collection.films / "red.srt").write_text("1\n00:00:03,000 --> 00:00:04,000\nThe wall is wet\n")
    collection.library("--recognise", NAME)
    said = lines(collection, "wall")["red.mp4"]
    assert sorted((line["kind"], line["text"]) for line in said) == [("", "The wall is wet"), ("written", "a red wall")]
    page = collection.base / "page.html"
    collection.run("search", str(collection.films), "--subtitles", "red wall", "--html", str(page))
    assert "0:01 written: “a red wall”" in page.read_text("utf-8")


def test_a_film_that_fails_does_not_stop_the_others_and_is_tried_again(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BREAKS", "green.mp4")
    (collection.films / "broken.mp4").write_bytes(b"no film")
    collection.library("--recognise", NAME)
    assert "green.mp4: not recognised (ValueError: too colourful). Will retry" in collection.said
    assert "broken.mp4: not a video" in collection.said
    assert lines(collection, "wall").keys() == {"day 2/blue.mp4", "red.mp4"}
    monkeypatch.delenv("BREAKS")
    collection.library("--recognise", NAME)
    assert recognised(collection)[4:] == ["green.mp4"]
    assert len(lines(collection, "wall")) == 3


@pytest.mark.parametrize(
    "line",
    [
        SubtitleLine(2.0, 1.0, "a wall", kind="said"),
        SubtitleLine(math.nan, 1.0, "a wall", kind="said"),
        SubtitleLine(0.0, 1.0, "a wall", kind="shouted"),  # type: ignore[arg-type]
        SubtitleLine(0.0, 1.0, "a \udcff wall", kind="said"),
        ("a wall",),
    ],
)
def test_lines_that_no_film_has_are_refused(line: Any, collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Walls, "recognise", lambda self, video: [line])
    collection.library("--recognise", NAME)
    assert collection.said.count(": not recognised (") == 4
    assert not list(collection.home.rglob("*.features"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked and killed as POSIX does")
def test_a_kill_loses_the_film_in_work_at_most(collection: Collection) -> None:
    def recognise() -> None:
        with Library(collection.films, device="cpu") as library:
            library.recognise(NAME)

    def dies_in_the_third() -> None:
        real = Walls.recognise

        def act(self: Walls, video: VideoFile) -> Iterator[SubtitleLine]:
            yield from real(self, video)
            if len(recognised(collection)) == 3:
                die()

        Walls.recognise = act  # type: ignore[method-assign]

    assert killed(recognise, dies_in_the_third)
    done = recognised(collection)
    recognise()
    assert recognised(collection)[3] == done[2]
    assert len(recognised(collection)) == 5
    assert len(lines(collection, "wall")) == 3


def test_what_another_process_has_recognised_is_not_done_again(collection: Collection) -> None:
    recogniser = Walls(NAME, "cpu")
    spec = FeatureSpec(recogniser.identity, 1.0, dim=0, joint_dim=0)
    with Library(collection.films) as library, Library(collection.films) as other:
        late = Update(other.store, other.folder, other.list_videos(), spec, lambda: recogniser)
        library.recognise(NAME)
        late.run()
    assert len(recognised(collection)) == 4


def test_a_flipped_bit_never_changes_a_line(collection: Collection) -> None:
    collection.library("--recognise", NAME)
    for seed in range(2 * FLIPS):
        (path,) = (path for path in collection.home.rglob("*.features") if b"a red wall" in path.read_bytes())
        flip(path, Random(seed))
        for _ in range(2):  # as long as the lines are missing
            out = collection.library("--verify", status=1)
            assert "does not match its hash" in out
            assert "damaged: 1 video; the next search, or --recognise, makes them again" in out
            assert lines(collection, "red") == {}
            assert "does not match its hash" in collection.said
        collection.library("--recognise", NAME)
        assert lines(collection, "red wall") == RED
        assert len(recognised(collection)) == 5 + seed


def test_lines_are_pruned_imported_moved_and_dropped_as_features_are(collection: Collection) -> None:
    collection.library("--recognise", NAME)
    other = collection.base / "other"
    assert "imported: 3 videos" in collection.library("--library", str(other), "--import", str(collection.home))
    assert lines(collection, "red wall", "--library", str(other)) == RED
    collection.library("--recognise", NAME, "--library", str(other))
    assert len(recognised(collection)) == 4

    moved = collection.base / "moved"
    collection.library("--library", str(other), "--move", str(moved))
    assert lines(collection, "red wall", "--library", str(moved)) == RED

    (collection.films / "red.mp4").unlink()
    assert "pruned: 1 video" in collection.library("--prune")
    assert lines(collection, "red") == {}
    assert len([*collection.home.rglob("lines-*/*/*.features")]) == 3
    assert "features of 3 videos deleted" in collection.library("--drop", NAME)
    assert lines(collection, "wall") == {}
    assert not [*collection.home.rglob("lines-*/*/*.features")]


def test_names_of_recognisers(collection: Collection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The name of an installed package, one that a module of `--import` registers, and names of nothing."""
    site = tmp_path / "site" / "walls-1.0.dist-info"
    site.mkdir(parents=True)
    (site / "METADATA").write_text("Metadata-Version: 2.1\nName: walls\nVersion: 1.0\n")
    (site / "entry_points.txt").write_text(f"[prvr_search.recognisers]\nbricks = {NAME}\n")
    monkeypatch.syspath_prepend(site.parent)
    assert "bricks: 4 videos" in collection.library("--recognise", "bricks")
    monkeypatch.chdir(tmp_path)
    code = "from counting_recogniser import Walls\nfrom prvr_search.recognisers import RECOGNISERS\n"
    Path("my_walls.py").write_text(f"{code}RECOGNISERS.register('my-walls', Walls, 'colours')\n")
    collection.library("--recognise", "my-walls", "--import", "my_walls")
    assert len(recognised(collection)) == 4  # it is the same recogniser
    assert "did you mean speech?" in collection.refusal("library", "--recognise", "spech")
    assert "is no recogniser" in collection.refusal("library", "--recognise", "counting_encoder:Colours")


def test_the_example_reads_codes(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    cv2 = pytest.importorskip("cv2")
    code = np.pad(cv2.QRCodeEncoder.create().encode("tickets 42").repeat(4, 0).repeat(4, 1), 6, constant_values=255)
    side = code.shape[0] // 2 * 2
    shown = np.stack([code[:side, :side]] * 3, -1)
    write_video(collection.films / "poster.mp4", [np.full_like(shown, 90)] * 20 + [shown] * 20, fps=10)
    monkeypatch.syspath_prepend(EXAMPLES)
    collection.library("--recognise", "own_recogniser:Codes")
    found = lines(collection, "tickets 42")
    assert [(line["start"], line["end"]) for line in found["poster.mp4"]] == [(2.0, 3.0), (3.0, 4.0)]


def drawn(texts: Iterable[str]) -> list[np.ndarray]:
    """Pictures with a text each, at 10 a second for a second."""
    from PIL import Image, ImageDraw, ImageFont

    pictures = []
    for text in texts:
        image = Image.new("RGB", (480, 240), (20, 30, 90))
        ImageDraw.Draw(image).multiline_text((30, 30), text, (255, 255, 255), ImageFont.load_default(36), spacing=50)
        pictures += [np.array(image)] * 10
    return pictures


def test_text_in_pictures_is_found_with_its_moment(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    engine, shapes = pytest.importorskip("rapidocr").RapidOCR, list[tuple[int, ...]]()
    read = engine.__call__
    monkeypatch.setattr(engine, "__call__", lambda self, pixels: shapes.append(pixels.shape) or read(self, pixels))
    museum, both = "HARBOUR MUSEUM", "HARBOUR MUSEUM\nPlatform 4"
    write_video(collection.films / "signs.mp4", drawn(["", museum, museum, both, "Platform 4", "", museum]), fps=10)
    collection.library("--recognise", "text")
    line = {"text": museum, "language": "", "kind": "written"}
    found = lines(collection, "harbour museum")
    assert found.keys() == {"signs.mp4"}
    first, second = sorted(found["signs.mp4"], key=lambda line: line["start"])
    assert first == {"start": 1.0, "end": 4.0, **line}
    assert second == {"start": 6.0, "end": 7.0, **line}
    (platform,) = lines(collection, "platform 4")["signs.mp4"]
    assert (platform["start"], platform["end"]) == (3.0, 5.0)
    assert shapes.count((240, 480, 3)) == 6  # pictures that are not the one before
    count = len(shapes)
    collection.library("--recognise", "text")
    assert len(shapes) == count


def spoken(path: Path, text: str, begins: float) -> Path:
    """A film in which a voice says something from some second on."""
    if not (shutil.which("espeak-ng") and shutil.which("ffmpeg")):
        pytest.skip("espeak-ng makes the voice, ffmpeg the film")
    voice = path.with_suffix(".wav")
    subprocess.run(["espeak-ng", "-v", "en-us+f3", "-s", "140", "-w", voice, text], check=True)
    picture = ["-f", "lavfi", "-i", "color=c=gray:s=64x48:r=10:d=8", "-itsoffset", str(begins), "-i", voice]
    subprocess.run(["ffmpeg", "-v", "error", *picture, "-c:v", "libx264", "-c:a", "aac", path], check=True)
    voice.unlink()
    return path


SPHINX = """
import numpy as np
from pocketsphinx import Decoder
from prvr_search import Identity
from prvr_search.films import SubtitleLine
from prvr_search.films.sound import read_sound

class Sphinx:
    def __init__(self, name, device):
        self.identity = Identity(name, weights="en-us", preprocessing="16 kHz")

    def recognise(self, video):
        for start, samples in read_sound(video, 16_000, seconds=60.0):
            decoder = Decoder(samprate=16_000, loglevel="FATAL")
            decoder.start_utt()
            decoder.process_raw((32767 * samples).astype(np.int16).tobytes(), full_utt=True)
            decoder.end_utt()
            words = [word for word in decoder.seg() if word.word[0] not in "<["]
            text = " ".join(word.word.partition("(")[0] for word in words)
            if words:
                end = start + words[-1].end_frame / 100
                yield SubtitleLine(start + words[0].start_frame / 100, end, text, kind="said")
"""


def test_speech_is_found_by_a_recogniser_of_ones_own(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pocketsphinx")
    spoken(collection.films / "numbers.mkv", "one two three four five", 2.0)
    monkeypatch.chdir(collection.base)
    Path("my_sphinx.py").write_text(SPHINX)
    monkeypatch.delitem(sys.modules, "my_sphinx", raising=False)
    assert "my_sphinx:Sphinx: 5 videos" in collection.library("--recognise", "my_sphinx:Sphinx")
    found = lines(collection, "two three")
    assert found.keys() == {"numbers.mkv"}
    (line,) = found["numbers.mkv"]
    assert line["kind"] == "said"
    assert 1.9 < line["start"] < 2.5
    assert 3.0 < line["end"] < 6.0


def test_whisper_gives_lines_with_times(collection: Collection, tmp_path: Path) -> None:
    """A random model says anything; but at times at which there is sound."""
    model = tiny_whisper(tmp_path / "whisper")
    write_film(collection.films / "tones.mp4")
    collection.library("--recognise", f"speech:{model}")
    with Library(collection.films) as library:
        (place,) = (place for place in library.store.folders.last_seen(library.folder) if place.id == "tones.mp4")
        library.search(Query(subtitles="anything"))
        said = library.store.lines.of(place.sha256)
        assert said
        assert all(line.kind == "said" and 0 <= line.start <= line.end <= FILM_SECONDS + 0.1 for line in said)
        assert {spec.encoder.name: count for spec, count in library.state().other_features.items()} == {
            f"speech:{model}": 5
        }
        with pytest.raises(DownloadNeeded):
            library.recognise("speech:nobody/whisper")
        with pytest.raises(DataError, match="Expected a Whisper"):
            library.recognise(f"speech:{tiny_clip(tmp_path / 'clip')}")


def test_a_missing_model_is_asked_for(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: object, name: str, device: object) -> None:
        raise DownloadNeeded("nobody/whisper")

    monkeypatch.setattr(Walls, "__init__", refuse)
    monkeypatch.setattr("prvr.encoders.download_size", lambda name: 290_000_000)
    said = explained(["library", str(collection.films), "--recognise", NAME], collection.capsys)
    assert "prvr needs a model once: nobody/whisper, 290 MB. Run again with --download" in said


def test_sound_is_read_in_stretches_that_lose_nothing(tmp_path: Path) -> None:
    with open_video(write_film(tmp_path / "film.mp4")) as video:
        ((begins, whole),) = read_sound(video)
        parts = [*read_sound(video, seconds=3.0)]
    assert abs(begins) < 0.05
    assert abs(len(whole) / 16_000 - FILM_SECONDS) < 0.1
    np.testing.assert_array_equal(np.concatenate([samples for _, samples in parts]), whole)
    assert len(parts) > 3
    for start, samples in parts:
        assert len(samples) <= 3.1 * 16_000
        place = round((start - begins) * 16_000)
        np.testing.assert_array_equal(samples, whole[place : place + len(samples)])
    for second in range(FILM_SECONDS):  # each sounds at its own frequency
        piece = whole[16_000 * second + 4000 :][:8000]
        assert abs(np.abs(np.fft.rfft(piece)).argmax() * 2 - (200 + 100 * second)) <= 2
    with open_video(write_video(tmp_path / "silent.mp4", plain([9] * 10))) as video:
        assert list(read_sound(video)) == []


def test_sound_after_a_gap_is_a_stretch_of_its_own(tmp_path: Path) -> None:
    """So that its lines have the times at which it is heard."""
    with (
        av.open(str(write_film(tmp_path / "film.mkv", sound="flac"))) as film,
        av.open(str(tmp_path / "gap.mkv"), "w") as container,
    ):
        streams = {stream: container.add_stream_from_template(stream) for stream in film.streams}
        for packet in (packet for packet in film.demux() if packet.size):
            if packet.stream.type == "audio" and packet.pts * packet.time_base >= 4:
                packet.pts = packet.dts = packet.pts + int(3 / packet.time_base)
            packet.stream = streams[packet.stream]
            container.mux(packet)
    with open_video(tmp_path / "gap.mkv") as video:
        (first, before), (second, after) = read_sound(video)
    length = len(before) / 16_000
    assert abs(length - 4) < 0.2
    assert abs(first) < 0.05
    assert abs(second - (first + length + 3)) < 0.05
    assert abs(length + len(after) / 16_000 - FILM_SECONDS) < 0.1


def test_equal_names_of_other_models_are_other_recognisers(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection.library("--recognise", NAME)

    def other(self: Walls, name: str, device: object) -> None:
        self.identity = Identity(name, weights="version 2", preprocessing="mean colour")

    monkeypatch.setattr(Walls, "__init__", other)
    collection.library("--recognise", NAME)
    assert len(recognised(collection)) == 8
