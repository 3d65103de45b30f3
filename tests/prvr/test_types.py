"""Batches are validated where they are made."""

import dataclasses

import pytest
import torch
from test_models import make_batch

import prvr
from prvr import VideoEmbedding
from prvr.scoring import max_scores


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
        ({"query_to_video": torch.tensor([0, 0, 2])}, r"query_to_video must lie in \[0, 2\), got 0\.\.2"),
        ({"relevant": torch.ones(3, 3, dtype=torch.bool)}, r"Batch\.relevant has shape \(3, 3\), expected \(3, 2\)"),
        (
            {"word_mask": torch.arange(15).reshape(3, 5) < 10, "query_ids": ("a", "b", "c#enc#1")},
            "word_mask: row 2 .'c#enc#1'. has no valid entry",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_inconsistent_batches_are_refused(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _batch(**change)


def test_padding_of_joined_embeddings_never_counts() -> None:
    torch.manual_seed(0)
    short, long = VideoEmbedding(frames=-torch.ones(1, 3, 2)), VideoEmbedding(frames=-torch.ones(2, 5, 2))
    masked = VideoEmbedding(frames=-torch.ones(1, 4, 2), frame_mask=torch.tensor([[True, True, False, False]]))
    joined = VideoEmbedding.cat([short, masked, long])
    assert joined.frame_mask is not None
    assert joined.frame_mask.sum(1).tolist() == [3, 2, 5, 5]
    scores, _ = max_scores(torch.ones(1, 2), joined.frames, joined.frame_mask)
    torch.testing.assert_close(scores, torch.full((1, 4), -1.0))  # a row of padding would score 0
    assert VideoEmbedding.cat([long, long]).frame_mask is None  # nothing was padded


@pytest.mark.parametrize("size", [1, 2, 9])
def test_parts_of_a_batch_are_the_batch(size: int) -> None:
    batch = make_batch([5, 2, 7, 3, 4])
    names = {"video_ids": tuple("abcde"), "query_ids": tuple("qrstuvwxyz"), "relevant": torch.rand(10, 5) < 0.5}
    batch = dataclasses.replace(batch, **names)
    parts = batch.split(size)
    assert [len(part.clips) for part in parts] == [min(size, 5 - first) for first in range(0, 5, size)]
    for name in ("clips", "frames", "frame_mask", "words", "word_mask"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(batch, name))
    for name in ("video_ids", "query_ids"):
        assert sum((getattr(part, name) for part in parts), ()) == getattr(batch, name)
    first = 0
    for part in parts:
        rows = (batch.query_to_video >= first) & (batch.query_to_video < first + len(part.clips))
        assert torch.equal(part.query_to_video + first, batch.query_to_video[rows])
        assert torch.equal(part.relevant, batch.relevant[rows][:, first : first + len(part.clips)])
        first += len(part.clips)


def test_embeddings_of_different_models_are_not_joined() -> None:
    clips, frames = VideoEmbedding(clips=torch.ones(1, 3, 2)), VideoEmbedding(frames=torch.ones(1, 3, 2))
    for other in (frames, VideoEmbedding(clips=torch.ones(1, 4, 2))):
        with pytest.raises(ValueError, match="videos differ in their clips"):
            VideoEmbedding.cat([clips, other])
