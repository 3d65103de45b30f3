"""Recognisers give what is said or written in a film as lines, which are searched as subtitles are.

One is chosen by its name in `RECOGNISERS`, as MODULE:CLASS, or by the name that an installed package gives it in the
entry-point group `prvr_search.recognisers`.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol, runtime_checkable

from prvr.config import Registry
from prvr.encoders import DownloadNeeded, Identity
from prvr.encoders.hub import locate
from prvr.encoders.own import is_own, own_class
from prvr.errors import DataError
from prvr_search.films import SubtitleLine, VideoFile

GROUP = "prvr_search.recognisers"
"""The group of entry points by which a package registers recognisers."""


@runtime_checkable
class Recogniser(Protocol):
    """Gives the lines of a film.

    Attributes:
        identity: two recognisers with equal identities give the same lines of the same film.
    """

    identity: Identity

    def recognise(self, video: VideoFile) -> Iterable[SubtitleLine]:
        """The lines of an open film, each with its start and end in seconds, its text, and `said` or `written` as kind.

        They may come one after the other, as they are recognised: the progress bar follows their ends. A film without
        any has no lines. What is raised concerns this film alone, which is tried again the next time.
        """
        ...


RECOGNISERS: Registry[Callable[[str, Any], Recogniser]] = Registry("recogniser")
"""The recognisers: classes, called with the name that was asked for and a torch device."""
RECOGNISERS.register("speech", f"{__name__}.speech:Speech", "what is said, by Whisper; speech:MODEL names a model")
RECOGNISERS.register("text", f"{__name__}.text:Text", "what is written, by RapidOCR")


def open_recogniser(name: str, device: Any = "cpu", *, download: bool = False) -> Recogniser:
    """Opens a recogniser.

    Args:
        name: `speech`, `speech:MODEL` with a Whisper of the Hugging Face hub or its folder, `text`, a name in
            `RECOGNISERS` or of an installed package, or MODULE:CLASS, which is imported.
        device: torch device of the model.
        download: let the model be downloaded from the Hugging Face hub if it is not on this computer.

    Raises:
        prvr.encoders.DownloadNeeded: the model is not on this computer, and `download` is False.
        DataError: there is no such recogniser, or it has not what `Recogniser` asks for.
        prvr.MissingExtraError: its library is not installed.
    """
    family = name.partition(":")[0]
    if family not in RECOGNISERS and is_own(name, GROUP):
        make: Any = own_class(name, recorded=False, group=GROUP)
    else:
        make = RECOGNISERS[family].part
    try:
        recogniser = make(name, device)
    except DownloadNeeded as needed:
        if not download:
            raise
        locate(needed.name, download=True)
        recogniser = make(name, device)
    if not (isinstance(recogniser, Recogniser) and isinstance(recogniser.identity, Identity)):
        raise DataError(
            f"{name}: {type(recogniser).__name__} is no recogniser; expected a method `recognise` and `identity`, a "
            "prvr_search.Identity. See docs/search.md."
        )
    return recogniser
