"""The teacher of DL-DKD: a joint space, such as CLIP's, in which captions are compared with frames."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from prvr.corpora.corpus_encoders import corpus_encoders
from prvr.data import Corpus, PackedSplit, open_corpus, segment_mean
from prvr.errors import DataError
from prvr.scoring import unit_rows
from prvr.stages.joint_space import JointSplit


def frame_cosines(teacher: str | None, split: PackedSplit, length: int, keep_last: bool = True) -> Float[Tensor, "q l"]:
    """The cosine of each query with each frame of its video in a joint space.

    Frames of the joint space are sampled to as many as the split has of the video.

    Args:
        teacher: the folder `ROOT/COLLECTION` of a corpus that has the same videos and captions: with a joint space, or
            with one vector for each caption, as wide as frames, as `prvr convert features` makes it. None: the corpus
            of the split, which has a joint space.
        split: what is learned from.
        length: l, the most frames of any video.
        keep_last: see `prvr.data.sampling.segment_mean`.

    Returns:
        `(q, l)` float16, -inf past the end of a video.

    Raises:
        DataError: no such corpus, it lacks videos or captions, or it has no joint space.
    """
    source, folder = split.source, Path(teacher or ".").expanduser().absolute()
    corpus = source.corpus if teacher is None else open_corpus(folder.parent, folder.name)
    cosines = torch.full((len(split.query_ids), length), -torch.inf, dtype=torch.float16)
    for video, (texts, frames) in enumerate(joint_vectors(corpus, source.split, split)):
        rows = segment_mean(frames, int(split.frame_counts[video]), keep_last)
        products = unit_rows(texts) @ unit_rows(rows).mT
        if not bool(products.isfinite().all()):
            raise DataError(
                f"{corpus.folder}: vectors of {split.video_ids[video]!r} are not finite. Encode them again."
            )
        cosines[split.queries_of(video), : len(rows)] = products.half()
    return cosines


def joint_vectors(corpus: Corpus, name: str, split: PackedSplit) -> Iterator[tuple[Tensor, Tensor]]:
    """The captions `(k, d)` and all frames `(n, d)` of each video of a split, in the joint space of a corpus.

    Raises:
        DataError: it lacks videos or captions, or it has no joint space.
    """
    encoders = corpus_encoders(corpus)
    if encoders is not None and encoders.joint_dim:
        joint = JointSplit(corpus, name, split.video_ids)
        videos = set(split.video_ids)
        captions = [caption.id for caption in corpus.split(name).captions if caption.video_id in videos]
        row_of = {identity: row for row, identity in enumerate(captions)}
        if lacking := set(split.query_ids) - row_of.keys():
            raise DataError(f"{corpus.folder}: {name} lacks {len(lacking)} captions, among them {min(lacking)!r}.")
        for video, frames in enumerate(joint.frames()):
            yield joint.text_vectors[[row_of[split.query_ids[q]] for q in split.queries_of(video)]], frames
        return
    with corpus.open_features() as videos, corpus.open_queries() as captions:
        if videos.dim != captions.dim:
            raise DataError(
                f"{corpus.folder}: frames are {videos.dim} wide and captions {captions.dim}: no joint space. Name a "
                "corpus in train.teacher that has one: frames and sentences of one encoder, by prvr convert features"
            )
        for video, identity in enumerate(split.video_ids):
            texts = [captions.read(split.query_ids[query]) for query in split.queries_of(video)]
            if any(len(rows) != 1 for rows in texts):
                raise DataError(
                    f"{corpus.query_file}: captions of {identity!r} have several rows, expected one each, that of "
                    "the sentence. Name a corpus in train.teacher that has them"
                )
            yield torch.from_numpy(np.concatenate(texts)).float(), torch.from_numpy(videos.read(identity)).float()
