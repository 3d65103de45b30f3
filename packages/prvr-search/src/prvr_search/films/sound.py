"""The sound of a film as numbers."""

import math
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float32

from prvr_search.films.decode import VideoFile

_GAP = 0.5  # seconds by which time stamps may leave what was decoded


def read_sound(
    video: VideoFile, rate: int = 16_000, seconds: float = 300.0
) -> Iterator[tuple[float, Float32[np.ndarray, " n"]]]:
    """The first sound of an open film as one channel from -1 to 1, in stretches; nothing where there is none.

    A stretch ends where its last tenth is quietest, so that no word is cut, or where time stamps jump.

    Args:
        video: an open film, see [open_video][prvr_search.films.decode.open_video].
        rate: samples per second.
        seconds: the longest stretch.

    Yields:
        (start in seconds, samples).

    Examples:
        >>> with open_video("beach.mp4") as video:  # doctest: +SKIP
        ...     for start, samples in read_sound(video):
        ...         print(start, len(samples) / 16_000)
    """
    import av

    resampler = av.AudioResampler("flt", "mono", rate)
    begins, count, blocks = 0.0, 0, list[np.ndarray]()
    for time, frame in video.sound(0.0, math.inf):
        if blocks and abs(time - begins - count / rate) > _GAP:
            yield begins, np.concatenate(blocks)
            count, blocks = 0, []
        begins = begins if blocks else time
        frame.pts = None
        for part in resampler.resample(frame):
            blocks.append(part.to_ndarray()[0])
            count += part.samples
        if count >= seconds * rate:
            samples = np.concatenate(blocks)
            cut = _quietest(samples, rate // 10)
            yield begins, samples[:cut]
            begins, count, blocks = begins + cut / rate, count - cut, [samples[cut:]]
    blocks += [part.to_ndarray()[0] for part in resampler.resample(None)] if blocks else []
    if blocks:
        yield begins, np.concatenate(blocks)


def _quietest(samples: Float32[np.ndarray, " n"], length: int) -> int:
    """The index in the middle of the quietest `length` samples of the last tenth."""
    first = len(samples) - len(samples) // 10 // length * length
    quietest = int(np.square(samples[first:]).reshape(-1, length).sum(1).argmin())
    return first + quietest * length + length // 2
