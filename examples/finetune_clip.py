"""DiffusionRet's first stage end to end: a CLIP is trained with it, on pictures of your own films.

    python examples/finetune_clip.py FILMS CAPTIONS.csv --clip openai/clip-vit-base-patch32 --device cuda

CAPTIONS.csv has the columns `video`, a file name in FILMS, and `text`. The same on the command line: `prvr export
--encoder pixels:CLIP`, `prvr convert captions`, `prvr train --preset diffusionret-msrvtt-pixels`. Without arguments:
films that prvr draws and a small CLIP of random weights, to show the steps: the result is not a good model.

Quick: --out out
"""

import argparse
import csv
import tempfile
from pathlib import Path
from typing import Any

import torch

from prvr.config import load_config
from prvr.corpora.caption_corpus import convert_captions
from prvr.encoders import open_encoder, open_featurizer
from prvr.models import load_pretrained
from prvr.toy import render
from prvr.toy.scenes import draw_split
from prvr.training import train
from prvr_search import Library
from prvr_search.films.toy_videos import write_mp4


def small_example(folder: Path) -> tuple[Path, Path, str]:
    """Films that prvr draws, their captions, and a CLIP of random weights that knows their words."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, PreTrainedTokenizerFast

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
    CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=32).save_pretrained(folder)
    return folder, captions, str(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("films", type=Path, nargs="?", help="folder of video files")
    parser.add_argument("captions", type=Path, nargs="?", help="CSV with the columns video and text")
    parser.add_argument("--clip", default="openai/clip-vit-base-patch32", help="a CLIP of transformers, name or folder")
    parser.add_argument("--hidden", type=int, default=512, help="width of its joint space")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rate", type=float, default=1.0, help="pictures per second")
    parser.add_argument("--backbone-lr", type=float, default=1e-7, help="of the CLIP; all else has 1e-3")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("finetuned"), help="new folder for features, corpus and run")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if args.films is None:
            torch.set_num_threads(1)  # the matrices are small
            args.films, args.captions, args.clip = small_example(Path(name))
            args.hidden, args.backbone_lr, args.epochs = 32, 1e-3, 20  # it knows nothing yet, and an epoch is one step
        elif args.captions is None:
            parser.error("name a CSV of captions too")
        encoder, tokens = open_encoder(f"pixels:{args.clip}"), open_featurizer(f"pixels:{args.clip}")
        where = {"encoder": f"pixels:{args.clip}", "rate": args.rate, "home": args.out / "library"}
        with Library(args.films, **where, device=args.device) as library:
            library.update()
            corpus = convert_captions(args.captions, library.features(), tokens, args.out / "data" / "films")
        changes = {
            "model.clip": args.clip,
            "model.video_dim": encoder.dim,
            "model.hidden": args.hidden,
            "model.heads": max(1, args.hidden // 64),
            "optim.backbone_lr": args.backbone_lr,
            "data.root": str(args.out / "data"),
            "data.collection": "films",
            "data.cache_dir": str(args.out / "cache"),
            "train.epochs": args.epochs,
            "train.protocol": "val",
        }
        config = load_config("diffusionret-msrvtt-pixels", changes)
        result = train(config, output=args.out / "run", device="cpu" if args.device == "cpu" else None)
    for line in result.history:
        print(f"epoch {line['epoch']}: loss {line['loss']['total']:.3f}")
    found, videos = result.report.text_to_video, corpus.counts["videos"]
    print(f"{videos['train']} films to learn from, {videos['test']} to test on: R@1 {found.r1:.1f}")
    model = load_pretrained(result.output / "best")  # the CLIP is saved with it
    print(f"{result.output / 'best'}: the model, {sum(p.numel() for p in model.parameters()):,} parameters")


if __name__ == "__main__":
    main()
