"""Scores of videos without padding."""

import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pad_sequence

from prvr.scoring import max_scores, packed_max_scores


@given(
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=6),
    queries=st.integers(1, 4),
    dim=st.integers(1, 9),
    equal=st.booleans(),
    seed=st.integers(0, 999),
)
def test_packed_scores_are_those_of_padded_videos(
    lengths: list[int], queries: int, dim: int, equal: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    lengths = lengths[:1] * len(lengths) if equal else lengths
    text = torch.randn(queries, dim, generator=generator)
    videos = [torch.randn(n, dim, generator=generator) for n in lengths]
    tokens = pad_sequence(videos, batch_first=True)
    mask = torch.arange(tokens.shape[1]) < torch.tensor(lengths)[:, None]
    expected = max_scores(text, tokens, mask, dots=False)[0]
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    torch.testing.assert_close(packed_max_scores(text, torch.cat(videos), offsets), expected)
    unit = F.normalize(torch.cat(videos), dim=-1)
    torch.testing.assert_close(packed_max_scores(text, unit, offsets, unit=True), expected)
