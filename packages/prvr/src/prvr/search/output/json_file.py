"""Results as JSON, for programs."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prvr.search.hits import SearchHit, SearchResult
from prvr.search.output.files import write_text

__all__ = ["as_json", "write_json"]

FORMAT = 1


def as_json(results: Sequence[SearchResult]) -> dict[str, Any]:
    """What `write_json` writes: everything, as plain lists and dictionaries."""
    return {
        "format": FORMAT,
        "results": [
            {
                "query": result.query,
                "videos": result.videos,
                "backend": result.backend,
                "hits": [_hit(rank, hit) for rank, hit in enumerate(result.hits, 1)],
            }
            for result in results
        ],
    }


def write_json(path: Path | str, results: Sequence[SearchResult]) -> None:
    """Writes results as one JSON file, ASCII only, with every moment and the whole time line; times in seconds.

    Raises:
        prvr.data.DataError: it cannot be written.
    """
    write_text(path, json.dumps(as_json(results), indent=1, allow_nan=False) + "\n")


def _hit(rank: int, hit: SearchHit) -> dict[str, Any]:
    return {"rank": rank} | asdict(hit)
