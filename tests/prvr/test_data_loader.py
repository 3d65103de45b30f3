"""Training batches: the released collation, orders by (seed, epoch), limits on captions, hold-out."""

from pathlib import Path

import numpy as np
import pytest
import torch

from prvr.data import Corpus, DataError, PackedSplit, VideoLoader, holdout, pack
from prvr.data.packed_files import PackedWriter

GOLDEN = Path(__file__).parent.parent / "fixtures" / "prvr_sampling.npz"


def test_a_batch_agrees_with_the_authors_numbers(tmp_path: Path) -> None:
    with np.load(GOLDEN) as golden:
        given = {key.removeprefix("collate/in"): golden[key] for key in golden.files if key.startswith("collate/in")}
        expected = {k.removeprefix("collate/out/"): torch.from_numpy(golden[k]) for k in golden.files if "/out/" in k}
        order = golden["collate/video_order"].tolist()  # theirs is by length, longest first
    captions = [sorted(key for key in given if key.startswith(f"{i}/cap")) for i in range(5)]
    owner = np.repeat(np.arange(5), [len(some) for some in captions])
    with PackedWriter(tmp_path, "float32") as writer:
        for i in range(5):
            writer.append("clips", given[f"{i}/clip"][0])
            writer.append("frames", given[f"{i}/frames"])
            for key in captions[i]:
                writer.append("words", given[key])
        lengths = [len(given[f"{i}/frames"]) for i in range(5)], [len(given[key]) for some in captions for key in some]
        index = dict(zip(("frame_offsets", "word_offsets"), (np.cumsum([0, *some]) for some in lengths), strict=True))
        index |= {"query_to_video": owner, "moments": np.full((len(owner), 3), np.nan)}
        keys = [key for some in captions for key in some]
        text = {"video_ids": list("01234"), "query_ids": keys, "captions": keys}
        text["relevant"] = [[int(video)] for video in owner]
        about = {"collection": "golden", "split": "train", "settings": {"clips": len(given["0/clip"][0])}}
        writer.finish(index, text, about)
    with PackedSplit.open(tmp_path) as packed:
        batch = VideoLoader(packed, 5).batch([(video, 0) for video in order])
    assert batch.video_ids == tuple(map(str, order))
    assert batch.relevant is None
    for ours, theirs in (
        (batch.clips, "clip_video_features"),
        (batch.frames, "frame_video_features"),
        (batch.frame_mask.float(), "videos_mask"),
        (batch.words, "text_feat"),
        (batch.word_mask.float(), "text_mask"),
        (batch.query_to_video, "text_labels"),
    ):
        torch.testing.assert_close(ours, expected[theirs], rtol=0, atol=0)


def test_a_batch_knows_every_matching_video_in_it(packed: PackedSplit) -> None:
    loader = VideoLoader(packed, 20)
    batch = loader.batch([(i, 0) for i in range(20)])
    assert batch.query_to_video.tolist() == sorted(packed.query_to_video.tolist())
    order = [packed.query_ids.index(q) for q in batch.query_ids]
    np.testing.assert_array_equal(batch.labels.positives.numpy(), packed.relevant_matrix[order])
    assert loader.batch([(0, 0)]).relevant is None


def test_order_and_captions_depend_on_seed_and_epoch_alone(packed: PackedSplit) -> None:
    def orders(seed: int) -> list[tuple[str, ...]]:
        loader = VideoLoader(packed, 8, seed=seed)
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
    plain = VideoLoader(packed, 8, shuffle=False)
    assert [len(batch.video_ids) for batch in plain] == [8, 8, 4]
    assert tuple(v for batch in plain for v in batch.video_ids) == packed.video_ids
    assert len(VideoLoader(packed, 8, drop_last=True)) == 2
    loader = VideoLoader(packed, 20, captions_per_video=2, seed=1)
    drawn = [[loader.queries_of(i, epoch).tolist() for i in range(20)] for epoch in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(len(ids) == 2 for ids in drawn[0])
    assert len(VideoLoader(packed, 20, captions_per_video=99).queries_of(0, 0)) == 5


def test_holdout_follows_the_id_and_parts_the_videos(corpus: Corpus, packed: PackedSplit, tmp_path: Path) -> None:
    whole = pack(corpus, "train", cache_dir=tmp_path / "cache")
    train, held = holdout(whole, 0.3)
    assert sorted(train.video_ids + held.video_ids) == sorted(whole.video_ids)
    assert len(train.query_ids) + len(held.query_ids) == len(whole.query_ids)
    assert 8 <= len(held) <= 28
    part = whole.subset([*range(40, 60), *range(0, 20, 3)])
    assert set(holdout(part, 0.3)[1].video_ids) == set(held.video_ids) & set(part.video_ids)
    assert set(holdout(whole, 0.2)[1].video_ids) <= set(held.video_ids)
    for fraction in (1e-9, 1 - 1e-9):
        assert min(map(len, holdout(whole, fraction))) == 1
    with pytest.raises(DataError, match="at least two"):
        holdout(packed.subset([0]))
