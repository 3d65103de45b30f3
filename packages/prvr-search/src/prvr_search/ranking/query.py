"""What is searched for: sentences, a picture, a moment of a video, what is not wanted."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from prvr.errors import InputError
from prvr.reading import is_unicode, printable, short
from prvr_search.films.picture import read_picture
from prvr_search.ranking.results import clock, clock_span
from prvr_search.ranking.snapshot import Snapshot
from prvr_search.vectors.model import EncodesPictures, Queries, Vector, unit

_ROUNDING = 1e-6  # rows
WITHOUT = 0.5
"""Weight of the excluded part of a query; the wanted part has weight 1."""


class Passage(NamedTuple):
    """A moment or a stretch of a video of the index.

    Args:
        video: the id of the video.
        start: in seconds from its start.
        end: in seconds; None: the moment `start` alone.
    """

    video: str
    start: float
    end: float | None = None

    def __str__(self) -> str:
        return f"{printable(self.video)}@{clock(self.start) if self.end is None else clock_span(self.start, self.end)}"


@dataclass(frozen=True, eq=False)
class Query:
    """What is searched for, if it is more than one sentence. Each part becomes a unit vector of the space of the index.

    With the unit vector `p` of the sum of all parts that are wanted and that of all that are not, `n`, videos are
    compared with `p - 0.5 n`. So a moment that shows what is not wanted falls behind equal ones that do not; videos
    that show it elsewhere stay.

    Args:
        texts: one sentence, or several that are to be true at once.
        without: one sentence, or several, about what is not wanted.
        image: a picture: its file, the content of the file, or its pixels, `(h, w, 3)` from 0 to 255. The index must be
            one of a joint encoder alone (`zero-shot` or `training-free`).
        like: a moment of a video of the index: a `Passage`, or a tuple of its fields. This video and its copies are
            excluded.
        then: a sentence about what follows: all else is to be shown before it, and one moment of each video holds both.
        within: seconds from the start of what comes first to that of what follows, at most.
        subtitles: words of the subtitles. Without a sentence, picture or moment, only lines are searched; with them,
            both rankings are joined. Of a query that is one sentence, its words are searched for in lines as well.

    Raises:
        ValueError: nothing is wanted, a text is not Unicode, a time is not from 0, or the end is not after the start.

    Examples:
        >>> str(Query("a dog", without="snow"))
        'a dog, without snow'
        >>> str(Query(like=("films/beach.mp4", 750.0, 765.0)))
        'like films/beach.mp4@12:30-12:45'
    """

    texts: str | Sequence[str] = ()
    without: str | Sequence[str] = ()
    image: Path | str | bytes | np.ndarray | None = None
    like: tuple[Any, ...] | None = None
    subtitles: str = ""
    then: str = ""
    within: float = 30.0

    def __post_init__(self) -> None:
        for name in ("texts", "without"):
            texts = getattr(self, name)
            object.__setattr__(self, name, (texts,) if isinstance(texts, str) else tuple(texts))
        for text in (*self.texts, *self.without, self.subtitles, self.then):
            if not is_unicode(text):
                raise InputError(f"Query: {short(text)}: expected text, got bytes that are not UTF-8")
        if self.like is not None:
            _, start, end = like = Passage(*self.like)
            if not 0 <= start < np.inf or (end is not None and not start < end < np.inf):
                raise InputError(f"Query: like={tuple(like)}; expected a time from 0, and an end after the start")
            object.__setattr__(self, "like", like)
        if not self.shows and not self.subtitles.strip():
            raise InputError(
                "Query: nothing to search for. Pass a sentence, a picture, a moment of a video, or `subtitles`."
            )
        if (self.without or self.then) and not self.shows:
            raise InputError("Query: `without` and `then` need a sentence, a picture or a moment beside them.")
        if not self.within > 0:
            raise InputError(f"Query: within={self.within}; expected a positive number of seconds")

    @property
    def shows(self) -> bool:
        """Whether it says what is to be seen, so that videos are scored."""
        return bool(self.texts) or self.image is not None or self.like is not None

    @property
    def sentence(self) -> str | None:
        """The sentence, if there is one and nothing else."""
        others = self.without, self.subtitles, self.then, self.image is not None, self.like
        return self.texts[0] if len(self.texts) == 1 and not any(others) else None

    @property
    def passage(self) -> Passage | None:
        """The moment that is asked for."""
        return self.like if isinstance(self.like, Passage) else None

    def __str__(self) -> str:
        """The query in words, for tables and titles."""
        name = Path(self.image).name if isinstance(self.image, str | Path) else "a picture"
        parts = [
            *self.texts,
            "" if self.image is None else f"like {printable(name)}",
            "" if self.passage is None else f"like {self.passage}",
            self.subtitles and f"subtitles: {self.subtitles}",
        ]
        others = *(f"without {text}" for text in self.without), self.then and f"then {self.then}"
        return ", ".join(filter(None, (" + ".join(filter(None, parts)), *others)))


def query_vector(query: Query, snapshot: Snapshot) -> Vector:
    """The unit vector that videos are compared with, or the two in one row that their clips and their frames are.

    Args:
        query: what is searched for.
        snapshot: the state of the index.

    Raises:
        ValueError: the model cannot read a sentence or a picture, the picture is none, or there is no such moment.
    """
    model, dim = snapshot.model, snapshot.model.dim
    vectors = [*model.encode_texts(query.texts)] if query.texts else []
    if query.image is not None:
        if not isinstance(model, EncodesPictures):
            raise InputError(
                f"{model.identity.name}: this index was made with a trained model, which reads sentences and no "
                "pictures. Search by picture in an index of the encoder alone: for a folder of videos, leave out "
                "--model; or make an index with --model zero-shot."
            )
        vectors.append(model.encode_picture(read_picture(query.image)))
    if query.passage is not None:
        vectors.append(passage_vector(snapshot, query.passage))
    if wrong := {len(vector) for vector in vectors} - {dim, 2 * dim}:
        raise InputError(
            f"{model.identity.name}: gives {wrong.pop()} numbers for a query; expected {dim}, the width of the vectors "
            f"of this index, or {2 * dim} for one vector for clips and one for frames"
        )
    if len(vectors) == 1 and not query.without:
        return vectors[0]

    def direction(vectors: list[Vector]) -> Queries:
        return unit(same_width(vectors).sum(0).reshape(-1, dim))

    target = direction(vectors)
    if query.without:
        target = unit(target - WITHOUT * direction([*model.encode_texts(query.without)]))
    return target.ravel()


def same_width(queries: Sequence[Vector]) -> Queries:
    """Queries of one width: where some have two vectors, the only one of another stands twice.

    Examples:
        >>> same_width([np.array([1, 2], np.float32), np.array([3, 4, 5, 6], np.float32)]).tolist()
        [[1.0, 2.0, 1.0, 2.0], [3.0, 4.0, 5.0, 6.0]]
    """
    width = max(map(len, queries))
    return np.stack([np.tile(query, width // len(query)) for query in queries])


def passage_vector(snapshot: Snapshot, passage: Passage) -> Vector:
    """The mean direction of what the model makes of a moment, as if it were a video: of its frames, or of its clips.

    Args:
        snapshot: the state of the index.
        passage: where.

    Raises:
        ValueError: there is no such video, or it is shorter.
        DataError: its features cannot be read.
    """
    if passage.video not in snapshot.numbers or snapshot.features is None:
        close = ", ".join(map(printable, get_close_matches(passage.video, snapshot.numbers, n=3)))
        raise InputError(
            f"{printable(passage.video)}: no such video in this index{f'; did you mean {close}?' if close else '.'} "
            "Pass the name as the results show it, with its folder."
        )
    duration, model = snapshot.features.duration(passage.video), snapshot.model
    if passage.start > duration:
        raise InputError(f"{printable(str(passage))}: the video ends at {clock(duration)}. Pass an earlier time.")
    rows, rate = snapshot.features.read(passage.video), snapshot.features.rate
    first = min(int(passage.start * rate + _ROUNDING), len(rows) - 1)  # the very end belongs to the last row
    part = rows[first : max(first + 1, ceil((passage.end or 0.0) * rate - _ROUNDING))]
    _, windows = model.encode_video(part, np.array([[0, len(part)]]))
    parts = [unit(x.frames[: x.steps] if model.frame_weight and x.steps else x.clips) for x in windows]
    return unit(np.concatenate(parts).sum(0)[None])[0]
