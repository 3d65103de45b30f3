"""DiffusionRet's first stage end to end: a CLIP is trained along, on the pixels of your own films.

    python examples/finetune_clip.py FILMS CAPTIONS.csv --clip openai/clip-vit-base-patch32 --device cuda

CAPTIONS.csv has the columns `video`, a file name in FILMS, and `text`. Every fifth film is kept for the test. Without
arguments: ten films that prvr draws and a small CLIP of random weights, to show the course: no good model comes of it.
"""

import argparse
import csv
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from prvr.config import LossConfig, OptimConfig, TokenModelConfig
from prvr.data.synthetic import render
from prvr.data.synthetic.mp4 import write_mp4
from prvr.data.synthetic.scenes import draw_split
from prvr.evaluation.metrics import RetrievalMetrics, ranks
from prvr.models import ClipRetriever, PixelBatch
from prvr.objective import Objective
from prvr.training.gradients import backward_in_parts
from prvr.training.optimizer import parameter_groups
from prvr.types import Labels
from prvr.video import open_video
from prvr.video.encoders.clip import Clip, load_clip
from prvr.video.pretrained import load_tokenizer

FRAMES, WORDS = 12, 32  # as the paper for short videos; 64 and 64 for long ones


class Films:
    """Frames and tokens of all films, prepared as the CLIP expects them; frames as bytes."""

    def __init__(self, folder: Path, captions: Path, clip: Clip) -> None:
        tokenizer, texts = load_tokenizer(clip.name), dict[str, list[torch.Tensor]]()
        with captions.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                ids = tokenizer(row["text"], truncation=True, max_length=WORDS)["input_ids"]
                texts.setdefault(row["video"], []).append(torch.tensor(ids))
        self.names, self.texts = list(texts), list(texts.values())
        self.frames = [_frames(folder / name, clip) for name in self.names]
        self.mean, self.std = (torch.tensor(x).view(3, 1, 1) for x in (clip.preprocessing.mean, clip.preprocessing.std))

    def batch(self, videos: list[int], captions: list[list[torch.Tensor]], device: str) -> PixelBatch:
        """These films, each with some captions."""
        pixels = [(self.frames[v] / 255 - self.mean) / self.std for v in videos]
        words = [text for some in captions for text in some]
        owner = torch.tensor([number for number, some in enumerate(captions) for _ in some])
        return PixelBatch(*_padded(pixels, device), *_padded(words, device), Labels(len(videos), owner).to(device))


def _frames(path: Path, clip: Clip) -> torch.Tensor:
    """`(l, 3, s, s)` bytes: frames of a film, evenly spread over it."""
    with open_video(path) as film:
        rate = FRAMES / film.info.duration if film.info.duration else 1.0
        pictures = [clip.preprocessing.apply(frame.pixels) for frame in film.sample(rate)]
    return torch.from_numpy(np.stack(pictures[:FRAMES])).permute(0, 3, 1, 2)


def _padded(rows: list[torch.Tensor], device: str) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = torch.tensor([len(row) for row in rows])
    filled = pad_sequence(rows, batch_first=True)
    return filled.to(device), (torch.arange(filled.shape[1]) < lengths[:, None]).to(device)


def train(retriever: ClipRetriever, films: Films, videos: list[int], args: argparse.Namespace) -> None:
    """One caption of each film per epoch, as the paper; the batch is encoded in chunks, its losses see all of it."""
    objective = Objective(LossConfig(contrastive=1.0, contrastive_temperature=0.05), retriever.config).to(args.device)
    settings = OptimConfig(lr=1e-3, backbone_lr=args.backbone_lr, weight_decay=0.0)
    groups = parameter_groups(retriever, objective, settings, backbone=retriever.backbone)
    optimizer = torch.optim.AdamW(groups, lr=settings.lr)
    draw = random.Random(0)
    for epoch in range(args.epochs):
        losses, order = [], draw.sample(videos, len(videos))
        for first in range(0, len(order), args.batch):
            chosen = order[first : first + args.batch]
            parts = [chosen[i : i + args.chunk] for i in range(0, len(chosen), args.chunk)]
            chunks = [films.batch(part, [[draw.choice(films.texts[v])] for v in part], args.device) for part in parts]
            labels = Labels(len(chosen), torch.arange(len(chosen))).to(args.device)
            seeds = [draw.randrange(2**31) for _ in parts]
            losses.append(backward_in_parts(retriever.train(), objective, chunks, labels, seeds=seeds)["total"].item())
            optimizer.step()
        print(f"epoch {epoch}: loss {sum(losses) / len(losses):.3f}")


@torch.no_grad()
def test(retriever: ClipRetriever, films: Films, videos: list[int], device: str) -> RetrievalMetrics:
    """Every caption of these films asks for its film among them."""
    batch = films.batch(videos, [films.texts[v] for v in videos], device)
    scores = retriever.eval()(batch).scores.total
    return RetrievalMetrics.from_ranks(ranks(scores, batch.labels.ground_truth).cpu())


def small_example(folder: Path) -> tuple[Path, Path, str]:
    """Films that prvr draws, their captions, and a CLIP of random weights that knows their words."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import CLIPConfig, CLIPModel, PreTrainedTokenizerFast

    scenes, captions = draw_split("train", 10, seed=0), folder / "captions.csv"
    for film in scenes.videos:
        write_mp4(folder / f"{film.id}.mp4", render(film))
    with captions.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["video", "text"], *([f"{s.video_id}.mp4", s.text] for s in scenes.sentences)])

    words = ["<s>", "</s>", "?", *sorted({word for s in scenes.sentences for word in s.text.split()})]
    cutter: Any = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="?"))
    cutter.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    cutter.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=cutter, **names).save_pretrained(folder)
    sizes = {"hidden_size": 32, "intermediate_size": 128, "num_attention_heads": 2, "projection_dim": 32}
    text = sizes | {"vocab_size": len(words), "num_hidden_layers": 4, "bos_token_id": 0, "eos_token_id": 1}
    vision = sizes | {"num_hidden_layers": 2, "image_size": 32, "patch_size": 8}
    CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=32)).save_pretrained(folder)
    return folder, captions, str(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("films", type=Path, nargs="?", help="folder of video files")
    parser.add_argument("captions", type=Path, nargs="?", help="CSV with the columns video and text")
    parser.add_argument("--clip", default="openai/clip-vit-base-patch32", help="a CLIP of transformers, name or folder")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=128, help="films in a batch: negatives of each other")
    parser.add_argument("--chunk", type=int, default=8, help="films encoded at a time")
    parser.add_argument("--backbone-lr", type=float, default=1e-7, help="of the CLIP; all else has 1e-3")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="folder for the trained model")
    args = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        if args.films is None:
            torch.set_num_threads(1)  # the matrices are small
            args.films, args.captions, args.clip = small_example(Path(name))
            args.backbone_lr, args.epochs = 1e-3, 40  # it knows nothing yet, and an epoch is one step
        elif args.captions is None:
            parser.error("name a CSV of captions too")
        clip = load_clip(args.clip)
        films = Films(args.films, args.captions, clip)
        width = int(clip.model.config.projection_dim)
        config = TokenModelConfig(
            kind="tokens", video_dim=width, query_dim=width, hidden=width, heads=max(1, width // 64), depth=4,
            max_frames=FRAMES, max_words=WORDS, word_projection="none", sentence="last",
        )  # fmt: skip
        retriever = ClipRetriever(clip.model.requires_grad_(True), config).to(args.device)
        kept = list(range(0, len(films.names), 5))
        learned = [number for number in range(len(films.names)) if number not in kept]
        print(f"{len(learned)} films to learn from, {len(kept)} to test on, of {len(films.names)}")
        train(retriever, films, learned, args)
        for what, videos in (("films it has learned from", learned), ("the others", kept)):
            found = test(retriever, films, videos, args.device)
            print(f"{what}: R@1 {found.r1:.1f}, chance {100 / len(videos):.1f}")
        if args.out is not None:
            retriever.save_pretrained(args.out)
            print(f"{args.out}: the model, for ClipRetriever.from_pretrained")


if __name__ == "__main__":
    main()
