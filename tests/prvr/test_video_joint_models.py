"""Joint models of transformers: frames, sentences and search are what the library itself gives."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from video_files import write_video
from video_models import JOINT, tiny_joint

from prvr.encoders import FrameEncoder, TextFeaturizer, open_encoder, open_featurizer
from prvr.encoders.transformer_models import _LONGEST
from prvr.errors import DataError, InputError
from prvr_search import Library
from prvr_search.films import open_video
from prvr_search.vectors.joint import JointModel

transformers = pytest.importorskip("transformers")
pytest.importorskip("av")
QUERY, PADDED = "a red square", ("siglip", "siglip2")


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A film of 3 s, wider than high, in which a square moves, and one of another shape."""
    folder = tmp_path_factory.mktemp("joint") / "films"
    folder.mkdir()
    for name, height, width, colour in (("wide.mp4", 48, 80, 0), ("high.mp4", 96, 48, 2)):
        frames = np.full((30, height, width, 3), 60, np.uint8)
        for place, frame in enumerate(frames):
            frame[8:24, place : place + 16, colour] = 250
        write_video(folder / name, list(frames))
    return folder


@pytest.fixture(scope="module", params=JOINT)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def name(kind: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a model of each type."""
    return str(tiny_joint(kind, tmp_path_factory.mktemp("joint") / kind))


@pytest.fixture(scope="module")
def model(name: str) -> Any:
    """The same model, as the library loads it."""
    return transformers.AutoModel.from_pretrained(name).eval()


@pytest.fixture(scope="module")
def encoder(name: str) -> FrameEncoder:
    return open_encoder(name)


@pytest.fixture(scope="module")
def text(name: str) -> TextFeaturizer:
    return open_featurizer(name)


def images_by_library(name: str, model: Any, pictures: list[np.ndarray]) -> np.ndarray:
    processor = transformers.AutoImageProcessor.from_pretrained(name, backend="pil")
    with torch.no_grad():
        return model.get_image_features(**processor(images=pictures, return_tensors="pt")).pooler_output.numpy()


def text_by_library(name: str, kind: str, model: Any, text: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The unit vector of a text, and the states of its tokens."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(name)
    inputs = tokenizer(text, return_tensors="pt", **({"padding": "max_length"} if kind in PADDED else {}))
    if kind in PADDED:  # trained on filled texts without a mask
        assert inputs.input_ids.shape == (1, 16)
        inputs.pop("attention_mask", None)
    with torch.no_grad():
        output = model.get_text_features(**inputs)
    return F.normalize(output.pooler_output[0], dim=0), output.last_hidden_state[0]


def test_a_folder_is_encoded_and_searched(kind: str, name: str, model: Any, films: Path, tmp_path: Path) -> None:
    with Library(films, encoder=name, home=tmp_path / "library", device="cpu") as library:
        hits = library.search(QUERY).hits
        features, text = library.features(), library.index.model
    assert isinstance(text, JointModel)
    plain, centred = (torch.from_numpy(encode([QUERY])[0]) for encode in (text.encode_plain, text.encode_texts))
    cosines = {}
    for film in ("wide.mp4", "high.mp4"):
        with open_video(films / film) as video:
            pictures = [pixels for _, pixels in video.sample(2.0)]
        expected = images_by_library(name, model, pictures)
        np.testing.assert_allclose(features.read(film), expected, rtol=1e-3, atol=2e-3)
        sentence, _ = text_by_library(name, kind, model, QUERY)
        torch.testing.assert_close(plain, F.normalize(sentence, dim=0), rtol=1e-3, atol=1e-4)
        cosines[film] = float((F.normalize(torch.from_numpy(expected), dim=1) @ centred).max())
    assert {hit.video_id: hit.score for hit in hits} == pytest.approx(cosines, abs=2e-3)  # rows are kept as float16


def test_texts_are_those_of_the_library(kind: str, name: str, model: Any, text: TextFeaturizer) -> None:
    for sentence in (QUERY, "a blue circle"):
        expected, states = text_by_library(name, kind, model, sentence)
        np.testing.assert_allclose(text.sentence(sentence), expected.numpy(), rtol=1e-4, atol=1e-5)
        words = text.words(sentence)
        first = int(kind in ("clip", "siglip"))  # the first token is left out, the last is not
        if kind == "siglip2":  # filled up on the left
            first = 16 - len(words)
        else:
            assert len(words) == 5 - first
        np.testing.assert_allclose(words, states[first : first + len(words)].numpy(), rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match=r"at most (8|16)\."):
        text.words("red " * 16)
    if kind in PADDED:
        assert np.array_equal(text.words("A RED square"), text.words(QUERY))


def test_pictures_of_all_shapes_become_rows_of_one_width(name: str, model: Any, encoder: FrameEncoder) -> None:
    shapes = [(20, 31), (90, 17), (3, 3), (1, 40)]
    pictures = [np.random.default_rng(n).integers(0, 256, (*shape, 3), np.uint8) for n, shape in enumerate(shapes)]
    found = encoder.encode(np.stack([encoder.prepare(picture) for picture in pictures]))
    assert found.shape == (4, encoder.dim)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(
        found[:2], np.concatenate([images_by_library(name, model, [one]) for one in pictures[:2]]), rtol=1e-3, atol=1e-5
    )
    thin = np.full((1, 100 * _LONGEST, 3), 9, np.uint8)  # cut before it is resized
    assert np.array_equal(encoder.prepare(thin), encoder.prepare(thin[:, :_LONGEST]))


def test_code_that_a_model_brings_is_not_run_and_nobody_is_asked(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Config: ...\n")
    config = {"model_type": "strange", "auto_map": {"AutoConfig": "code.Config", "AutoModel": "code.Config"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for open_ in (open_encoder, open_featurizer):
        with pytest.raises(DataError, match="cannot be loaded by transformers"):
            open_(str(tmp_path))
    assert not (tmp_path / "ran").exists()
