"""Models of transformers other than CLIP and SigLIP: frames, sentences and search are what the library itself gives."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from video_files import write_video
from video_models import JOINT, tiny_joint, tiny_siglip

from prvr import Library
from prvr.errors import DataError, InputError
from prvr.video import FrameEncoder, TextFeaturizer, VideoStore, open_encoder, open_featurizer, open_video
from prvr.video.encoders.transformer_models import _LONGEST

transformers = pytest.importorskip("transformers")
pytest.importorskip("av")
QUERY = "a red square"


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


def text_by_library(name: str, kind: str, model: Any, text: str) -> torch.Tensor:
    tokenizer = transformers.AutoTokenizer.from_pretrained(name)
    given = tokenizer(text, return_tensors="pt", **({"padding": "max_length"} if kind == "siglip2" else {}))
    if kind == "siglip2":  # trained on filled texts without a mask
        assert given.input_ids.shape == (1, 16)
        del given["attention_mask"]
    with torch.no_grad():
        return F.normalize(model.get_text_features(**given).pooler_output[0], dim=0)


def test_a_folder_is_extracted_indexed_and_searched(
    kind: str, name: str, model: Any, films: Path, tmp_path: Path
) -> None:
    with Library(films, encoder=name, state=tmp_path / "library") as library:
        hits = library.search(QUERY).hits
    store = VideoStore(next((tmp_path / "library").glob("*/store")))
    cosines = {}
    for film in ("wide.mp4", "high.mp4"):
        with open_video(films / film) as video:
            pictures = [pixels for _, pixels in video.sample(2.0)]
        expected = images_by_library(name, model, pictures)
        np.testing.assert_allclose(store.read(film), expected, rtol=1e-4, atol=1e-5)
        sentence = text_by_library(name, kind, model, QUERY)
        cosines[film] = float((F.normalize(torch.from_numpy(expected), dim=1) @ sentence).max())
    assert {hit.video_id: hit.score for hit in hits} == pytest.approx(cosines, abs=2e-3)  # rows are kept as float16


def test_texts_are_those_of_the_library(kind: str, name: str, model: Any, text: TextFeaturizer) -> None:
    for sentence in (QUERY, "a blue circle"):
        expected = text_by_library(name, kind, model, sentence)
        np.testing.assert_allclose(text.sentence(sentence), expected.numpy(), rtol=1e-4, atol=1e-5)
        assert text.words(sentence).shape[1] == text.word_dim
    assert not np.allclose(text.sentence(QUERY), text.sentence("a blue circle"), atol=1e-4)
    with pytest.raises(InputError, match=r"at most (8|16)\."):
        text.words("red " * 16)
    if kind == "siglip2":
        assert np.array_equal(text.words("A RED square"), text.words(QUERY))
        assert text.words(QUERY).shape == (12, 16)  # letters, not what fills up


def test_the_longest_text_that_is_accepted_can_be_read(kind: str, text: TextFeaturizer) -> None:
    most = int(text.identity.preprocessing.rpartition(" ")[2])
    counts = []
    for count in range(1, 17):
        try:
            counts.append(len(text.words("a" * count if kind == "siglip2" else "a " * count)))
        except InputError:
            break
    assert max(counts) == most == (16 if kind == "siglip2" else 8)


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


def test_a_change_of_the_image_processor_is_a_change_of_identity(tmp_path: Path) -> None:
    folder = tiny_joint("siglip2", tmp_path / "siglip2")
    before, about = open_encoder(str(folder)).identity, folder / "preprocessor_config.json"
    assert open_encoder(str(folder)).identity == before
    about.write_text(json.dumps(json.loads(about.read_text()) | {"image_mean": [0.4, 0.4, 0.4]}))
    after = open_encoder(str(folder)).identity
    assert (after.weights, after == before) == (before.weights, False)


def test_siglip_reads_lower_case(tmp_path: Path) -> None:
    text = open_featurizer(str(tiny_siglip(tmp_path / "siglip")))
    assert np.array_equal(text.sentence("A Red CIRCLE"), text.sentence("a red circle"))


def test_models_without_both_sides_are_refused(tmp_path: Path) -> None:
    layers: Any = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    transformers.ViTModel(transformers.ViTConfig(image_size=32, patch_size=8, **layers)).save_pretrained(tmp_path)
    with pytest.raises(DataError, match=r"a model of type 'vit'.*features of images and of texts"):
        open_encoder(str(tmp_path))


def test_a_model_without_an_image_processor_is_refused(tmp_path: Path) -> None:
    folder = tiny_joint("align", tmp_path / "align")
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(DataError, match="cannot be loaded"):
        open_encoder(str(folder))


def test_code_that_a_model_brings_is_not_run_and_nobody_is_asked(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Config: ...\n")
    config = {"model_type": "strange", "auto_map": {"AutoConfig": "code.Config", "AutoModel": "code.Config"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for open_ in (open_encoder, open_featurizer):
        with pytest.raises(DataError, match="cannot be loaded by transformers"):
            open_(str(tmp_path))
    assert not (tmp_path / "ran").exists()
