"""Damaged files and damaged JSON values, for readers that must refuse them with one sentence. Everything is seeded."""

import copy
import json
from collections.abc import Iterator
from random import Random
from typing import Any

__all__ = ["REPLACEMENTS", "damages", "json_mutations", "json_text_mutations", "mutations"]

DEEP = 100_000
"""Levels of nesting: more than any parser follows."""

REPLACEMENTS: dict[str, bytes] = {
    "empty": b"",
    "spaces": b" \n\t\n ",
    "NUL bytes": bytes(256),
    "not UTF-8": b"\xff\xfe\xfa" * 40,
    "deep list": b"[" * DEEP,
    "deep closed list": b"[" * DEEP + b"]" * DEEP,
    "deep object": b'{"a":' * DEEP,
    "null": b"null",
    "true": b"true",
    "number": b"7",
    "string": b'"text"',
    "list": b"[]",
    "list of numbers": b"[1, 2, 3]",
    "list of lists": b"[[], []]",
    "object": b"{}",
    "object of nulls": b'{"a": null, "": null}',
    "huge number": b"1e999",
    "huge integer": b"9" * 5000,
    "NaN": b"NaN",
    "lone surrogate": b'"\\ud800"',
    "object with a lone surrogate": b'{"\\ud800": "\\ud800"}',
    "duplicate keys": b'{"a": 1, "a": 2}',
    "one long line": b"a" * (10 * 2**20),
    "many lines": b"a\n" * 100_000,
}
"""Contents by name that no reader expects, whatever its format."""


def mutations(content: bytes, random: Random, rounds: int = 4) -> Iterator[tuple[str, bytes]]:
    """Damaged copies of a file's content, each with a name that says what was done to it.

    Args:
        content: of a file that can be read.
        random: where the damage falls; an equal seed gives equal copies.
        rounds: how many copies of each kind of damage; `REPLACEMENTS` come once, after them.
    """
    size = len(content)
    for _ in range(rounds if size else 0):
        place = random.randrange(size)
        length = min(1 + random.randrange(64), size - place)
        end = place + length
        block = content[place:end]
        yield f"bit flipped at {place}", _put(content, place, bytes([content[place] ^ 1 << random.randrange(8)]))
        yield f"byte changed at {place}", _put(content, place, bytes([content[place] ^ 1 + random.randrange(255)]))
        yield f"truncated to {place}", content[:place]
        yield f"first {end} bytes missing", content[end:]
        yield f"{length} bytes missing at {place}", content[:place] + content[end:]
        yield f"{length} bytes repeated at {place}", content[:end] + block * (1 + random.randrange(8)) + content[end:]
        yield f"{length} bytes zeroed at {place}", _put(content, place, bytes(length))
        yield f"{length} bytes of noise at {place}", _put(content, place, random.randbytes(length))
        other = random.randrange(size - length + 1)
        swapped = _put(_put(content, place, content[other : other + length]), other, block)
        yield f"{length} bytes swapped between {place} and {other}", swapped
        yield f"extended by {length}", content + random.randbytes(length)
    yield "written twice", content + content
    yield "garbage", random.randbytes(1024)
    yield from REPLACEMENTS.items()


def damages(content: bytes, random: Random, rounds: int, most: int = 15) -> Iterator[tuple[str, bytes]]:
    """`mutations`, and values damaged one by one if the content, or its first line, is JSON.

    Args:
        content: of a file that can be read.
        random: where the damage falls.
        rounds: copies of each kind of damage to bytes.
        most: how many values at most.
    """
    yield from mutations(content, random, rounds)
    lines = content.splitlines()
    for text in (content, *lines[:1]):
        try:
            value = json.loads(text)
        except ValueError:
            continue
        for name, damaged in json_text_mutations(value, random, most):
            if name in REPLACEMENTS:  # they were among the first
                continue
            yield f"JSON: {name}", damaged
            if text is not content:
                yield f"first line: {name}", b"\n".join([damaged, *lines[1:]])
        break


def _put(content: bytes, place: int, block: bytes) -> bytes:
    return content[:place] + block + content[place + len(block) :]


def json_mutations(value: Any, random: Random, most: int = 200) -> Iterator[tuple[str, Any]]:
    """Copies of a JSON value with one place damaged each, and a name that says which and how.

    A copy may hold infinite numbers, lone surrogates and NUL characters; `json.dumps` writes them all.

    Args:
        value: objects, lists, strings, numbers, true, false and null.
        random: chooses among the copies where there are more than `most`.
        most: how many copies at most.
    """
    places = [(path, kind) for path in _paths(value) for kind in _kinds(_at(value, path))]
    if len(places) > most:
        places = random.sample(places, most)
    for path, kind in places:
        where = "".join(f"[{key!r}]" for key in path) or "the whole"
        yield f"{where}: {kind}", _damaged(value, path, kind)


def json_text_mutations(value: Any, random: Random, most: int = 200) -> Iterator[tuple[str, bytes]]:
    """As `json_mutations`, written out, with those damages that only a text can have, and `REPLACEMENTS`."""
    for name, damaged in json_mutations(value, random, most):
        yield name, json.dumps(damaged).encode()
    text = json.dumps(value)
    for name, inner in {"nested deeply": "[" * DEEP + "]" * DEEP, "beyond any number": "1e999", "NaN": "NaN"}.items():
        for path in _paths(value):
            marked = json.dumps(_replaced(value, path, "\0place\0"))
            yield f"{path}: {name}", marked.replace(json.dumps("\0place\0"), inner).encode()
            if name == "nested deeply":
                break  # one place will do
    if isinstance(value, dict) and value:
        key = random.choice(list(value))
        yield f"key {key!r} twice", (text[:-1] + f", {json.dumps(key)}: null}}").encode()
    yield "not closed", text[:-1].encode()
    yield from REPLACEMENTS.items()


_VALUES: dict[str, Any] = {
    "null": None,
    "true": True,
    "zero": 0,
    "negative": -1,
    "fraction": 0.5,
    "huge": 10**30,
    "beyond any number": float("inf"),
    "text": "text",
    "number as text": "7",
    "empty text": "",
    "NUL characters": "a\0b\0",
    "lone surrogate": "\ud800",
    "path upwards": "../../outside",
    "empty list": [],
    "list": [1, "a", None],
    "empty object": {},
    "object": {"a": 1},
}


def _kinds(value: Any) -> list[str]:
    kinds = list(_VALUES)
    if isinstance(value, dict):
        kinds += [f"without {key!r}" for key in value] + ["additional key"]
    if isinstance(value, list) and value:
        kinds += ["entry twice", "entry missing", "entries turned round"]
    return kinds


def _damaged(value: Any, path: tuple[str | int, ...], kind: str) -> Any:
    found = copy.deepcopy(_at(value, path))
    if kind in _VALUES:
        return _replaced(value, path, copy.deepcopy(_VALUES[kind]))
    if kind == "additional key":
        found["surplus"] = 1
    elif kind == "entry twice":
        found.append(copy.deepcopy(found[0]))
    elif kind == "entry missing":
        found.pop()
    elif kind == "entries turned round":
        found.reverse()
    else:
        found = {key: v for key, v in found.items() if kind != f"without {key!r}"}
    return _replaced(value, path, found)


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
