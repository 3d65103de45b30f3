"""Encoders of frames and of texts: what they compute, what they are told apart by, what they refuse."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from video_models import tiny_clip, tiny_siglip

from prvr.data import DataError
from prvr.encoders import check_joint, open_encoder, open_featurizer
from prvr.toy import load_encoder
from prvr.toy.encoder import with_motion

transformers = pytest.importorskip("transformers")


@pytest.fixture
def copy(clip: str, tmp_path: Path) -> Path:
    """The CLIP where a test may spoil it."""
    return Path(shutil.copytree(clip, tmp_path / "clip"))


@pytest.fixture(scope="module")
def siglip(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_siglip(tmp_path_factory.mktemp("models") / "siglip"))


def random_frames(count: int, height: int = 45, width: int = 70) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (count, height, width, 3), dtype=np.uint8)


def test_the_toy_encoder_and_its_texts_are_those_of_toy_corpora() -> None:
    frames = random_frames(20, 64, 64)
    encoder = open_encoder("toy")
    prepared = np.stack([encoder.prepare(frame) for frame in frames])
    found = encoder.finish(encoder.encode(prepared))
    assert np.array_equal(found, with_motion(load_encoder().encode_frames(frames)))
    assert (encoder.dim, encoder.joint_dim) == (512, 256)
    assert np.array_equal(encoder.prepare(frames[0].repeat(3, 0).repeat(5, 1)), frames[0])  # the mean of each area
    text, model = open_featurizer("toy"), load_encoder()
    assert np.array_equal(text.words("a red ring rises"), model.encode_words("a red ring rises"))
    assert np.array_equal(text.sentence("a red ring rises"), model.encode_text("a red ring rises"))
    check_joint(text.identity, encoder.identity)


def test_the_tokenizer_that_siglip_comes_with(tmp_path: Path) -> None:
    pieces = pytest.importorskip("sentencepiece")
    pytest.importorskip("google.protobuf")
    folder = tiny_siglip(tmp_path / "siglip")
    for path in folder.glob("*token*"):
        path.unlink()
    texts = iter(["a red bed", "a bad bread", "read"] * 10)  # few letters: the model knows 14 tokens
    pieces.SentencePieceTrainer.train(
        sentence_iterator=texts,
        model_prefix=str(folder / "spiece"),
        vocab_size=14,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    transformers.SiglipTokenizer(str(folder / "spiece.model"), model_max_length=16).save_pretrained(folder)
    text = open_featurizer(str(folder))
    assert np.array_equal(text.words("Red, RED!"), text.words("red red"))  # letters and marks are made alike
    assert text.sentence("red").shape == (16,)
    check_joint(text.identity, open_encoder(str(folder)).identity)


def test_roberta_has_words_and_no_sentence(roberta: str, clip: str) -> None:
    text = open_featurizer(roberta)
    assert text.words("a red circle").shape == (5, text.word_dim)
    assert text.joint_dim == 0
    with pytest.raises(ValueError, match="no space in common with frames"):
        text.sentence("a red circle")
    with pytest.raises(DataError, match="two models"):
        check_joint(text.identity, open_encoder(clip).identity)
    for words, said in (("red " * 13, "at most 14"), ("  \n", "no word")):
        with pytest.raises(ValueError, match=said):
            text.words(words)


def test_an_identity_tells_weights_and_preprocessing_and_nothing_else(tmp_path: Path, clip: str, siglip: str) -> None:
    encoder, text = open_encoder(clip), open_featurizer(clip)
    assert encoder.identity == open_encoder(clip).identity
    copy = tmp_path / "copy"  # the same model saved again, in another place
    transformers.AutoModel.from_pretrained(clip).save_pretrained(copy, max_shard_size="10KB")
    transformers.AutoTokenizer.from_pretrained(clip).save_pretrained(copy)
    (copy / "preprocessor_config.json").write_bytes((Path(clip) / "preprocessor_config.json").read_bytes())
    assert len(list(copy.glob("*.safetensors"))) > 1
    assert open_encoder(str(tiny_clip(tmp_path / "other", nudge=1e-6))).identity != encoder.identity
    again = open_encoder(str(copy)).identity
    assert again.name != encoder.identity.name
    assert again.preprocessing == encoder.identity.preprocessing
    about = json.loads((copy / "preprocessor_config.json").read_text())
    (copy / "preprocessor_config.json").write_text(json.dumps(about | {"resample": 2}))
    other = open_encoder(str(copy)).identity
    assert (other.weights, other.preprocessing == again.preprocessing) == (again.weights, False)
    with pytest.raises(DataError, match=r"two models.*extract the videos"):
        check_joint(text.identity, open_encoder(siglip).identity)


def test_what_is_no_such_model_is_refused(tmp_path: Path, roberta: str) -> None:
    for name, said in (
        ("./none/such/model", "no such folder"),
        ("none/such-model", "--download"),
        (roberta, "a model of type 'roberta'.*clip, siglip"),
    ):
        with pytest.raises(DataError, match=said):
            open_encoder(name)


def test_weights_that_are_broken_or_a_pickle_are_refused(copy: Path) -> None:
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(DataError, match="cannot be loaded"):
        open_encoder(str(copy))
    torch.save({}, copy / "pytorch_model.bin")
    weights.unlink()
    with pytest.raises(DataError, match="safetensors"):
        open_encoder(str(copy))


@pytest.mark.parametrize("content", ["[]", "[" * 100_000], ids=range(2))
@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "preprocessor_config.json"])
def test_files_of_a_model_that_hold_something_else_are_refused(copy: Path, file: str, content: str) -> None:
    (copy / file).write_text(content)
    with pytest.raises(DataError):
        (open_encoder if file == "preprocessor_config.json" else open_featurizer)(str(copy))


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("vision_config", {"patch_size": 0}),
        ("image_std", [0, 0, 0]),
        ("size", {"shortest_edge": 10**9}),
        ("crop_size", 16),
    ],
)
def test_settings_that_cannot_be_are_refused(copy: Path, part: str, value: Any) -> None:
    of_model = part.endswith("_config")
    file = copy / ("config.json" if of_model else "preprocessor_config.json")
    about = json.loads(file.read_text())
    file.write_text(json.dumps(about | {part: about[part] | value if of_model else value}))
    for open_, name in (
        [(open_featurizer, copy)] if of_model else [(open_encoder, copy), (open_encoder, f"pixels:{copy}")]
    ):
        with pytest.raises(DataError):
            open_(str(name))


def test_a_model_is_not_filled_up_with_random_numbers(copy: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (copy / name).unlink()
    with pytest.raises(DataError, match="tokenizer"):
        open_featurizer(str(copy))
    weights = load_file(copy / "model.safetensors")
    del weights["visual_projection.weight"]
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    with pytest.raises(DataError, match=r"lack 1 tensors, visual_projection\.weight first"):
        open_encoder(str(copy))
