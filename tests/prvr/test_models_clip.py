"""A token retriever over CLIP: what is copied from it, and both trained together on pictures and token numbers."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from video_models import square_clip, tiny_siglip

from prvr.config import ConfigError, load_config
from prvr.errors import DataError
from prvr.models import build_retriever, load_pretrained
from prvr.published.diffusionret.clip_retriever import ClipRetriever, start_from_clip
from prvr.published.diffusionret.model_config import TokenModelConfig
from prvr.published.diffusionret.token_retriever import TokenRetriever
from prvr.types import Batch

transformers = pytest.importorskip("transformers")

LENGTHS, COUNTS = [2, 3, 1], [4, 3, 5]


SIZES = {"video_dim": 16, "query_dim": 16, "hidden": 16, "heads": 2, "depth": 2, "max_frames": 4, "max_words": 6}


def settings(**changes: Any) -> TokenModelConfig:
    return TokenModelConfig(**{"kind": "tokens", "word_projection": "none", **SIZES, **changes})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return square_clip(tmp_path_factory.mktemp("clip"))


@pytest.fixture
def clip(folder: Path) -> Any:
    return transformers.CLIPModel.from_pretrained(folder).eval()


def with_clip(folder: Path, **changes: Any) -> ClipRetriever:
    torch.manual_seed(0)
    retriever = build_retriever(settings(**{"clip": str(folder), "video_dim": 768, "query_dim": 1} | changes))
    assert isinstance(retriever, ClipRetriever)
    return retriever.eval()


def make_batch(frames: int = 3, words: int = 5, nonsense: float = 9.0) -> Batch:
    draw = torch.Generator().manual_seed(0)
    frame_mask = torch.arange(frames) < torch.tensor(LENGTHS)[:, None]
    token_mask = torch.arange(words) < torch.tensor(COUNTS)[:, None]
    pixels = torch.randn(3, 4, 3, 16, 16, generator=draw)[:, :frames]
    tokens = torch.randint(2, 11, (3, 6), generator=draw)[:, :words]
    tokens[:, 0] = 12
    tokens[torch.arange(3), torch.tensor(COUNTS) - 1] = 13
    return Batch(
        clips=torch.zeros(3, 1, 768),
        frames=pixels.flatten(2).masked_fill(~frame_mask[..., None], nonsense),
        frame_mask=frame_mask,
        words=tokens.float().masked_fill(~token_mask, nonsense)[..., None],
        word_mask=token_mask,
        query_to_video=torch.arange(3),
    )


def test_a_clip_that_does_not_fit_is_refused(clip: Any, folder: Path, tmp_path: Path) -> None:
    retriever = TokenRetriever(settings(max_frames=17))
    before = {name: tensor.clone() for name, tensor in retriever.state_dict().items()}
    with pytest.raises(ValueError, match=r"position_embedding\.weight has shape \(16, 16\)"):
        start_from_clip(retriever, clip.state_dict())
    assert all(torch.equal(tensor, before[name]) for name, tensor in retriever.state_dict().items())
    with pytest.raises(ValueError, match=r"lacks tensors: text_model\.encoder\.layers\.3\."):
        start_from_clip(TokenRetriever(settings(depth=4)), clip.state_dict())
    with pytest.raises(ValueError, match=r"16 tokens, .* model\.hidden=16, got 8, model\.video_dim"):
        with_clip(folder, hidden=8, video_dim=12)
    with pytest.raises(ValueError, match="a model of type 'siglip', expected a CLIP"):
        with_clip(tiny_siglip(tmp_path))
    with pytest.raises(ConfigError, match="query_dim"):
        load_config("diffusionret-msrvtt-pixels", {"model.query_dim": 512})


def test_a_run_starts_from_the_clip_it_names(clip: Any, folder: Path, tmp_path: Path) -> None:
    expected = clip.text_model.encoder.layers[1].mlp.fc1.weight
    started = build_retriever(settings(init_from=str(folder), word_projection="linear"))
    for retriever in (started, with_clip(folder)):
        assert isinstance(retriever, TokenRetriever | ClipRetriever)
        assert torch.equal(retriever.temporal.layers[1].linear1.weight, expected)
    assert torch.equal(started.project_words.weight, clip.text_projection.weight)
    backbone = with_clip(folder).backbone.state_dict()
    assert all(torch.equal(backbone[name], tensor) for name, tensor in clip.state_dict().items())
    with pytest.raises(DataError, match="none: no such folder"):
        build_retriever(settings(init_from=str(tmp_path / "none")))


def test_pictures_and_tokens_give_what_the_clip_gives(clip: Any, folder: Path) -> None:
    retriever, batch = with_clip(folder), make_batch()
    padded = retriever(make_batch(frames=4, words=6, nonsense=1e6))
    torch.testing.assert_close(retriever(batch).scores.total, padded.scores.total, rtol=0, atol=1e-5)
    text = retriever.encode_text(batch.words, batch.word_mask)
    for q, count in enumerate(COUNTS):
        alone = clip.text_model(input_ids=batch.words[q : q + 1, :count, 0].long()).last_hidden_state
        torch.testing.assert_close(text.words[q, :count], clip.text_projection(alone)[0], rtol=0, atol=1e-5)
    images = clip.get_image_features(pixel_values=batch.frames[1].unflatten(1, (3, 16, 16)))
    images = getattr(images, "pooler_output", images)
    video = retriever.encode_video(batch.clips, batch.frames, batch.frame_mask)
    assert video.frames is not None
    alone = retriever.temporal(images[None], torch.ones(1, 3, dtype=torch.bool))
    torch.testing.assert_close(video.frames[1], alone[0], rtol=0, atol=1e-5)


def test_saved_and_loaded_models_agree(folder: Path, tmp_path: Path) -> None:
    retriever, batch = with_clip(folder), make_batch()
    retriever.save_pretrained(tmp_path)
    loaded = load_pretrained(tmp_path)
    assert isinstance(loaded, ClipRetriever)
    assert loaded.config == retriever.config
    assert torch.equal(loaded.eval()(batch).scores.total, retriever(batch).scores.total)


def test_bad_batches_are_refused(folder: Path) -> None:
    batch = make_batch()
    with pytest.raises(ValueError, match=r"from 3 to 14: this CLIP has 0 to 13\. .* --text pixels:CLIP"):
        with_clip(folder)(dataclasses.replace(batch, words=batch.words + (batch.words == 13)))
