"""What the host has to know of a batch, counted before the batch leaves it, so that a step need not ask the device."""

import torch
from test_models import make_batch

from prvr.models.rows import Rows
from prvr.types import Counts


def test_rows_that_were_counted_are_those_that_are_found() -> None:
    mask = torch.rand(9, 11, generator=torch.Generator().manual_seed(0)) < 0.4
    found, counted = Rows.of(mask), Rows.of(mask, int(mask.sum()))
    for name in ("index", "place", "absent", "position"):
        assert torch.equal(getattr(found, name), getattr(counted, name))
    full = torch.ones(2, 3, dtype=torch.bool)
    assert Rows.of(full, 6).index.tolist() == Rows.of(full).index.tolist()


def test_a_batch_is_counted_when_it_leaves_the_host_and_its_parts_know_their_share() -> None:
    batch = make_batch([12, 5, 1])
    assert batch.counts is None
    assert batch.valid_frames is None
    moved = batch.to("meta")
    assert moved.counts is not None
    assert moved.counts == Counts.of(batch.frame_mask, batch.word_mask, batch.query_to_video)
    assert (moved.valid_frames, moved.valid_words) == (18, int(batch.word_mask.sum()))
    assert moved.padded(12, 9).counts == moved.counts
    for there, here in zip(moved.split(2), batch.split(2), strict=True):
        assert there.counts == Counts.of(here.frame_mask, here.word_mask, here.query_to_video)
        assert there.words.shape == here.words.shape
    mixed = Counts.of(batch.frame_mask, batch.word_mask, batch.query_to_video.flip(0))
    assert mixed.queries is None
    assert mixed.frames == moved.counts.frames
