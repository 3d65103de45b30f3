"""A sentence of your own against a model trained on the toy corpus: which video, and where in it.

    prvr demo
    python examples/own_sentence.py runs/demo "a small blue circle rises"

Any words work, but words that were not in training are read by their letters alone. Without arguments, the script first
trains a model for two epochs on 60 videos, which is too few to find much.
"""

import sys
import tempfile
from pathlib import Path

import torch

import prvr
from prvr.scoring import best_moment, clip_scores
from prvr.toy import load_encoder
from prvr.toy.encoder import split_words
from prvr.training import open_split, train
from prvr.types import query_vectors

SENTENCE = "a small blue circle rises"
QUICK = {
    "data.collection": "toy-tiny",
    "data.captions_per_video": 1,
    "train.batch_size": 12,
    "train.epochs": 2,
}


def answer(run: Path, sentence: str) -> None:
    try:
        words = torch.from_numpy(load_encoder().encode_words(sentence))[None]  # (1, w, 48)
    except ValueError as error:  # no word, or too many
        sys.exit(f"error: {error}")
    config = prvr.load_config(run / "config.yaml")
    with open_split(config, "train") as split:
        known = {word for caption in split.captions for word in split_words(caption)}
    new = [word for word in dict.fromkeys(split_words(sentence)) if word not in known]
    print(f"{sentence!r}:")
    if new:
        print(f"  no training caption has {', '.join(new)}: read by their letters, they mean little")

    retriever = prvr.Retriever.from_pretrained(run / "best").eval().requires_grad_(False)
    text = retriever.encode_text(words, torch.ones(words.shape[:2], dtype=torch.bool))
    with open_split(config, "test") as split:
        clips, frames, frame_mask, _ = next(iter(split.video_batches(len(split))))
        videos = retriever.encode_video(clips, frames, frame_mask)
        scores = retriever.score(text, videos).total[0]
        for video in scores.topk(3).indices.tolist():
            where = clip_scores(query_vectors(text), videos.clips[video : video + 1])[0, 0]
            start, end = best_moment(where, float(split.durations[video]))
            print(f"  {split.video_ids[video]}  {start:5.1f} - {end:5.1f} s  score {scores[video].item():.3f}")


def main() -> None:
    if len(sys.argv) == 3:
        answer(Path(sys.argv[1]), sys.argv[2])
    elif len(sys.argv) == 1:
        with tempfile.TemporaryDirectory() as folder:
            train(prvr.load_config("best-toy", QUICK), output=folder)
            answer(Path(folder), SENTENCE)
    else:
        sys.exit("usage: python examples/own_sentence.py RUN SENTENCE")


if __name__ == "__main__":
    main()
