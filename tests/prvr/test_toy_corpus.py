"""The toy corpus on disk: in the public layout, reproducible, whole or not at all."""

from pathlib import Path

import numpy as np

from prvr.corpora.corpus_encoders import DRAWN_COLLECTIONS
from prvr.data import Corpus, pack
from prvr.toy import load_encoder, read_toy_scenes, render
from prvr.toy.encoder import with_motion
from prvr.toy.near_misses import relevance
from prvr.toy.scenes import SPLITS


def test_sizes_and_splits(corpus: Corpus, toy_cache: Path) -> None:
    assert [*DRAWN_COLLECTIONS.names] == [f"toy-{size}" for size in SPLITS]
    for split, count in SPLITS["tiny"].items():
        with pack(corpus, split, cache_dir=toy_cache / "packed") as packed:
            assert len(packed) == count
            assert len(packed.query_ids) == 5 * count
            assert (packed.feature_dim, packed.query_dim) == (512, 48)
            np.testing.assert_array_equal(packed.frame_counts, np.ceil(packed.durations * 2).clip(max=128))
            assert all("seen" in tags or "unseen" in tags for tags in packed.tags)


def test_files_say_what_the_scenes_say(corpus: Corpus) -> None:
    scenes = read_toy_scenes(corpus)
    content = corpus.split("test")
    assert [(c.id, c.text) for c in content.captions] == [(s.id, s.text) for s in scenes["test"].sentences]
    true = relevance(scenes["test"].sentences, scenes["test"].videos)
    encoder, video = load_encoder(), scenes["test"].videos[3]
    with corpus.open_features() as features, corpus.open_queries() as queries:
        expected = with_motion(encoder.encode_frames(render(video)))
        np.testing.assert_allclose(features.read(video.id), expected, atol=1e-5)
        for sentence in scenes["test"].sentences:
            caption = next(c for c in content.captions if c.id == sentence.id)
            assert content.relevant(caption) == set(true[sentence.id])
            assert content.tags[sentence.id] == set(sentence.tags)
            moment = content.moments[sentence.id]
            assert (moment.start, moment.end) == (sentence.start, sentence.end)
            np.testing.assert_allclose(queries.read(sentence.id), encoder.encode_words(sentence.text), atol=1e-6)
