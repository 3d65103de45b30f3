"""A sentence of your own against a model trained on the embedded corpus: which video, and where in it.

    prvr demo
    python examples/own_sentence.py runs/demo "a small red circle rises"

Without arguments it first trains a model for two epochs, too few to find much.
"""

import sys
import tempfile
from pathlib import Path

import torch

import prvr
from prvr.data import embed_text
from prvr.scoring import best_moment, clip_scores
from prvr.training import open_split, train


def answer(run: Path, sentence: str) -> None:
    retriever = prvr.Retriever.from_pretrained(run / "best").eval().requires_grad_(False)
    words = torch.from_numpy(embed_text(sentence))[None]  # (1, w, 64)
    text = retriever.encode_text(words, torch.ones(words.shape[:2], dtype=torch.bool))
    with open_split(prvr.load_config(run / "config.yaml"), "test") as split:
        clips, frames, frame_mask, _ = next(iter(split.video_batches(len(split))))
        videos = retriever.encode_video(clips, frames, frame_mask)
        scores = retriever.score(text, videos).total[0]
        print(f"{sentence!r}:")
        for video in scores.topk(3).indices.tolist():
            own = videos.frames[video : video + 1, : int(split.frame_counts[video])]
            where = clip_scores(text, own)[0, 0]
            start, end = best_moment(where, float(split.durations[video]))
            print(f"  {split.video_ids[video]}  {start:5.1f} - {end:5.1f} s  score {scores[video].item():.3f}")


if len(sys.argv) == 3:
    answer(Path(sys.argv[1]), sys.argv[2])
else:
    with tempfile.TemporaryDirectory() as folder:
        train(prvr.load_config("hybrid-embedded", {"train.epochs": 2, "data.captions_per_video": 1}), output=folder)
        answer(Path(folder), "a small red circle rises")
