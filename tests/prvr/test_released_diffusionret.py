"""Checkpoints of DiffusionRet as pipelines: equal outputs, the authors' numbers, refusals, a run on films."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from commands import explained
from diffusionret import GOLDEN
from golden import check_close
from plain_diffusionret import SIDE, PlainDiffusionRet
from torch import Tensor

from prvr.cli import main
from prvr.config import load_config
from prvr.models import load_pretrained
from prvr.published.checkpoint_files import convert_checkpoint
from prvr.published.diffusionret.clip_retriever import ClipRetriever
from prvr.published.diffusionret.model_config import TokenCompat
from prvr.published.diffusionret.stage import load_rerankers

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore:.*token_id.*")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A checkpoint with random weights and the golden denoiser, and the folder that it becomes."""
    folder = tmp_path_factory.mktemp("diffusionret")
    torch.manual_seed(0)
    plain = PlainDiffusionRet().eval()
    own = {name.removeprefix("v2t/"): tensor for name, tensor in GOLDEN.state.items()}
    plain.diffusion_model_v.load_state_dict(own, strict=False)
    torch.save(plain.state_dict(), folder / "best.pth")
    command = ["convert", "checkpoint", str(folder / "best.pth"), "--dataset", "msrvtt"]
    assert main([*command, "--output", str(folder / "out")]) == 0
    return SimpleNamespace(plain=plain, file=folder / "best.pth", out=folder / "out")


def inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tokens that end in the highest number, pictures, and their masks."""
    draw = torch.Generator().manual_seed(1)
    tokens, lengths = torch.randint(0, 12, (3, 6), generator=draw), torch.tensor([4, 6, 3])
    word_mask = torch.arange(6) < lengths[:, None]
    tokens[:, 0], tokens[torch.arange(3), lengths - 1] = 12, 13
    pictures = torch.randn(2, 5, 3, SIDE, SIDE, generator=draw)
    return tokens.masked_fill(~word_mask, 0), word_mask, pictures, torch.arange(5) < torch.tensor([[5], [3]])


@torch.no_grad()
def test_the_first_stage_gives_what_the_plain_one_gives(made: SimpleNamespace) -> None:
    tokens, word_mask, pictures, frame_mask = inputs()
    retriever: Any = load_pretrained(made.out / "first").eval()
    assert isinstance(retriever, ClipRetriever)
    text = retriever.encode_text(tokens[..., None].float(), word_mask)
    video = retriever.encode_video(torch.zeros(2, 1, 3 * SIDE**2), pictures.flatten(2), frame_mask)
    words, sentence = made.plain.text(tokens, word_mask)
    frames = made.plain.frames(pictures, frame_mask)
    check_close(text.sentence, sentence.numpy(), 1e-5, "sentence")
    check_close(text.words[word_mask], words[word_mask].numpy(), 1e-5, "words")
    check_close(video.frames[frame_mask], frames[frame_mask].numpy(), 1e-5, "frames")
    other = ClipRetriever(replace(retriever.config, compat=TokenCompat(alignment="released"))).eval()
    other.load_state_dict(retriever.state_dict())
    apart = other.encode_video(torch.zeros(2, 1, 3 * SIDE**2), pictures.flatten(2), frame_mask).frames - video.frames
    assert apart.abs().max() > 1e-3 * frames.abs().max()  # the authors' norms are told from a CLIP's
    expected = made.plain.scores(words, word_mask, frames, frame_mask)
    check_close(retriever.score(text, video).total, expected.numpy(), 1e-5, "scores")


def test_the_second_stage_gives_the_authors_numbers(made: SimpleNamespace) -> None:
    rerankers = load_rerankers(next((made.out / "stages").iterdir()))
    assert torch.equal(rerankers["t2v"].denoiser.query.weight, made.plain.diffusion_model["q_proj"].weight)
    x, timesteps = GOLDEN.tensor("in/x", torch.float32), GOLDEN.tensor("in/timesteps")
    reranker, conditions = rerankers["v2t"], GOLDEN.inputs("v2t", torch.float32)
    check_close(reranker.denoise(x, timesteps, *conditions), GOLDEN.arrays["out64/denoiser_v2t"], 1e-5, "denoise")
    sampled = reranker.sample(*conditions, initial=GOLDEN.tensor("in/ddim_init_v", torch.float32))
    check_close(sampled, GOLDEN.arrays["out64/ddim50_v2t"], 1e-5, "sample")


def test_a_checkpoint_of_the_first_stage_alone_in_half_precision(tmp_path: Path) -> None:
    torch.manual_seed(1)
    plain = PlainDiffusionRet(denoisers=False)
    state = {f"module.{name}": t.half() if "clip." in name else t for name, t in plain.state_dict().items()}
    torch.save(state, tmp_path / "stage1.pth")
    found = convert_checkpoint(tmp_path / "stage1.pth", "didemo", tmp_path / "out")
    assert found.rerankers == {}
    model: Any = load_pretrained(tmp_path / "out")
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert torch.equal(model.backbone.text_projection.weight, plain.clip.text_projection.T.half().float())
    config = load_config(tmp_path / "out" / "config.yaml")
    assert (config.name, config.data.collection, config.model) == ("diffusionret-didemo", "didemo-pixels", model.config)


def test_what_does_not_fit_is_refused(
    made: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["convert", "checkpoint", "--output", str(tmp_path / "out"), "--dataset"]
    torch.save(torch.load(made.file) | {"clip.ln_final.bias": torch.zeros(3)}, tmp_path / "other.pth")
    said = explained([*command, "msrvtt", str(tmp_path / "other.pth")], capsys)
    assert "clip.ln_final.bias has shape (3,)" in said
    said = explained([*command, "tvr", str(made.file)], capsys)
    assert "no checkpoints for tvr: choose one of msrvtt" in said
    assert not (tmp_path / "out").exists()
