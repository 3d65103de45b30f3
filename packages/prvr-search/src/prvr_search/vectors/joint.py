"""The joint encoder of frames and sentences: search without training.

Sentences are centred: a share of what they have in common, whatever they say, is subtracted, which leaves more of what
tells one video from another. It is the mean of sentences about all sorts of things.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import numpy as np

from prvr.data.atomic import user_cache
from prvr.data.hashes import digest
from prvr.data.sampling import growing_means
from prvr.encoders import (
    FeatureSpec,
    FrameEncoder,
    TextFeaturizer,
    VideoEncoder,
    check_joint,
    encode_pictures,
    open_encoder,
    open_featurizer,
)
from prvr.encoders.own import is_own
from prvr.errors import DataError, InputError
from prvr_search.films.picture import Picture
from prvr_search.store.features import Features
from prvr_search.store.proof import read_proven, write_cached
from prvr_search.vectors.model import (
    TAUGHT,
    TRAINING_FREE,
    UNTRAINED,
    ZERO_SHOT,
    Encoded,
    ModelIdentity,
    Queries,
    Rows,
    RowSet,
    SearchModel,
    Spans,
    Vector,
    WindowVectors,
    unit,
)
from prvr_search.vectors.taught import Taught

SHARE = 0.4
"""How much of the mean is subtracted, see `benchmarks/studies/films.md`."""

SENTENCES = tuple(
    """an astronaut polishes a harpsichord inside a volcano
a pharaoh auctions a meteorite beneath the polar ice
a glassblower tattoos a cello in a catacomb
a submarine captain shears an alpaca in a monastery
a fencer translates hieroglyphs at a stock exchange
a beekeeper defuses a torpedo in a coal mine
a samurai varnishes a gondola on an oil platform
a surgeon weighs plutonium in a cathedral crypt
a falconer milks a yak at a royal funeral
a welder engraves a gravestone in a wind tunnel
a hypnotist restores a fresco aboard a galleon
a lighthouse keeper dissects a squid in a courtroom
a cosmonaut forges a passport behind a glacier
a matador tunes an accordion in a mangrove swamp
a puppeteer inspects a reactor on a space station
a locksmith harvests saffron in a salt desert
a gladiator brews absinthe at the opera
an alchemist embalms a crocodile in a medieval dungeon
a ventriloquist repairs a typewriter beside a geyser
a stonemason calibrates a seismograph in a foundry
a druid smuggles truffles on a coral reef
a kangaroo excavates a mammoth at a coronation
a walrus crowns an emperor in a planetarium
a flamingo shoes a camel under a viaduct
an armadillo distils turpentine in a parliament
a mermaid upholsters a throne on a Mongolian steppe
a gargoyle solders a radio telescope in a morgue
a pelican trains a falcon at a rocket launch
a centaur bottles a hurricane in an observatory
an android counts ballots inside a pyramid
a chimpanzee refuels a zeppelin in a shipyard
a sphinx signs a peace treaty on an iceberg""".splitlines()
)
"""32 sentences in which no subject, action or place stands twice."""


@runtime_checkable
class ReadsSentences(Protocol):
    """A `TextFeaturizer` that encodes many sentences in less time than one after the other."""

    def sentences(self, texts: Sequence[str]) -> Queries:
        """The vectors of sentences, up to rounding those of `TextFeaturizer.sentence`."""
        ...


class JointModel:
    """Search without training: the cosine of the sentence with the frame, or the mean of frames, that it fits best.

    See `prvr.data.sampling.growing_means`; sentences are centred. Clips, means too,
    find candidates and do not count.

    Args:
        encoder: what the features are.
        text: the text side of the same encoder.
        device: torch device of the side of the pictures, which is opened when it is first needed.
        taught: a map of the rows; None: they count as they are.

    Raises:
        DataError: the encoder has no joint space, or the text side is of another model.
    """

    clips = 32
    clip_weight, frame_weight, frames_by_clip, frame_means = 0.0, 1.0, False, True
    stored: Mapping[str, RowSet] = MappingProxyType({})

    def __init__(
        self, encoder: FeatureSpec, text: TextFeaturizer, device: Any = "cpu", taught: Taught | None = None
    ) -> None:
        if not encoder.joint_dim:
            raise DataError(
                f"{encoder.encoder}: its features do not share a space with sentences, so there is no zero-shot "
                "score. Use a trained model without it, or extract with a CLIP or SigLIP."
            )
        check_joint(text.identity, encoder.encoder)
        if text.joint_dim != encoder.joint_dim:
            raise DataError(
                f"{text.identity}: sentences of width {text.joint_dim}, frames of {encoder.joint_dim}. Use the text "
                "side of the encoder."
            )
        self.dim, self._text, self._device, self._taught = encoder.joint_dim, text, device, taught
        # an encoder of one's own has both sides
        self._pictures: VideoEncoder | None = text if isinstance(text, FrameEncoder) else None
        frames = encoder.encoder
        kind, name, weights = ZERO_SHOT, frames.name, frames.weights
        if taught is not None:
            kind, name, weights = TAUGHT, f"{name}, taught {taught.captions:,} captions", taught.sha256
        self.identity = ModelIdentity(kind, name, weights, frames, text.identity)

    def encode_video(self, rows: Features, windows: Spans) -> Encoded:
        """The windows, one after the other."""
        joint = rows[:, : self.dim].astype(np.float32, copy=False)
        return windows, (self._window(joint[slice(*span)]) for span in windows)

    def _window(self, joint: Rows) -> WindowVectors:
        """The frames and means of a window; candidates are found by means of these, which need no clips."""
        frames = unit(growing_means(joint))
        if self._taught is not None:
            frames = unit(frames @ self._taught.matrix)
        return WindowVectors(frames[:0], frames, len(joint))

    def encode_texts(self, texts: Sequence[str]) -> Queries:
        """The sentences, centred."""
        return unit(self.encode_plain(texts) - self._common)

    def encode_plain(self, texts: Sequence[str]) -> Queries:
        """The sentences as the encoder gives them."""
        if isinstance(self._text, ReadsSentences):
            return unit(self._text.sentences(texts))
        return unit(np.stack([self._text.sentence(text) for text in texts]))

    @cached_property
    def _common(self) -> Vector:
        """What is subtracted: a share of the mean of `SENTENCES`, which is encoded once and kept in the user's cache.

        Zeros if the encoder cannot read sentences of this length, or gives numbers that are not finite.
        """
        about = asdict(self.identity.text)
        if not is_own(self.identity.text.name):
            about.pop("name")  # it may lie in two places; weights of others' code are named by hand
        name = digest({"weights": self.identity.frames.weights, "text": about, "sentences": SENTENCES})
        path = user_cache() / "sentences" / f"{name}.mean"
        with suppress(OSError, ValueError):
            mean = np.frombuffer(bytes(read_proven(path)[0]).removeprefix(name.encode()), "<f4")
            if mean.shape == (self.dim,) and np.isfinite(mean).all():
                return np.float32(SHARE) * mean
        with suppress(InputError):  # it reads shorter texts than these
            mean = self.encode_plain(SENTENCES).mean(0).astype(np.float32)
            if np.isfinite(mean).all():
                write_cached(path, [name.encode(), mean.astype("<f4").tobytes()])
                return np.float32(SHARE) * mean
        return np.zeros(self.dim, np.float32)

    def encode_picture(self, pixels: Picture) -> Vector:
        """A picture as a video of one frame."""
        if self._pictures is None:
            encoder = open_encoder(self.identity.text, self._device)  # both sides lie where the text side was found
            if FeatureSpec.of(encoder).encoder != self.identity.frames:
                raise DataError(
                    f"pictures would be read by {encoder.identity}, the index was made for {self.identity.frames}: "
                    "their vectors cannot be compared. Pass the encoder of the index with --encoder."
                )
            self._pictures = encoder
        rows = encode_pictures(self._pictures, [pixels])
        return self._window(rows[:, : self.dim].astype(np.float32, copy=False)).frames[0]


class MomentModel:
    """Search without training: the cosine of the sentence with the moment that it fits best, of any length.

    See `prvr.segments.adaptive_moments`. The whole video is divided, whatever the windows of the index.

    Args:
        joint: the same encoder for frames; sentences and pictures are read as there.
    """

    clips = 1
    clip_weight, frame_weight, frames_by_clip, frame_means = 1.0, 0.0, False, False
    stored: Mapping[str, RowSet] = MappingProxyType({})

    def __init__(self, joint: JointModel) -> None:
        self._joint, self.dim = joint, joint.dim
        self.identity = replace(joint.identity, kind=TRAINING_FREE)

    def encode_video(self, rows: Features, windows: Spans) -> Encoded:
        """The moments of the video; each is a window with one clip."""
        from prvr.stages.joint_space import moments_of  # here, since other searches need no stages

        moments = moments_of(rows[:, : self.dim])
        vectors = moments.vectors.astype(np.float32)
        return moments.spans, (WindowVectors(row[None], row[None][:0], 0) for row in vectors)

    def encode_texts(self, texts: Sequence[str]) -> Queries:
        """The sentences, not centred, which costs moments more than it gains."""
        return self._joint.encode_plain(texts)

    def encode_picture(self, pixels: Picture) -> Vector:
        """A picture as a video of one frame."""
        return self._joint.encode_picture(pixels)


def open_model(
    name: str | Path, encoder: FeatureSpec, device: Any = "cpu", text: TextFeaturizer | None = None
) -> SearchModel:
    """The model that a name stands for, for features of an encoder.

    Args:
        name: a run of `prvr train` (its best epoch), a folder of `save_pretrained`, or `toy-world`, which ships with
            prvr; `zero-shot`: the encoder alone, the cosine of the sentence with the frame or mean of frames that it
            fits best; or `training-free`: with the moment that it fits best, see `prvr.segments`.
            Where a retriever compares words with frames, or joins a kernel path with blocks, its clips, or the path,
            find 200 videos, whose order is that of its whole score.
        encoder: what the features are.
        device: the torch device.
        text: what reads queries; default: the text side of the encoder.

    Raises:
        DataError: there is no such model, or it does not read these features or these texts.
        prvr.InputError: it is a pipeline with stages, which `prvr evaluate` runs.
        prvr.MissingExtraError: transformers is needed and not installed.

    Examples:
        >>> model = open_model("runs/hybrid-1", library.features().spec)  # doctest: +SKIP
        >>> model.encode_texts(["a person opens the fridge"]).shape  # doctest: +SKIP
        (1, 384)
    """
    if (kind := str(name)) in UNTRAINED:
        joint = JointModel(encoder, text or open_featurizer(encoder.encoder, device), device)
        return MomentModel(joint) if kind == TRAINING_FREE else joint
    from prvr_search.vectors.trained import open_trained  # here, since its parts take longer to import than all others

    return open_trained(name, encoder, device, text)
