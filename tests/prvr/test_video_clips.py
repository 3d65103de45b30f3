"""Encoders of clips: which frames a clip has, films of odd lengths, the library, kills, and own ones of others."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kills import die, killed
from test_video_encoding import encode
from video_files import cut, noise, plain, write_video
from video_models import tiny_qwen, tiny_roberta, tiny_sentence_model, tiny_xclip

from prvr.cli import main
from prvr.encoders import ClipEncoder, ClipWindow, Identity, check_joint, open_encoder, open_featurizer
from prvr.errors import DataError, InputError
from prvr_search import Library, Query
from prvr_search.films import open_video
from prvr_search.films.decode import Frame
from prvr_search.store.encoding import _clips, encode_video

pytest.importorskip("av")
EXAMPLE = Path(__file__).parents[2] / "examples" / "own_clip_encoder.py"


class Spans:
    """Rows with the first and last time of a clip, the number of its frames, and its first and last grey."""

    dim, joint_dim = 5, 0

    def __init__(self, window: ClipWindow) -> None:
        self.window, self.identity = window, Identity("spans", "1", "greys")
        self.prepared = self.encoded = 0

    def prepare(self, pixels: np.ndarray) -> np.ndarray:
        self.prepared += 1
        return pixels.mean((0, 1))

    def encode(self, clips: np.ndarray, times: np.ndarray) -> np.ndarray:
        self.encoded += len(clips)
        greys = clips.mean(2)
        count = np.full(len(clips), clips.shape[1])
        return np.stack([times[:, 0], times[:, -1], count, greys[:, 0], greys[:, -1]], 1).astype(np.float32)

    def finish(self, rows: np.ndarray) -> np.ndarray:
        return rows


def rows_of(path: Path, window: ClipWindow, rate: float | None = None) -> np.ndarray:
    with open_video(path) as video:
        return encode_video(video, Spans(window), rate or 1 / window.stride)


@example(3, 0.5, 1, 1.0)  # the middle of the second row is the end
@settings(max_examples=60, deadline=None)
@given(st.integers(1, 90), st.sampled_from([0.5, 2.0, 3.0]), st.integers(1, 9), st.sampled_from([0.25, 1.0, 1.5, 5.0]))
def test_clips_lie_around_the_middle_of_their_row_within_the_video(
    count: int, seconds: float, frames: int, stride: float
) -> None:
    window = ClipWindow(seconds, frames, stride)
    step, pixels = seconds / frames, np.zeros(1)
    duration = count * step
    times = [(i + 0.5) * step for i in range(count)]
    clips = [*_clips((Frame(time, pixels) for time in times), window, 1 / stride, lambda: duration)]
    assert len(clips) == max(1, int(np.ceil(duration / stride - 0.5)))
    for row, clip in enumerate(clips):
        shown = [frame.time for frame in clip]
        assert len(shown) == frames
        assert shown == sorted(shown)
        if count >= frames:
            assert np.allclose(np.diff(shown), step)
            middle = np.clip((row + 0.5) * stride, seconds / 2, max(seconds / 2, duration - seconds / 2))
            assert abs(np.mean(shown) - middle) <= step / 2 + 1e-6
        else:
            assert {*shown} == {*times}


def test_films_of_odd_lengths(tmp_path: Path) -> None:
    window = ClipWindow(3.0, 6, 1.5)
    long = write_video(tmp_path / "long.mp4", plain([20 + 2 * i for i in range(100)]))  # 10 s
    rows = rows_of(long, window)
    np.testing.assert_allclose(rows[:, 0], [0.25, 0.75, 2.25, 3.75, 5.25, 6.75, 7.25])
    np.testing.assert_allclose(rows[:, 1] - rows[:, 0], 2.5)
    np.testing.assert_allclose(rows[:, 3], 20 + 20 * rows[:, 0], atol=3)  # the frames that are shown then
    short = rows_of(write_video(tmp_path / "short.mp4", plain([50, 90, 130])), window)
    assert short.shape == (1, 5)
    assert short[0, 1] <= 0.3 + 0.25
    assert short[0, 2] == 6
    one = rows_of(write_video(tmp_path / "one.mp4", plain([70])), window)
    assert one.shape == (1, 5)
    stamps = [0, 40, 100, 2500, 2600, 6000, 6100, 9000]
    varies = write_video(tmp_path / "varies.mp4", plain(range(40, 200, 20)), times=stamps)
    with open_video(varies) as video:
        shown = {frame.time: float(frame.pixels.mean()) for frame in video.sample(2.0)}
    for first, last, _, grey, end in rows_of(varies, window):
        assert (grey, end) == pytest.approx((shown[float(first)], shown[float(last)]), abs=0.5)
    broken = cut(write_video(tmp_path / "whole.avi", noise(100), codec="mpeg4"), tmp_path / "broken.avi", 0.5)
    rows = rows_of(broken, window)
    assert 2 <= len(rows) <= 4
    assert rows[:, 1].max() < 6
    assert len(rows_of(long, window, rate=4.0)) == 40


def test_what_stands_still_is_encoded_once_and_frames_are_prepared_once(tmp_path: Path) -> None:
    encoder = Spans(ClipWindow(2.0, 8, 0.5))
    path = write_video(tmp_path / "hour.mp4", plain([20, 90]), times=[0, 3_600_000])
    with open_video(path) as video:
        rows = encode_video(video, encoder, 2.0)
    assert len(rows) >= 7200
    assert encoder.encoded < 20
    encoder = Spans(ClipWindow(2.0, 8, 0.5))
    with open_video(write_video(tmp_path / "moves.mp4", plain(range(20, 220, 2)))) as video:
        assert len(encode_video(video, encoder, 2.0)) == 20
    assert encoder.prepared == 40


def test_the_window_is_a_part_of_the_key(tmp_path: Path) -> None:
    films = tmp_path / "films"
    films.mkdir()
    write_video(films / "a.mp4", plain(range(20, 120)))
    for window in (ClipWindow(2.0), ClipWindow(3.0), ClipWindow(2.0, 4)):
        report, _ = encode(films, Spans(window), tmp_path / "store", rate=1.0)
        assert report.encoded == ["a.mp4"], window
    report, found = encode(films, Spans(ClipWindow(2.0, stride=9.0)), tmp_path / "store", rate=1.0)
    assert report.encoded == []
    assert found["a.mp4"].film.spec is not None
    assert found["a.mp4"].film.spec.encoder.preprocessing.endswith("; clips of 8 frames in 2.0 s")


@pytest.mark.parametrize("window", [(0.0, 8, 1.0), (2.0, 0, 1.0), (2.0, 8, 0.0), (float("nan"), 8, 1.0)])
def test_windows_without_sense_are_refused(window: Any) -> None:
    with pytest.raises(InputError, match="ClipWindow"):
        ClipWindow(*window)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the example, and two films of a light that moves: four seconds to each side."""
    for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_clip_encoder", raising=False)
    Path("own_clip_encoder.py").write_text(EXAMPLE.read_text(encoding="utf-8"))
    Path("films").mkdir()
    sides = np.minimum(np.arange(80), 79 - np.arange(80))
    for name, places in {"across": sides, "up": 40 - sides}.items():
        frames = plain([0] * 80, 64, 64)
        for frame, place in zip(frames, places, strict=True):
            x, y = (place, 28) if name == "across" else (28, place)
            frame[y : y + 12, x : x + 12] = 255
        write_video(Path("films") / f"{name}.mp4", frames)
    return tmp_path


def moments(library: Library, *queries: str) -> list[tuple[str, float, float]]:
    hits = [library.search(query, 1).hits[0] for query in queries]
    return [(hit.video_id, hit.start, hit.end) for hit in hits]


def test_a_movement_is_found_by_its_clips(here: Path) -> None:
    with Library("films", encoder="own_clip_encoder:Motion") as library:
        found = moments(library, "it moves right", "it moves left", "it moves up")
        assert library.features().rate == 1.0
        assert library.search(Query(image=np.zeros((48, 64, 3), np.uint8))).hits[0].score > 0
    assert found == [("across.mp4", 0.0, 4.0), ("across.mp4", 4.0, 8.0), ("up.mp4", 0.0, 4.0)]
    with Library("films", encoder="own_clip_encoder:Motion", rate=2.0) as library:
        assert moments(library, "it moves left") == [("across.mp4", 4.0, 8.0)]
    with Library("films", encoder="own_clip_encoder:Motion") as library:
        assert library.update().encoded == []
        assert library.features().rate == 2.0  # as last time
    with Library("films", encoder="toy") as library:  # not the rate of another encoder
        assert library.update().encoded == ["across.mp4", "up.mp4"]
        assert library.features().rate == 2.0


def test_a_changed_window_is_noticed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Library("films", encoder="own_clip_encoder:Motion") as library:
        library.update()
    code = Path("own_clip_encoder.py")
    # Of another length: compiled files of Python know a source by its second and its size.
    code.write_text(code.read_text().replace("seconds=2.0, frames=8, stride=1.0", "seconds=3.0, frames=6, stride=.5"))
    monkeypatch.delitem(sys.modules, "own_clip_encoder")
    with Library("films", encoder="own_clip_encoder:Motion") as library:
        assert len(library.update().encoded) == 2
        assert len(library.features().read("up.mp4")) == 8  # the folder's rate


def search(*words: str) -> str:
    command = [sys.executable, "-P", "-m", "prvr.cli", "search", "films", "it moves left", "--device", "cpu", "--paths"]
    done = subprocess.run([*command, "-k", "1", *words], capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else done.stderr


def test_entry_points_and_imported_modules_bring_encoders_of_clips(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("theirs.py").write_text(
        "from own_clip_encoder import *\nfrom prvr.encoders import ENCODERS, EncoderFamily\n"
        "Motion.window = ClipWindow(4.0, 16, 2.0)\n"
        "ENCODERS.register('ways', EncoderFamily(Motion, Motion, bundled=True), 'where the light goes')\n"
    )
    assert search("--import", "theirs", "--encoder", "ways") == f"{here / 'films' / 'across.mp4'}\n"
    assert search("--import", "theirs") == f"{here / 'films' / 'across.mp4'}\n"
    assert "--import MODULE" in search()
    with Library("films") as library:
        assert (library.features().rate, library.features().encoder.name) == (0.5, "ways")
    folder = here / "site" / "motion-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: motion\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[prvr.encoders]\nmotion = own_clip_encoder:Motion\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(here / "site"), str(here), os.environ.get("PYTHONPATH", "")]))
    assert search("--encoder", "motion") == f"{here / 'films' / 'across.mp4'}\n"
    assert search() == f"{here / 'films' / 'across.mp4'}\n"  # remembered


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("window = (2.0, 8, 1.0)", "its window is of type tuple, expected ClipWindow"),
        ("def encode(self, clips): return clips", "TypeError"),
        ("def encode(self, clips, times): return np.ones((len(clips), 8, 3), np.float32)", r"shape \(2, 8, 3\)"),
    ],
)
def test_what_breaks_the_protocol_is_refused_at_once(here: Path, code: str, said: str) -> None:
    name = f"broken_clips_{len(said)}"
    Path(f"{name}.py").write_text(f"from own_clip_encoder import *\nclass Broken(Motion):\n    {code}\n")
    with pytest.raises(DataError, match=said):
        open_encoder(f"{name}:Broken")


@pytest.fixture(scope="module", params=["xclip", "sentence-transformers", "qwen"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of a tiny model of each kind."""
    pytest.importorskip("sentence_transformers")
    folder = tmp_path_factory.mktemp("models") / request.param
    if request.param == "xclip":
        return str(tiny_xclip(folder))
    if request.param == "qwen":
        pytest.importorskip("torchvision", reason="the video processors of transformers need it")
        return str(tiny_qwen(folder))
    return f"sentence-transformers:{tiny_sentence_model(folder)}"


def test_models_of_clips_read_the_order_of_frames(model: str) -> None:
    encoder, text = open_encoder(model), open_featurizer(model)
    assert isinstance(encoder, ClipEncoder)
    assert encoder.identity == open_encoder(model).identity
    frames = encoder.window.frames
    assert frames == (8 if "qwen" in model else 4)
    clips = np.stack([[encoder.prepare(pixels) for pixels in noise(frames, seed, 40, 72)] for seed in (0, 1)])
    times = np.tile((np.arange(frames, dtype=np.float32) + np.float32(0.5)) * np.float32(2 / frames), (2, 1))
    rows = encoder.encode(clips, times)
    assert rows.shape == (2, encoder.dim)
    np.testing.assert_allclose(encoder.encode(clips[1:], times[1:]), rows[1:], atol=1e-5)
    assert np.abs(encoder.encode(clips[:, ::-1].copy(), times) - rows).max() > 1e-4
    sentence = text.sentence("a red circle")
    assert sentence.shape == (encoder.joint_dim,)
    assert np.linalg.norm(sentence) == pytest.approx(1, abs=1e-5)
    assert text.words("a red circle").shape[1] == text.word_dim
    with pytest.raises(InputError, match="no word"):
        text.sentence(" ")
    check_joint(text.identity, encoder.identity)


def test_a_library_takes_models_of_clips(model: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Library("films", encoder=model, home="library", device="cpu") as library:
        assert library.search("a red circle rises").videos == 2
        assert library.features().read("up.mp4").shape == (8, library.features().dim)
        assert library.search(Query(image=np.zeros((48, 64, 3), np.uint8))).hits
    with Library("films", home="library", device="cpu") as library:
        assert library.update().encoded == []
    with Library("films", home="library", device="cpu", rate=0.5) as library:  # of the folder's encoder
        assert len(library.update().encoded) == 2
        assert library.features().rate == 0.5
    assert main(["library", "films", "--library", "library"]) == 0
    assert "clips per second" in " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_models_of_sentences_that_take_no_videos_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    part = Transformer(str(tiny_roberta(tmp_path / "roberta")))
    SentenceTransformer(modules=[part, Pooling(16)], device="cpu").save(str(tmp_path / "texts"))
    with pytest.raises(DataError, match="takes text, expected text and video"):
        open_encoder(f"sentence-transformers:{tmp_path / 'texts'}")
    modules = tmp_path / "texts" / "modules.json"
    modules.write_text(modules.read_text().replace("sentence_transformers.base.modules.transformer.", "evil."))
    (tmp_path / "texts" / "evil.py").write_text("raise SystemExit('code of a model')")
    with pytest.raises(DataError, match="cannot be loaded"):
        open_encoder(f"sentence-transformers:{tmp_path / 'texts'}")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked and killed as POSIX does")
def test_a_kill_costs_the_film_that_was_being_encoded(here: Path) -> None:
    class Dies(Spans):
        def finish(self, rows: np.ndarray) -> np.ndarray:
            return die() if self.encoded > 8 else rows  # type: ignore[func-returns-value]

    films, window = here / "films", ClipWindow(2.0)
    assert killed(lambda: encode(films, Dies(window), here / "store", rate=1.0))
    report, found = encode(films, Spans(window), here / "store", rate=1.0)
    assert report.encoded == ["up.mp4"]
    _, whole = encode(films, Spans(window), here / "other", rate=1.0)
    for name, file in whole.items():
        np.testing.assert_array_equal(found[name].rows, file.rows)
