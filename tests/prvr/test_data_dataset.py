"""Training batches: the released collation, orders by (seed, epoch), limits on captions, hold-out."""

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

from prvr.data import (
    Corpus,
    DataError,
    PackedSplit,
    VideoDataset,
    VideoItem,
    collate,
    holdout,
    make_loader,
    open_corpus,
    pack,
)
from prvr.types import Batch

GOLDEN = Path(__file__).parent.parent / "fixtures" / "prvr_sampling.npz"


@pytest.fixture(scope="module")
def corpus(embedded_root: Path) -> Corpus:
    return open_corpus(embedded_root, "embedded-tiny")


@pytest.fixture(scope="module")
def packed(corpus: Corpus, embedded_cache: Path) -> PackedSplit:
    return pack(corpus, "test", cache_dir=embedded_cache / "packed")


def same(a: Batch, b: Batch) -> bool:
    return a.video_ids == b.video_ids and a.query_ids == b.query_ids and torch.equal(a.frames, b.frames)


def test_collation_by_length_agrees_with_the_authors_numbers() -> None:
    items = []
    with np.load(GOLDEN) as golden:
        for i in range(5):
            captions = [k for k in golden.files if k.startswith(f"collate/in{i}/cap")]
            words = tuple(torch.from_numpy(golden[f"collate/in{i}/cap{k}"]) for k in range(len(captions)))
            clips, frames = (torch.from_numpy(golden[f"collate/in{i}/{name}"]) for name in ("clip", "frames"))
            own = frozenset({str(i)})
            items.append(VideoItem(str(i), clips[0], frames, words, tuple(captions), (own,) * len(words)))
        expected = {k.removeprefix("collate/out/"): torch.from_numpy(golden[k]) for k in golden.files if "/out/" in k}
        order = [str(i) for i in golden["collate/video_order"]]
    batch = collate(items, sort="length")
    assert list(batch.video_ids) == order
    assert batch.relevant is None
    assert batch.frames.dtype == torch.float32
    torch.testing.assert_close(batch.clips, expected["clip_video_features"], rtol=0, atol=0)
    torch.testing.assert_close(batch.frames, expected["frame_video_features"], rtol=0, atol=0)
    torch.testing.assert_close(batch.frame_mask.float(), expected["videos_mask"], rtol=0, atol=0)
    torch.testing.assert_close(batch.words, expected["text_feat"], rtol=0, atol=0)
    torch.testing.assert_close(batch.word_mask.float(), expected["text_mask"], rtol=0, atol=0)
    torch.testing.assert_close(batch.query_to_video, expected["text_labels"], rtol=0, atol=0)
    assert list(collate(items).video_ids) == list("01234")


def test_an_item_is_a_video_with_all_its_captions(packed: PackedSplit) -> None:
    dataset = VideoDataset(packed)
    assert len(dataset) == 20
    item = dataset[3]
    assert item.query_ids == tuple(packed.query_ids[q] for q in packed.queries_of(3))
    torch.testing.assert_close(item.words[2], packed.query(int(packed.queries_of(3)[2])))
    with pytest.raises(IndexError):
        dataset[20]


def test_a_batch_knows_every_matching_video_in_it(packed: PackedSplit) -> None:
    dataset = VideoDataset(packed)
    batch = collate([dataset[i] for i in range(20)])
    assert batch.query_to_video.tolist() == sorted(packed.query_to_video.tolist())
    order = [packed.query_ids.index(q) for q in batch.query_ids]
    np.testing.assert_array_equal(batch.positives.numpy(), packed.relevant_matrix[order])
    assert batch.relevant is not None
    assert collate([dataset[0]]).relevant is None
    assert collate([dataset[0]]).clips.shape == (1, 32, 512)


def test_a_batch_that_is_read_at_once_is_what_collate_makes_of_its_items(packed: PackedSplit) -> None:
    for captions in (None, 2):
        dataset = VideoDataset(packed, captions)
        for numbers in ([(0, 0)], [(7, 1), (3, 1), (19, 1)], [(i, 2) for i in range(20)]):
            at_once, together = dataset.batch(numbers), collate([dataset[item] for item in numbers])
            for field in fields(Batch):
                ours, theirs = getattr(at_once, field.name), getattr(together, field.name)
                same = torch.equal(ours, theirs) if isinstance(theirs, torch.Tensor) else ours == theirs
                assert same, field.name


def test_the_order_depends_on_seed_and_epoch_alone(packed: PackedSplit) -> None:
    def orders(seed: int) -> list[tuple[str, ...]]:
        loader = make_loader(packed, 8, seed=seed)
        out = []
        for epoch in (0, 1):
            loader.set_epoch(epoch)
            out.append(tuple(v for batch in loader for v in batch.video_ids))
        return out

    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = orders(0)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert orders(0) == first
    assert len({*first, *orders(5)}) == 4
    assert all(sorted(order) == sorted(packed.video_ids) for order in first)
    plain = make_loader(packed, 8, shuffle=False)
    assert [len(batch.video_ids) for batch in plain] == [8, 8, 4]
    assert tuple(v for batch in plain for v in batch.video_ids) == packed.video_ids
    assert len(make_loader(packed, 8, drop_last=True)) == 2


def test_spawned_workers_give_the_same_batches(packed: PackedSplit) -> None:
    part = packed.subset(range(6))
    loaders = [make_loader(part, 4, seed=3, captions_per_video=2, workers=workers) for workers in (0, 1)]
    for loader in loaders:
        loader.set_epoch(7)
    assert all(same(a, b) for a, b in zip(*loaders, strict=True))


def test_captions_are_drawn_anew_each_epoch(packed: PackedSplit) -> None:
    dataset = VideoDataset(packed, captions_per_video=2, seed=1)
    drawn = [[dataset[i, epoch].query_ids for i in range(20)] for epoch in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(len(ids) == 2 for ids in drawn[0])
    assert len(VideoDataset(packed, captions_per_video=99)[0].query_ids) == 5
    with pytest.raises(ValueError, match="at least 1"):
        VideoDataset(packed, captions_per_video=0)


def test_holdout_follows_the_id_and_parts_the_videos(corpus: Corpus, packed: PackedSplit, tmp_path: Path) -> None:
    whole = pack(corpus, "train", cache_dir=tmp_path / "cache")
    train, held = holdout(whole, 0.3)
    assert sorted(train.video_ids + held.video_ids) == sorted(whole.video_ids)
    assert len(train.query_ids) + len(held.query_ids) == len(whole.query_ids)
    assert 8 <= len(held) <= 28
    part = whole.subset(range(0, 60, 2))
    assert set(holdout(part, 0.3)[1].video_ids) == set(held.video_ids) & set(part.video_ids)
    assert set(holdout(whole, 0.2)[1].video_ids) <= set(held.video_ids)
    for fraction in (1e-9, 1 - 1e-9):
        assert min(map(len, holdout(whole, fraction))) == 1
    with pytest.raises(DataError, match="at least two"):
        holdout(packed.subset([0]))
    with pytest.raises(ValueError, match="fraction"):
        holdout(whole, 1.0)
