"""A token retriever over CLIP: what is copied from it, and both trained together on pixels and tokens."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from video_models import WORDS

from prvr.config import LossConfig, OptimConfig, TokenModelConfig
from prvr.errors import DataError
from prvr.models import ClipRetriever, PixelBatch, TokenRetriever, build_retriever
from prvr.models.clip_retriever import start_from_clip
from prvr.objective import Objective
from prvr.training.gradients import backward_in_parts
from prvr.training.optimizer import parameter_groups
from prvr.types import Labels

transformers = pytest.importorskip("transformers")

LENGTHS, COUNTS = [2, 3, 1], [4, 3, 5]


def square_clip() -> Any:
    """A CLIP as ViT-B/32 is: the joint space as wide as the text encoder."""
    from transformers import CLIPConfig, CLIPModel

    text = {"vocab_size": len(WORDS), "hidden_size": 16, "intermediate_size": 64, "max_position_embeddings": 16}
    text |= {"num_hidden_layers": 3, "num_attention_heads": 2, "projection_dim": 16}
    text |= {"bos_token_id": 12, "eos_token_id": 13, "pad_token_id": 13}
    vision = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 16, "patch_size": 8, "projection_dim": 16}
    torch.manual_seed(0)
    config: Any = CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
    model = CLIPModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.2 * torch.randn_like(parameter))
    return model


def settings(**changes: Any) -> TokenModelConfig:
    values: dict[str, Any] = {
        "kind": "tokens",
        "video_dim": 16,
        "query_dim": 16,
        "hidden": 16,
        "heads": 2,
        "depth": 2,
        "max_frames": 4,
        "max_words": 6,
        "word_projection": "none",
    }
    return TokenModelConfig(**(values | changes))


def make_batch(frames: int = 3, words: int = 5, nonsense: float = 9.0) -> PixelBatch:
    draw = torch.Generator().manual_seed(0)
    frame_mask = torch.arange(frames) < torch.tensor(LENGTHS)[:, None]
    token_mask = torch.arange(words) < torch.tensor(COUNTS)[:, None]
    pixels = torch.randn(3, 4, 3, 16, 16, generator=draw)[:, :frames]
    tokens = torch.randint(2, 11, (3, 6), generator=draw)[:, :words]
    tokens[:, 0] = 12
    tokens[torch.arange(3), torch.tensor(COUNTS) - 1] = 13
    return PixelBatch(
        pixels=pixels.masked_fill(~frame_mask[..., None, None, None], nonsense),
        frame_mask=frame_mask,
        tokens=tokens.masked_fill(~token_mask, 3),
        token_mask=token_mask,
        labels=Labels(3, torch.arange(3)),
    )


def test_layers_are_those_of_the_clip() -> None:
    """The temporal transformer gives what transformers' own layers give, without their causal mask."""
    clip = square_clip().eval()
    retriever = TokenRetriever(settings(word_projection="linear")).eval()
    start_from_clip(retriever, clip.state_dict())
    frames, mask = torch.randn(2, 4, 16), torch.ones(2, 4, dtype=torch.bool)
    x = frames + clip.text_model.embeddings.position_embedding.weight[:4]
    for layer in clip.text_model.encoder.layers[:2]:
        x = layer(x, attention_mask=None)
        x = x[0] if isinstance(x, tuple) else x
    torch.testing.assert_close(retriever.temporal(frames, mask), frames + x, rtol=1e-4, atol=1e-4)
    assert torch.equal(retriever.project_words.weight, clip.text_projection.weight)


def test_a_clip_that_does_not_fit_is_refused() -> None:
    clip = square_clip().state_dict()
    for changes, message in (
        ({"depth": 4}, r"no tensor 'text_model\.encoder\.layers\.3\."),
        ({"max_frames": 17}, r"temporal\.positions the shape \(16, 16\), this retriever expects \(17, 16\)"),
        ({"hidden": 8, "word_projection": "linear", "frame_projection": "linear"}, r"shape \(4, 16\).*\(4, 8\)"),
    ):
        retriever = TokenRetriever(settings(**changes))
        before = {name: tensor.clone() for name, tensor in retriever.state_dict().items()}
        with pytest.raises(ValueError, match=message):
            start_from_clip(retriever, clip)
        assert all(torch.equal(tensor, before[name]) for name, tensor in retriever.state_dict().items())
    with pytest.raises(ValueError, match="projects frames and words to 16: expected hidden"):
        ClipRetriever(square_clip(), settings(word_projection="linear"))


def test_a_run_starts_from_the_clip_it_names(tmp_path: Path) -> None:
    clip = square_clip()
    clip.save_pretrained(tmp_path)
    retriever = build_retriever(settings(init_from=str(tmp_path)))
    assert isinstance(retriever, TokenRetriever)
    expected = clip.text_model.encoder.layers[1].mlp.fc1.weight
    assert torch.equal(retriever.temporal.layers[1].linear1.weight, expected)
    with pytest.raises(DataError, match="cannot be loaded"):
        build_retriever(settings(init_from=str(tmp_path / "none")))


def test_pixels_and_tokens_give_what_the_clip_gives() -> None:
    clip, batch = square_clip().eval(), make_batch()
    retriever = ClipRetriever(clip, settings()).eval()
    text = retriever.encode_text(batch.tokens, batch.token_mask)
    for q, count in enumerate(COUNTS):
        alone = clip.text_model(input_ids=batch.tokens[q : q + 1, :count]).last_hidden_state
        torch.testing.assert_close(text.words[q, :count], clip.text_projection(alone)[0], rtol=0, atol=1e-5)
    images = clip.get_image_features(pixel_values=batch.pixels[1])
    images = getattr(images, "pooler_output", images)
    video = retriever.encode_video(None, batch.pixels, batch.frame_mask)
    alone = retriever.head.embed_frames(images[None], torch.ones(1, 3, dtype=torch.bool))
    torch.testing.assert_close(video.frames[1], alone.frames[0], rtol=0, atol=1e-5)


def test_padding_changes_nothing() -> None:
    retriever = ClipRetriever(square_clip(), settings()).eval()
    plain, padded = retriever(make_batch()), retriever(make_batch(frames=4, words=6, nonsense=1e6))
    torch.testing.assert_close(plain.scores.total, padded.scores.total, rtol=0, atol=1e-5)


def test_both_learn_each_at_its_rate() -> None:
    """One step of Adam: no entry moves by more than its rate; the CLIP moves, a ten-thousandth as far."""
    retriever, batch = ClipRetriever(square_clip(), settings()).train(), make_batch()
    objective = Objective(LossConfig(contrastive=1.0, contrastive_learned=True), retriever.config)
    optim = OptimConfig(lr=1e-3, backbone_lr=1e-7, weight_decay=0.0)
    groups = parameter_groups(retriever, objective, optim, backbone=retriever.backbone)
    assert sorted({group.get("lr", optim.lr) for group in groups}) == [1e-7, 1e-3]
    together = [p for group in groups for p in group["params"]]
    assert len({id(p) for p in together}) == len(together) == len([*retriever.parameters(), *objective.parameters()])
    optimizer = torch.optim.AdamW(groups, lr=optim.lr)
    before = {name: p.detach().double() for name, p in retriever.named_parameters()}
    first = objective(retriever(batch), batch.labels)["total"]
    first.backward()
    optimizer.step()
    moved = {name: (p.detach().double() - before[name]).abs().max().item() for name, p in retriever.named_parameters()}
    ours = {name: far for name, far in moved.items() if not name.startswith("backbone.")}
    theirs = {name: far for name, far in moved.items() if name.startswith("backbone.")}
    assert 0.9e-3 < max(ours.values()) < 1.1e-3
    assert 0 < max(theirs.values()) < 2e-7
    for _ in range(30):
        optimizer.zero_grad()
        last = objective(retriever(batch), batch.labels)["total"]
        last.backward()
        optimizer.step()
    assert last < first


def test_chunks_change_nothing() -> None:
    """GradCache under the whole CLIP, where memory matters most."""
    batch, loss = make_batch(), LossConfig(contrastive=1.0)
    whole, parts = (ClipRetriever(square_clip(), settings()).double().eval() for _ in range(2))
    parts.load_state_dict(whole.state_dict())
    batch = dataclasses.replace(batch, pixels=batch.pixels.double())
    objective = Objective(loss, whole.config)
    objective(whole(batch), batch.labels)["total"].backward()
    chunks = [
        PixelBatch(
            batch.pixels[v : v + 1, : LENGTHS[v]],
            batch.frame_mask[v : v + 1, : LENGTHS[v]],
            batch.tokens[v : v + 1, : COUNTS[v]],
            batch.token_mask[v : v + 1, : COUNTS[v]],
            Labels(1, torch.zeros(1, dtype=torch.long)),
        )
        for v in range(3)
    ]
    backward_in_parts(parts, objective, chunks, batch.labels, seeds=[0, 1, 2])
    reached = 0
    for (name, ours), theirs in zip(parts.named_parameters(), whole.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None), name
        if theirs.grad is not None:
            reached += name.startswith("backbone.")
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-6, atol=1e-6, msg=name)
    assert reached > 40


def test_saved_and_loaded_models_agree(tmp_path: Path) -> None:
    retriever, batch = ClipRetriever(square_clip(), settings()).eval(), make_batch()
    retriever.save_pretrained(tmp_path)
    loaded = ClipRetriever.from_pretrained(tmp_path).eval()
    assert torch.equal(loaded(batch).scores.total, retriever(batch).scores.total)
    assert all(p.requires_grad for p in loaded.parameters())


def test_bad_batches_are_refused() -> None:
    batch = make_batch()
    with pytest.raises(ValueError, match="3 videos with 3 masks and 3 queries with 3; the labels are of 2 videos"):
        dataclasses.replace(batch, labels=Labels(2, torch.arange(2)))
    with pytest.raises(ValueError, match="got 5 tokens, this model takes at most 4"):
        ClipRetriever(square_clip(), settings(max_words=4))(batch)
    with pytest.raises(ValueError, match="got 3 frames, this model takes at most 2"):
        ClipRetriever(square_clip(), settings(max_frames=2))(batch)
