"""Damaged files and damaged JSON values, for readers that must refuse them with one sentence. Everything is seeded."""

import copy
import json
from collections.abc import Iterator
from random import Random
from typing import Any

DEEP = 100_000
"""Levels of nesting: more than any parser follows."""

REPLACEMENTS: dict[str, bytes] = {
    "empty": b"",
    "NUL bytes": bytes(256),
    "not UTF-8": b"\xff\xfe\xfa" * 40,
    "deep list": b"[" * DEEP,
    "null": b"null",
    "list": b"[]",
    "object of nulls": b'{"a": null, "": null}',
    "huge integer": b"9" * 5000,
    "object with a lone surrogate": b'{"\\ud800": "\\ud800"}',
    "one long line": b"a" * (10 * 2**20),
    "many lines": b"a\n" * 100_000,
}
"""Contents by name that no reader expects, whatever its format."""

EDGES = [value.to_bytes(4, order) for value in (0, 2**31 - 1, 2**31, 2**32 - 1, 2**16) for order in ("big", "little")]
"""Numbers at which programs stumble."""

VALUES: dict[str, Any] = {
    "null": None,
    "negative": -1,
    "huge": 10**30,
    "beyond any number": float("inf"),
    "text": "text",
    "NUL characters": "a\0b\0",
    "lone surrogate": "\ud800",
    "path upwards": "../../outside",
    "list": [1, "a", None],
    "empty object": {},
}


def mutations(content: bytes, random: Random, rounds: int = 1) -> Iterator[tuple[str, bytes]]:
    """Copies of a content with one damage each, and a name that says which and where.

    Args:
        content: of a file that can be read.
        random: where the damage falls, most of it in the first and last part, where heads and tables lie.
        rounds: how many copies of each kind of damage.
    """
    size = len(content)
    for _ in range(rounds if size else 0):
        place = random.randrange(*random.choice(((0, size), (0, min(size, 1024)), (max(0, size - 1024), size))))
        length = min(1 + random.randrange(2 ** random.randint(1, 10)), size - place)
        other = random.randrange(size - length + 1)
        before, block, after = content[:place], content[place : place + length], content[place + length :]
        blocks = {
            "bit flipped": bytes([block[0] ^ 1 << random.randrange(8)]) + block[1:],
            "byte changed": bytes([block[0] ^ 1 + random.randrange(255)]) + block[1:],
            "extreme number": random.choice(EDGES) + block[4:],
            "missing": b"",
            "repeated": block * (2 + random.randrange(8)),
            "zeroed": bytes(length),
            "noise": random.randbytes(length),
            "copied from elsewhere": content[other : other + length],
        }
        for kind, new in blocks.items():
            yield f"{length} bytes at {place}: {kind}", before + new + after
        yield f"truncated to {place}", before
        yield f"first {place + length} bytes missing", after
        yield f"extended by {length}", content + random.randbytes(length)
    yield "written twice", content + content


def damages(content: bytes, random: Random, rounds: int, most: int = 15) -> Iterator[tuple[str, bytes]]:
    """`mutations`, `REPLACEMENTS`, and values damaged one by one if the content, or its first line, is JSON.

    Args:
        content: of a file that can be read.
        random: where the damage falls.
        rounds: copies of each kind of damage to bytes.
        most: how many values at most.
    """
    yield from mutations(content, random, rounds)
    yield from REPLACEMENTS.items()
    head, *lines = content.splitlines() or [b""]
    for text, rest in ((content, []), (head, lines)):
        try:
            value = json.loads(text)
        except ValueError:
            continue
        for name, damaged in json_mutations(value, random, most):
            yield f"JSON: {name}", b"\n".join([damaged, *rest])
        return


def json_mutations(value: Any, random: Random, most: int) -> Iterator[tuple[str, bytes]]:
    """Copies of a JSON value with one place damaged each, as a text, and a name that says which and how."""
    copies = []
    for path in _paths(value):
        here = _at(value, path)
        kinds = dict(VALUES)
        if isinstance(here, dict):
            kinds |= {f"without {key!r}": {k: v for k, v in here.items() if k != key} for key in here}
            kinds["additional key"] = here | {"surplus": 1}
        if isinstance(here, list) and here:
            kinds |= {"entry twice": [*here, here[0]], "entry missing": here[:-1], "turned round": here[::-1]}
        copies += [(path, kind, new) for kind, new in kinds.items()]
    for path, kind, new in random.sample(copies, min(most, len(copies))):
        yield f"{path}: {kind}", json.dumps(_replaced(value, path, new)).encode()
    for name, inner in {"nested deeply": "[" * DEEP + "]" * DEEP, "beyond any number": "1e999", "NaN": "NaN"}.items():
        path = random.choice([*_paths(value)])
        marked = json.dumps(_replaced(value, path, "place"))
        yield f"{path}: {name}", marked.replace('"place"', inner, 1).encode()
    if isinstance(value, dict) and value:
        yield "a key twice", (json.dumps(value)[:-1] + f", {json.dumps(next(iter(value)))}: null}}").encode()
    yield "not closed", json.dumps(value)[:-1].encode()


def _paths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from _paths(child, (*path, key))


def _at(value: Any, path: tuple[str | int, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def _replaced(value: Any, path: tuple[str | int, ...], new: Any) -> Any:
    if not path:
        return new
    whole = copy.deepcopy(value)
    _at(whole, path[:-1])[path[-1]] = new
    return whole
