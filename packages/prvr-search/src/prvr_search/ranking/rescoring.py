"""The stages of a pipeline over an index: candidates of the first stage, re-scored by what the index stores of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from prvr.data.sampling import pad
from prvr.stages import EncodedSplit, Pipeline, ScoreMatrix, best_columns
from prvr.stages.pipelines import rescored
from prvr.types import Direction, Encoder, Texts, VideoEmbedding
from prvr_search.ranking.scores import best_windows, rank, video_scores
from prvr_search.ranking.snapshot import Snapshot
from prvr_search.vectors.rows import query_rows

_T2V: Direction = "t2v"
_VIDEOS = 256  # whose stored rows are read at a time


class Rescorer:
    """The stages of a pipeline over one state of an index, through the functions that evaluation uses.

    A stage reads the best window of each candidate, by the score of the first stage.

    Args:
        pipeline: the pipeline of the index.
        sets: the sets of rows that each stage reads as `clips`, `frames` and `registers`: their names in the index, and
            whether they are read as they were encoded.
        encode: gives the embedding of a query as each stage reads it.
        snapshot: the state of the index.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        sets: Sequence[Mapping[str, tuple[str, bool]]],
        encode: Callable[[str], Sequence[Any]],
        snapshot: Snapshot,
    ) -> None:
        self.pipeline, self.sets, self.encode, self.snapshot = pipeline, sets, encode, snapshot
        stages = pipeline.stages
        self._whole = [i for i, stage in enumerate(stages) if stage.top_k is None]
        self._best = [i for i, stage in enumerate(stages) if stage.top_k is not None]
        self._prepared = pipeline.prepare(_T2V, self._bank_scores) if len(snapshot.video_ids) else []

    def depth(self, k: int) -> int:
        """How many candidates the first stage has to find so that the k best after all stages are known."""
        return max([k, *(stage.top_k or k for stage in self.pipeline.stages)])

    def rank(
        self, query: str, text: Float32[np.ndarray, " e"], videos: Int64[np.ndarray, " v"] | None, k: int
    ) -> dict[int, float]:
        """The numbers and scores of the k best videos after all stages, best first.

        Args:
            query: the sentence.
            text: its unit vector, or two, for the first stage.
            videos: numbers of the videos that are scored, ascending; None = all.
            k: how many; all candidates where these are fewer.
        """
        if self._whole:
            numbers, scores, windows = best_windows(self.snapshot, text, videos)
        else:
            first = rank(self.snapshot, text[None], None if videos is None else [videos], self.depth(k))[0]
            numbers, _, windows = best_windows(self.snapshot, text, np.array(sorted(first), np.int64))
            scores = np.array([first[number] for number in numbers.tolist()], np.float32)
        if not len(numbers):
            return {}
        texts = self.encode(query)
        row = torch.from_numpy(scores)[None]
        with torch.inference_mode():
            if self._whole:
                row = rescored(self._bound(self._whole, texts, numbers, windows), row, slice(0, 1))
            depth = min(self.depth(k), len(numbers))
            chosen = best_columns(row, depth)[0].sort().values  # in the order of ids, as evaluation has its gallery
            row = row[:, chosen]
            numbers = numbers[chosen.numpy()]
            windows = windows[chosen.numpy()]
            if self._best:
                row = rescored(self._bound(self._best, texts, numbers, windows), row, slice(0, 1))
            order = best_columns(row, min(k, depth))[0].tolist()
        return {int(numbers[i]): float(row[0, i]) for i in order}

    def _bound(self, which: Sequence[int], texts: Sequence[Any], numbers: np.ndarray, windows: np.ndarray) -> list[Any]:
        """Some stages with the functions that re-score these videos."""
        bound = []
        for i in which:
            stage = self.pipeline.stages[i]
            if _T2V not in stage.directions:
                continue
            gallery = _StoredVideos(self.snapshot, self.sets[i], windows)
            scorer: Encoder = self.pipeline.first if stage.encoder is None else stage.encoder
            ids = [self.snapshot.video_ids[number] for number in numbers.tolist()]
            encoded = EncodedSplit(texts[i], gallery, video_ids=ids)
            matrix = ScoreMatrix(scorer, encoded, indices=torch.from_numpy(numbers))
            bound.append((stage, stage.bind(_T2V, matrix, self._prepared[i])))
        return bound

    def _bank_scores(self, bank: Texts) -> Tensor:
        """Scores of the first stage of a bank of texts with all videos."""
        return torch.from_numpy(video_scores(self.snapshot, query_rows(bank), None))


class _StoredVideos(Sequence[VideoEmbedding]):
    """Some windows as parts of a gallery, read from the index when they are asked for."""

    def __init__(self, snapshot: Snapshot, sets: Mapping[str, tuple[str, bool]], windows: np.ndarray) -> None:
        self._snapshot, self._sets, self._windows = snapshot, sets, windows

    def __len__(self) -> int:
        return -(-len(self._windows) // _VIDEOS)

    def __getitem__(self, part: Any) -> Any:
        if not 0 <= part < len(self):
            raise IndexError(part)
        windows = self._windows[part * _VIDEOS : (part + 1) * _VIDEOS]
        clips = frames = mask = registers = None
        for kind, (name, raw) in self._sets.items():
            rows = [torch.from_numpy(np.array(array)) for array in self._snapshot.stored_rows(name, windows, raw=raw)]
            if kind == "clips":
                clips = torch.stack(rows)
            elif kind == "registers":
                registers = torch.stack(rows)
            else:
                frames, mask = pad(rows)
        return VideoEmbedding(clips, frames, mask, registers)

    def __iter__(self) -> Iterator[VideoEmbedding]:
        return (self[part] for part in range(len(self)))
