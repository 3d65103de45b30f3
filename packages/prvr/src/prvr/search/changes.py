"""A store of features into an index, a few videos at a time."""

from collections.abc import Callable

from prvr.search.embedding import embed
from prvr.search.hits import IndexReport
from prvr.search.model import SearchModel
from prvr.search.segments import VideoVectors
from prvr.search.writing import IndexWriter
from prvr.video import VideoEntry, VideoStore

__all__ = ["bring_in"]

VIDEOS, BYTES = 64, 64 * 2**20
"""A segment is written when so many videos, or so many bytes of vectors, are waiting: what a kill may lose."""


def bring_in(
    writer: IndexWriter,
    model: SearchModel,
    store: VideoStore,
    follow: bool,
    progress: Callable[[str, int, int], None] | None = None,
) -> IndexReport:
    """Adds what is new; with `follow` also embeds again what has changed and takes out what the store has not.

    Which videos are written together depends on nothing but what is left to do, so that a run that was killed, and run
    again, ends like one that was not.

    Args:
        writer: of the index.
        model: of the index.
        store: of features of the encoder of the index.
        follow: see above.
        progress: called before each video that is encoded, and when all is done.
    """
    known = writer.entries
    fresh = [video for video in store.video_ids if video not in known]
    other = [v for v in store.video_ids if v in known and _differs(known[v], store.entries[v])]
    gone = tuple(video for video in known if video not in store.entries) if follow else ()
    if gone:
        writer.drop(gone)
    todo = sorted([*fresh, *(other if follow else ())])
    waiting: list[VideoVectors] = []
    next_key = writer.manifest.next_key
    for done, video in enumerate(todo):
        if progress is not None:
            progress(video, done, len(todo))
        waiting.append(embed(model, writer.manifest, store.entries[video], store.read(video), next_key))
        next_key = int(waiting[-1].keys[-1]) + 1
        if len(waiting) >= VIDEOS or sum(one.bytes for one in waiting) >= BYTES:
            writer.put(waiting)
            waiting = []
    if waiting:
        writer.put(waiting)
    if progress is not None and todo:
        progress(todo[-1], len(todo), len(todo))
    left = {*fresh, *other}
    return IndexReport(
        added=tuple(fresh),
        changed=tuple(other) if follow else (),
        removed=gone,
        unchanged=tuple(video for video in store.video_ids if video not in left),
        stale=() if follow else tuple(other),
    )


def _differs(known: VideoEntry, now: VideoEntry) -> bool:
    """Whether the file has changed, or lies elsewhere."""
    return (known.sha256, known.path, known.frames) != (now.sha256, now.path, now.frames)
