"""Encoders that others wrote: a class of a module, named as MODULE:CLASS, or one that an installed package brings.

A module is imported only where the user names it. A name that was read from a store, an index or a run is data: whoever
wrote that file may have chosen it. The short name of an installed encoder may come from a file, because it can only
stand for what was installed here on purpose.
"""

import re
import traceback
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import EntryPoint, entry_points
from inspect import get_annotations
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from prvr.encoders.interface import (
    ClipWindow,
    EncoderClass,
    FrameEncoder,
    Identity,
    TextFeaturizer,
    VideoEncoder,
    encode_pictures,
    rows_identity,
)
from prvr.errors import DataError, PrvrError, import_named

GROUP = "prvr.encoders"
"""The group of entry points by which a package registers encoders."""
_CODE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_SHORT = re.compile(r"[^\W_][\w-]*")  # no slash, dot or colon: never a path, a name on the hub, or MODULE:CLASS
_TRIAL = "a video"


def names_code(name: str) -> bool:
    """Whether a name is MODULE:CLASS, and no folder.

    Examples:
        >>> names_code("my_package.encoders:Colours"), names_code("openai/clip-vit-base-patch32"), names_code("./a:b")
        (True, False, False)
    """
    return _CODE.fullmatch(name) is not None and not Path(name).is_dir()


def installed_encoders(group: str = GROUP) -> dict[str, list[EntryPoint]]:
    """What installed packages register in a group of entry points, by short name."""
    points: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=group):
        if _SHORT.fullmatch(point.name):
            points.setdefault(point.name, []).append(point)
    return points


def is_own(name: str, group: str = GROUP) -> bool:
    """Whether a name stands for an encoder that is not part of prvr and no model of transformers."""
    return names_code(name) or name in installed_encoders(group)


def own_class(name: str, recorded: bool, group: str = GROUP) -> EncoderClass:
    """The class that a name stands for.

    Args:
        name: one that `is_own`.
        recorded: whether a file says so, and not the user.
        group: the entry points by which packages register such classes.

    Raises:
        DataError: a file names a module, there is no such class, it cannot be imported, or two packages bring one of
            this name.
    """
    points = installed_encoders(group).get(name, []) if _SHORT.fullmatch(name) else []
    if len(points) > 1:
        packages = " and ".join(point.dist.name if point.dist else point.value for point in points)
        raise DataError(f"{name}: {packages} both bring {name}. Uninstall one of them.")
    if points:
        with _explained(name):
            make = points[0].load()
    else:
        if recorded:
            raise DataError(
                f"{name}: the encoder of these features is Python code, which is not run because a file names it. If "
                f"you trust this code, name it yourself: add --encoder {name} to the command, or --text {name} to prvr "
                f"convert; in Python, encoder={name!r} of Library, or text=open_featurizer({name!r})."
            )
        make = _imported(name)
    _expect(callable(make), name, f"is of type {type(make).__name__}, expected a class")
    return make


_alive: WeakValueDictionary[tuple[Any, str, str], Any] = WeakValueDictionary()


def _made(make: EncoderClass, name: str, device: Any) -> Any:
    """An encoder; the one that is there already, since it may have both sides, and weights of gigabytes."""
    key = make, name, str(device)
    encoder = _alive.get(key)
    if encoder is None:
        encoder = make(name, device)
        with suppress(TypeError):  # an object with slots cannot be referred to
            _alive[key] = encoder
    return encoder


def open_frames(make: EncoderClass, name: str, device: Any, tried: Collection[Identity] = ()) -> VideoEncoder:
    """An encoder of frames or clips, tried on two pictures unless it is one of those that were tried before.

    Raises:
        DataError: it is none, its code fails, or it gives something else than it promises.
    """
    with _explained(name):
        encoder = _made(make, name, device)
        _check_members(name, "frames", FrameEncoder, encoder)
        kind = type(getattr(encoder, "window", ClipWindow()))
        _expect(kind is ClipWindow, name, f"its window is of type {kind.__name__}, expected ClipWindow")
        if rows_identity(encoder) in tried:
            return encoder
        noise = np.random.default_rng(0).integers(0, 256, (2, 48, 64, 3), dtype=np.uint8)
        rows = encode_pictures(encoder, noise)
    _check_rows(name, "two frames", rows, (2, encoder.dim))
    _expect(0 <= encoder.joint_dim <= encoder.dim, name, f"joint_dim={encoder.joint_dim}, not 0 to dim={encoder.dim}")
    return encoder


def open_text(make: EncoderClass, name: str, device: Any) -> TextFeaturizer:
    """The text side of an encoder, tried on a sentence.

    Raises:
        DataError: it has none, its code fails, or it gives something else than it promises.
    """
    with _explained(name):
        encoder = _made(make, name, device)
        _check_members(name, "texts", TextFeaturizer, encoder)
        words = encoder.words(_TRIAL)
        sentence = encoder.sentence(_TRIAL) if encoder.joint_dim else None
    _check_rows(name, "the words of a text", words, (len(words) or 1, encoder.word_dim))
    if sentence is not None:
        _check_rows(name, "a sentence", sentence, (encoder.joint_dim,))
        length = float(np.linalg.norm(sentence))
        _expect(abs(length - 1) < 1e-3, name, f"a sentence has length {length:.3g}, expected 1")
    return encoder


def _imported(name: str) -> Any:
    """The attribute that MODULE:CLASS names; the module may also lie in the working folder, after all others."""
    module, _, attribute = name.partition(":")
    with _explained(name):
        loaded = import_named(module)
    _expect(attribute in vars(loaded), name, f"{loaded.__name__} has no {attribute}")
    return vars(loaded)[attribute]


def _check_members(name: str, kind: str, protocol: type, encoder: Any) -> None:
    kinds = [{**get_annotations(kind), **vars(kind)} for kind in reversed(protocol.__mro__)]
    members = [member for kind in kinds for member in kind if not member.startswith("_")]
    missing = ", ".join(member for member in members if not hasattr(encoder, member))
    _expect(not missing, name, f"not an encoder of {kind}: {type(encoder).__name__} lacks {missing}")
    expected = f"Identity({name!r}, ...) with the name that the class is called with"
    is_valid = isinstance(encoder.identity, Identity) and encoder.identity.name == name
    _expect(is_valid, name, f"its identity is {encoder.identity!r}, expected {expected}")


def _check_rows(name: str, source: str, rows: Any, shape: tuple[int, ...]) -> None:
    got = f"{rows.dtype} of shape {rows.shape}" if isinstance(rows, np.ndarray) else type(rows).__name__
    is_valid = isinstance(rows, np.ndarray) and rows.dtype == np.float32 and rows.shape == shape
    _expect(is_valid, name, f"gives {got} for {source}, expected float32 of shape {shape}")
    _expect(bool(np.isfinite(rows).all()), name, f"gives NaN or infinity for {source}")


def _expect(condition: bool, name: str, problem: str) -> None:
    if not condition:
        raise DataError(f"{name}: {problem}. See docs/search.md for how to write one.")


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Says which line of others' code failed, whatever it raised."""
    try:
        yield
    except (PrvrError, MemoryError):
        raise
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        message = " ".join(str(error).split())[:300]
        raise DataError(
            f"{name}: cannot be used ({type(error).__name__}: {message}; {where.filename}, line "
            f"{where.lineno}). See docs/search.md for how to write one."
        ) from error
