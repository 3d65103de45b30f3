"""The joint encoder: what it takes, what it refuses, what it knows and what it was never told."""

import shutil
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from prvr.data import DataError
from prvr.toy import JointEncoder, load_encoder, render
from prvr.toy.encoder import ABOUT, DIM, MAX_WORDS, WEIGHTS, WORD_DIM, with_motion
from prvr.toy.world import Shot, Thing, Video


@pytest.fixture(scope="module")
def encoder() -> JointEncoder:
    return load_encoder()


def test_vectors_have_length_one(encoder: JointEncoder) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (70, 64, 64, 3), np.uint8)
    images, words, text = encoder.encode_frames(frames), encoder.encode_words("A red, RED hexagon"), "a red hexagon"
    for rows in (images, words, encoder.encode_text(text)[None]):
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(words[1], words[2])
    np.testing.assert_allclose(encoder.encode_frames(frames[69:])[0], images[69], atol=1e-5)
    words = encoder.encode_words("hexagons hexagon zyx 日本 ünïcödé 42")
    assert (words.shape, words.dtype) == ((6, WORD_DIM), np.float32)
    assert words[0] @ words[1] > words[0] @ words[2] + 0.1  # of like spelling


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_text_or_no_pixels_is_refused(encoder: JointEncoder) -> None:
    assert encoder.encode_words("red " * MAX_WORDS).shape == (MAX_WORDS, WORD_DIM)
    for text, said in (("... !", "no word in"), ("red " * 65, r"65 words .* at most 64")):
        with pytest.raises(ValueError, match=said):
            encoder.encode_text(text)
    with pytest.raises(ValueError, match=r"expected \(n, 64, 64, 3\) uint8"):
        encoder.encode_frames(np.zeros((1, 64, 64, 3), np.float32))


def test_weights_that_are_damaged_are_named(tmp_path: Path) -> None:
    with resources.as_file(resources.files("prvr.toy")) as folder:
        shutil.copy(folder / ABOUT, tmp_path)
        data = bytearray((folder / WEIGHTS).read_bytes())
    data[-1] ^= 1
    (tmp_path / WEIGHTS).write_bytes(data)
    with pytest.raises(DataError, match=r"encoder\.safetensors: its sha256 is .*, expected .*Install prvr again"):
        load_encoder(tmp_path)


def test_features_are_embeddings_and_how_they_change(encoder: JointEncoder) -> None:
    ball = Thing("circle", "blue", "large")
    frames = render(Video("v", 10.0, "plain", False, 3, (Shot(0.0, 10.0, ball, "left"),)))
    forward, backward = (with_motion(encoder.encode_frames(some)) for some in (frames, frames[::-1]))
    assert forward.shape == (20, 2 * DIM)
    np.testing.assert_allclose(forward[:, :DIM], encoder.encode_frames(frames), atol=1e-6)
    np.testing.assert_allclose(backward[::-1, :DIM], forward[:, :DIM], atol=1e-5)
    np.testing.assert_allclose(backward[::-1, DIM:], -forward[:, DIM:], atol=1e-4)
    assert (np.linalg.norm(forward[:, DIM:], axis=1) <= 1 + 1e-5).all()
    assert np.linalg.norm(forward[1:-1, DIM:], axis=1).min() > 0.1
    assert not forward[[0, -1], DIM:].any()
