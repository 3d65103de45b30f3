"""The joint encoder: what it takes, what it refuses, what it knows and what it was never told."""

import json
import runpy
import shutil
from importlib import resources
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from prvr.data import DataError
from prvr.toy import JointEncoder, load_encoder, render
from prvr.toy.encoder import ABOUT, DIM, MAX_WORDS, WEIGHTS, WORD_DIM
from prvr.toy.grammar import ACTION_WORDS
from prvr.toy.toy_corpus import frame_features
from prvr.toy.world import COLOURS, HELD_OUT_COLOURS, SHAPES, Shot, Thing, Video

SCRIPT = Path(__file__).parents[2] / "scripts" / "train_encoder.py"


@pytest.fixture(scope="module")
def encoder() -> JointEncoder:
    return load_encoder()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    with resources.as_file(resources.files("prvr.toy")) as folder:
        for name in (WEIGHTS, ABOUT):
            shutil.copy(folder / name, tmp_path / name)
    return tmp_path


@pytest.fixture(scope="module")
def script() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(SCRIPT)))


def test_vectors_have_length_one(encoder: JointEncoder) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (70, 64, 64, 3), np.uint8)
    images, words, text = encoder.encode_frames(frames), encoder.encode_words("A red, RED hexagon"), "a red hexagon"
    assert images.shape == (70, DIM)
    assert words.shape == (4, WORD_DIM)
    assert images.dtype == words.dtype == encoder.encode_text(text).dtype == np.float32
    for rows in (images, words, encoder.encode_text(text)[None]):
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(words[1], words[2])
    np.testing.assert_allclose(encoder.encode_frames(frames[69:])[0], images[69], atol=1e-5)
    assert encoder.encode_frames(frames[:0]).shape == (0, DIM)


def test_any_typed_word_has_a_vector_near_those_of_like_spelling(encoder: JointEncoder) -> None:
    words = encoder.encode_words("hexagons hexagon zyx 日本 ünïcödé 42")
    assert words.shape == (6, WORD_DIM)
    assert np.isfinite(words).all()
    assert words[0] @ words[1] > words[0] @ words[2] + 0.1


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_text_or_no_pixels_is_refused(encoder: JointEncoder) -> None:
    assert encoder.encode_words("red " * MAX_WORDS).shape == (MAX_WORDS, WORD_DIM)
    for text, said in (("   ", "no word in"), ("... !", "no word in"), ("red " * 65, r"65 words .* at most 64")):
        for encode in (encoder.encode_words, encoder.encode_text):
            with pytest.raises(ValueError, match=said):
                encode(text)
    for shape, kind in (((1, 32, 32, 3), np.uint8), ((64, 64, 3), np.uint8), ((1, 64, 64, 3), np.float32)):
        with pytest.raises(ValueError, match=r"expected \(n, 64, 64, 3\) uint8"):
            encoder.encode_frames(np.zeros(shape, kind))


def test_the_weights_are_small_and_are_those_that_were_trained(files: Path) -> None:
    about = json.loads((files / ABOUT).read_text())
    assert (files / WEIGHTS).stat().st_size <= 1_000_000
    assert load_encoder(files).sha256 == about["sha256"] == load_encoder().sha256
    assert about["made_by"] == "scripts/train_encoder.py"


def test_files_that_are_damaged_or_missing_are_named(files: Path) -> None:
    data = bytearray((files / WEIGHTS).read_bytes())
    data[-1] ^= 1
    (files / WEIGHTS).write_bytes(data)
    with pytest.raises(DataError, match=r"encoder\.safetensors: its sha256 is .*, expected .*Install prvr again"):
        load_encoder(files)
    (files / WEIGHTS).unlink()
    with pytest.raises(DataError, match=r"encoder\.safetensors: cannot be read"):
        load_encoder(files)


def test_features_are_embeddings_and_how_they_change(encoder: JointEncoder) -> None:
    ball = Thing("circle", "blue", "large")
    frames = render(Video("v", 10.0, "plain", False, 3, (Shot(0.0, 10.0, ball, "left"),)))
    forward, backward = frame_features(frames, encoder), frame_features(frames[::-1], encoder)
    assert forward.shape == (20, 2 * DIM)
    np.testing.assert_allclose(forward[:, :DIM], encoder.encode_frames(frames), atol=1e-6)
    np.testing.assert_allclose(backward[::-1, :DIM], forward[:, :DIM], atol=1e-5)
    np.testing.assert_allclose(backward[::-1, DIM:], -forward[:, DIM:], atol=1e-4)
    assert (np.linalg.norm(forward[:, DIM:], axis=1) <= 1 + 1e-5).all()
    assert np.linalg.norm(forward[1:-1, DIM:], axis=1).min() > 0.1
    assert not forward[[0, -1], DIM:].any()
    assert frame_features(frames[:1], encoder).shape == (1, 2 * DIM)


def test_its_training_sees_no_action_and_nothing_held_out(script: SimpleNamespace) -> None:
    rng = np.random.default_rng(0)
    frames = script.draw_frames(600, rng)
    seen = frames.things[frames.things[..., 0] >= 0][:, :2]
    assert {(SHAPES[s], COLOURS[c]) for s, c in seen.tolist()}.isdisjoint(HELD_OUT_COLOURS)
    words: set[str] = set()
    for things, background in zip(frames.things, frames.backgrounds.tolist(), strict=True):
        said, ground = script.choose(things, background, rng)
        words |= set(script.say(said, ground, rng))
    grammar = {"a", "an", "the", "to", "in", "is", "of", "from", "by", "its", "on", "against"}
    actions = {word for forms in ACTION_WORDS.values() for form in forms for phrase in form for word in phrase.split()}
    assert words & actions <= grammar
    assert {"red", "circle", "west", "brick"} <= words
