"""What a server counts of itself, as text that Prometheus reads."""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping

__all__ = ["Metrics"]

_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Seconds: upper edges of the histogram of answers."""


class Metrics:
    """Requests by route and status, their times, and how many are in the works.

    Routes are templates such as `/api/videos/{key}/file`, so that their number is bounded.

    Example:
        >>> metrics = Metrics()
        >>> metrics.count("/health", 200, 0.001)
        >>> print(metrics.text({"prvr_videos": 3.0}).splitlines()[2])
        prvr_requests_total{route="/health",status="200"} 1
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._times: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = {}
        self.active = 0

    def count(self, route: str, status: int, seconds: float) -> None:
        """One request that was answered."""
        with self._lock:
            self._requests[route, status] += 1
            row = self._times.setdefault(route, [0] * (len(_BOUNDS) + 1))
            row[bisect_left(_BOUNDS, seconds)] += 1
            self._seconds[route] = self._seconds.get(route, 0.0) + seconds

    def text(self, gauges: Mapping[str, float]) -> str:
        """All that was counted, and numbers that are known elsewhere.

        Args:
            gauges: by name.
        """
        with self._lock:
            lines = ["# HELP prvr_requests_total Requests that were answered.", "# TYPE prvr_requests_total counter"]
            for (route, status), count in sorted(self._requests.items()):
                lines.append(f'prvr_requests_total{{route="{route}",status="{status}"}} {count}')
            lines += [
                "# HELP prvr_request_seconds Time until the answer began.",
                "# TYPE prvr_request_seconds histogram",
            ]
            for route, row in sorted(self._times.items()):
                lines += _histogram(route, row, self._seconds[route])
        for name, value in {"prvr_requests_active": self.active, **gauges}.items():
            lines += [f"# TYPE {name} gauge", f"{name} {value:g}"]
        return "\n".join(lines) + "\n"


def _histogram(route: str, row: list[int], seconds: float) -> list[str]:
    total, lines = 0, []
    for bound, count in zip((*map(str, _BOUNDS), "+Inf"), row, strict=True):
        total += count
        lines.append(f'prvr_request_seconds_bucket{{route="{route}",le="{bound}"}} {total}')
    lines.append(f'prvr_request_seconds_sum{{route="{route}"}} {seconds:.6f}')
    lines.append(f'prvr_request_seconds_count{{route="{route}"}} {total}')
    return lines
