"""Reads the top level of a large JSON body in small steps, so that no stream waits for it.

Parsing holds the interpreter from begin to end, in whatever thread: 5 MB of token ids take 40 ms. Here only the keys of
the body and its small values are parsed. Large values (messages, prompts) stay the bytes they are and go
into the legs' bodies unread; whether they are valid the engine says, as it would have without us.
"""

import asyncio
import re
import time
from collections.abc import Iterator
from typing import Any

from routing.bodies import NotJson, Unread, parse

LARGE_BYTES = 256 * 1024
KEPT_BYTES = 16 * 1024
"""Values from this size on stay bytes."""
STEP_S = 0.005
_SPACE = re.compile(rb"[ \t\r\n]*")
_SCALAR = re.compile(rb"[^,}\]\s]+")
_MARK = re.compile(rb'["\[\]{}]')
LOOKS = 64
"""Brackets looked at between two looks at the clock."""
WINDOW_BYTES = 128 * 1024
"""Searched for the next bracket at once."""


async def read_large(raw: bytes) -> dict[str, Any]:
    """As `bodies.parse`, with `Unread` for large values. Lets others run every few milliseconds."""
    last = time.monotonic()
    body: dict[str, Any] = {}
    for name, start, end in top_level(raw):
        if name is not None:
            piece = raw[start:end]
            body[name] = Unread(piece) if len(piece) >= KEPT_BYTES else _small(piece)
        if time.monotonic() - last > STEP_S:
            await asyncio.sleep(0)
            last = time.monotonic()
    return body


def _small(piece: bytes) -> object:
    return parse(b'{"v":' + piece + b"}")["v"]


def top_level(raw: bytes) -> Iterator[tuple[str | None, int, int]]:
    """(key, start, end) of each value of the object; a None key now and then, for the caller to breathe.

    Raises `NotJson` when it is no object; what large values hold is not checked.
    """
    at = _skip(raw, 0)
    if raw[at : at + 1] != b"{":
        raise NotJson("the body must be a JSON object")
    at = _skip(raw, at + 1)
    if raw[at : at + 1] == b"}":
        return
    while True:
        key_end = _string_end(raw, at)
        name = _small(raw[at:key_end])
        at = _expect(raw, key_end, b":")
        start = at
        for at in _value_ends(raw, start):
            yield None, start, at
        yield str(name), start, at
        at = _skip(raw, at)
        if raw[at : at + 1] == b"}":
            if _skip(raw, at + 1) != len(raw):
                raise NotJson("more than one JSON object")
            return
        at = _expect(raw, at, b",")


def _skip(raw: bytes, at: int) -> int:
    match = _SPACE.match(raw, at)
    return match.end() if match else at


def _expect(raw: bytes, at: int, mark: bytes) -> int:
    at = _skip(raw, at)
    if raw[at : at + 1] != mark:
        raise NotJson(f"{mark.decode()} expected at byte {at}")
    return _skip(raw, at + 1)


def _string_end(raw: bytes, at: int) -> int:
    """After the closing quote of the string that begins at `at`."""
    if raw[at : at + 1] != b'"':
        raise NotJson(f"a string expected at byte {at}")
    end = at + 1
    while (end := raw.find(b'"', end)) >= 0:
        before = end - 1
        while raw[before : before + 1] == b"\\":
            before -= 1
        if (end - 1 - before) % 2 == 0:
            return end + 1
        end += 1
    raise NotJson("a string does not end")


def _value_ends(raw: bytes, at: int) -> Iterator[int]:
    """Where the value that begins at `at` ends: the last that it yields."""
    first = raw[at : at + 1]
    if first == b'"':
        yield _string_end(raw, at)
    elif first in (b"{", b"["):
        yield from _nested_ends(raw, at)
    else:
        match = _SCALAR.match(raw, at)
        if match is None:
            raise NotJson(f"a value expected at byte {at}")
        yield match.end()


def _nested_ends(raw: bytes, at: int) -> Iterator[int]:
    depth = looked = 0
    while at < len(raw):
        match = _MARK.search(raw, at, at + WINDOW_BYTES)
        if match is None:
            at += WINDOW_BYTES
            yield at
            continue
        mark = match[0]
        if mark == b'"':
            at = _string_end(raw, match.start())
        else:
            depth += 1 if mark in b"{[" else -1
            at = match.end()
        looked += 1
        if depth == 0:
            yield at
            return
        if looked % LOOKS == 0:
            yield at
    raise NotJson("the body ends too early")
