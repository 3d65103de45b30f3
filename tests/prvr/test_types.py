"""Batches are validated where they are made."""

import dataclasses

import pytest
import torch

import prvr
from prvr import VideoEmbedding


def _batch(**changes) -> prvr.Batch:
    values = {
        "clips": torch.zeros(2, 4, 3),
        "frames": torch.zeros(2, 6, 3),
        "frame_mask": torch.ones(2, 6, dtype=torch.bool),
        "words": torch.zeros(3, 5, 7),
        "word_mask": torch.ones(3, 5, dtype=torch.bool),
        "query_to_video": torch.tensor([0, 0, 1]),
    }
    return prvr.Batch(**(values | changes))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"frame_mask": torch.ones(2, 5, dtype=torch.bool)}, r"frame_mask has shape \(2, 5\), its features \(2, 6\)"),
        ({"query_to_video": torch.tensor([0, 0, 2])}, r"query_to_video must lie in \[0, 2\), got 0\.\.2"),
        ({"query_to_video": torch.tensor([0, -1, 1])}, r"got -1\.\.1"),
        ({"words": torch.zeros(2, 5, 7)}, "word_mask has shape|query_to_video has shape"),
        ({"frames": torch.zeros(2, 6, 4)}, "clips have 3 features, frames 4"),
        ({"relevant": torch.ones(3, 3, dtype=torch.bool)}, r"Batch\.relevant is .*expected torch\.bool \(3, 2\)"),
        ({"frame_mask": torch.zeros(2, 6, dtype=torch.bool)}, "frame_mask has no valid entry for video 0"),
        (
            {"word_mask": torch.arange(15).reshape(3, 5) < 10, "query_ids": ("a", "b", "c#enc#1")},
            "word_mask has no valid entry for query 2 .'c#enc#1'.",
        ),
        (
            {
                "clips": torch.zeros(0, 4, 3),
                "frames": torch.zeros(0, 6, 3),
                "frame_mask": torch.ones(0, 6, dtype=torch.bool),
            },
            "an empty batch: 0 videos",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_inconsistent_batches_are_refused(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _batch(**change)


def test_positives_hold_the_own_video_and_the_relevant_ones() -> None:
    relevant = torch.tensor([[False, True], [False, False], [False, False]])
    assert _batch(relevant=relevant).positives.tolist() == [[True, True], [True, False], [False, True]]
    assert _batch().positives.tolist() == [[True, False], [True, False], [False, True]]


def test_to_moves_only_what_floats() -> None:
    batch = _batch(video_ids=("a", "b")).to(dtype=torch.float64)
    assert batch.clips.dtype == batch.words.dtype == torch.float64
    assert batch.frame_mask.dtype == torch.bool
    assert batch.query_to_video.dtype == torch.int64
    assert batch.video_ids == ("a", "b")
    with pytest.raises(dataclasses.FrozenInstanceError):
        batch.clips = batch.frames  # type: ignore[misc]


def test_embeddings_of_different_lengths_are_joined() -> None:
    short = VideoEmbedding(torch.ones(1, 4, 2), torch.ones(1, 3, 2), torch.ones(1, 3, dtype=torch.bool))
    long = VideoEmbedding(torch.ones(2, 4, 2), torch.ones(2, 5, 2), torch.ones(2, 5, dtype=torch.bool))
    joined = VideoEmbedding.cat([short, long])
    assert len(joined) == 3
    assert joined.frames is not None
    assert joined.frames.shape == (3, 5, 2)
    assert joined.frame_mask is not None
    assert joined.frame_mask[0].tolist() == [True] * 3 + [False] * 2
    assert len(joined[1:]) == 2
