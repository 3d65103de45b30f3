"""Sentences without what all sentences have in common: what is subtracted, and that it is encoded once."""

import numpy as np
from search_files import QUERY, TOY

from prvr.encoders import open_featurizer
from prvr_search import open_model
from prvr_search.centre import SENTENCES, SHARE
from prvr_search.vectors import unit


def test_sentences_are_compared_without_their_mean() -> None:
    side = open_featurizer("toy")
    mean = np.mean([side.sentence(text) for text in SENTENCES], 0)
    expected = unit(np.stack([side.sentence(text) - SHARE * mean for text in (QUERY, "a cat")]))
    np.testing.assert_allclose(open_model("zero-shot", TOY).encode_texts([QUERY, "a cat"]), expected, atol=1e-6)
    plain = open_model("training-free", TOY).encode_texts([QUERY])[0]
    np.testing.assert_allclose(plain, side.sentence(QUERY), atol=1e-6)


def test_no_two_sentences_share_a_subject_an_action_or_a_place() -> None:
    assert len(SENTENCES) == 32
    assert len({" ".join(text.split()[:3]) for text in SENTENCES}) == 32
    assert len({" ".join(text.split()[-3:]) for text in SENTENCES}) == 32
