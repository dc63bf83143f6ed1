"""Where the values of a large JSON object begin and end, found window by window. Pure.

What is done with one window takes about as long whether it holds prose or nothing but brackets, quotes, backslashes or
digits: it is a handful of calls that each run over the window once. Generators yield between windows.
"""

import re
from array import array
from collections.abc import Generator, Iterator
from itertools import accumulate
from typing import Final, NamedTuple

from routing.bodies import NotJson, Raw, parse

WINDOW_BYTES: Final = 64 * 1024
LAST_WINDOW_BYTES: Final = 256
"""So little is looked through mark by mark."""
MAX_NAME_BYTES: Final = 1024
_SPACE: Final = re.compile(rb"[ \t\r\n]*")
_SCALAR: Final = re.compile(rb"[^,}\]\s]*")
_MARK: Final = re.compile(rb'["\[\]{},]')
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_SIGNS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")

Steps = Generator[None, None, int]
"""Returns where it got to."""


class Field(NamedTuple):
    """A value of the object. `commas`: in it and outside its strings, so one less than the items of a flat list."""

    name: str
    start: int
    end: int
    commas: int


def top_level(raw: Raw) -> Iterator[Field | None]:
    """The object's fields; None now and then, for the caller to breathe.

    Raises `NotJson` when it is no object; what its values hold is not checked.
    """
    at = yield from _space(raw, 0)
    if raw[at : at + 1] != b"{":
        raise NotJson("the body must be a JSON object")
    at = yield from _space(raw, at + 1)
    if raw[at : at + 1] == b"}":
        yield from _nothing_after(raw, at + 1)
        return
    while True:
        name_end = yield from _string_end(raw, at)
        name = _name(bytes(raw[at:name_end]) if name_end - at <= MAX_NAME_BYTES else None)
        start = yield from _expect(raw, name_end, b":")
        nested = raw[start : start + 1] in (b"{", b"[")
        at, commas = (yield from _nested_end(raw, start)) if nested else ((yield from _flat_end(raw, start)), 0)
        yield Field(name, start, at, commas)
        at = yield from _space(raw, at)
        if raw[at : at + 1] == b"}":
            yield from _nothing_after(raw, at + 1)
            return
        at = yield from _expect(raw, at, b",")


def _name(quoted: bytes | None) -> str:
    if quoted is None:
        raise NotJson(f"a field's name is longer than {MAX_NAME_BYTES} bytes")
    return str(parse(b'{"v":%b}' % quoted)["v"])


def _space(raw: Raw, at: int) -> Steps:
    return (yield from _run_of(_SPACE, raw, at))


def _run_of(pattern: re.Pattern[bytes], raw: Raw, at: int) -> Steps:
    while True:
        match = pattern.match(raw, at, at + WINDOW_BYTES)
        end = at if match is None else match.end()
        if end < at + WINDOW_BYTES:
            return end
        at = end
        yield


def _expect(raw: Raw, at: int, mark: bytes) -> Steps:
    at = yield from _space(raw, at)
    if raw[at : at + 1] != mark:
        raise NotJson(f"{mark.decode()} expected at byte {at}")
    return (yield from _space(raw, at + 1))


def _nothing_after(raw: Raw, at: int) -> Steps:
    at = yield from _space(raw, at)
    if at != len(raw):
        raise NotJson("more than one JSON object")
    return at


def _flat_end(raw: Raw, at: int) -> Steps:
    if raw[at : at + 1] == b'"':
        return (yield from _string_end(raw, at))
    end = yield from _run_of(_SCALAR, raw, at)
    if end == at:
        raise NotJson(f"a value expected at byte {at}")
    return end


def _string_end(raw: Raw, at: int) -> Steps:
    """After the closing quote of the string that begins at `at`."""
    if raw[at : at + 1] != b'"':
        raise NotJson(f"a string expected at byte {at}")
    at += 1
    size = LAST_WINDOW_BYTES
    while at < len(raw):
        window = without_escapes(bytes(raw[at : at + size]))
        end = window.find(b'"')
        if end >= 0:
            return at + end + 1
        at += len(window)
        size = min(2 * size, WINDOW_BYTES)
        if not window:
            break
        yield
    raise NotJson("a string does not end")


def without_escapes(window: bytes) -> bytes:
    """The window with its escaped quotes and backslashes blanked; one byte shorter when it ends within an escape."""
    if b"\\" not in window:
        return window
    window = window.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    return window[:-1] if window.endswith(b"\\") else window


def _nested_end(raw: Raw, at: int) -> Generator[None, None, tuple[int, int]]:
    """After the bracket that closes the one at `at`, and how many commas lie between."""
    depth = commas = 0
    in_string = is_closing = False
    size = LAST_WINDOW_BYTES
    while window := without_escapes(bytes(raw[at : at + size])):
        parts = window.split(b'"')
        outside = b"".join(parts[in_string::2])
        rise, lowest = _rise_and_lowest(outside, depth)
        if depth + lowest > 0:
            depth, commas, at = depth + rise, commas + outside.count(b","), at + len(window)
            in_string ^= len(parts) % 2 == 0
            size = size if is_closing else min(2 * size, WINDOW_BYTES)
        elif size > LAST_WINDOW_BYTES:
            is_closing, size = True, size // 2
        else:
            end, more = _close(window, depth, in_string)
            return at + end, commas + more
        yield
    raise NotJson("the body ends too early")


def _rise_and_lowest(outside: bytes, depth: int) -> tuple[int, int]:
    """How much deeper the nesting is after these bytes, and the least that it was deeper in between."""
    brackets = outside.translate(None, _NO_BRACKETS)
    closing = brackets.count(b"]") + brackets.count(b"}")
    if closing < depth or not brackets:
        return len(brackets) - 2 * closing, 1 - depth
    levels = array("b", brackets.translate(_SIGNS))
    return len(brackets) - 2 * closing, min(accumulate(levels))


def _close(window: bytes, depth: int, in_string: bool) -> tuple[int, int]:
    commas = 0
    for match in _MARK.finditer(window):
        mark = match[0]
        if mark == b'"':
            in_string = not in_string
        elif not in_string:
            commas += mark == b","
            depth += (mark in b"{[") - (mark in b"}]")
            if depth == 0 and mark != b",":
                return match.end(), commas
    raise AssertionError("the window holds the end")
