"""Where a large body stops being JSON: the place that Python's own reader names, found window by window. Pure.

Only bodies that could not be read are looked through, and nothing is made of what they hold.
"""

import codecs
import json
import re
from collections.abc import Generator, Iterator
from typing import Final

from routing.bodies import NotJson, Raw

WINDOW_BYTES: Final = 64 * 1024
MOST_STEPS: Final = 200_000
"""Of some 1 µs: a body made of nothing but brackets is not looked through to its end."""
STEPS_AT_ONCE: Final = 64
MOST_DEPTH: Final = 900
MOST_DIGITS: Final = 4300
"""What is deeper, or longer, that reader refuses without a place."""
_SPACE: Final = re.compile(rb"[ \t\r\n]*")
_IN_STRING: Final = re.compile(rb'(?:[^"\\\x00-\x1f]+|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*')
_LETTER_BY_NUMBER: Final = re.compile(rb"u[0-9a-fA-F]{4}")
_SIMPLE: Final = re.compile(rb"(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)|true|false|null|NaN|-?Infinity")
_NUMBERS: Final = re.compile(rb"(?:[ \t\r\n]*-?(?:0|[1-9][0-9]{0,17})[ \t\r\n]*,)+")
_QUOTE, _BACKSLASH, _U, _COMMA, _COLON = b'"', b"\\", b"u", b",", b":"
_CLOSED_BY: Final = {b"{": b"}", b"[": b"]"}


class Fault(Exception):
    """`at`: in bytes."""

    def __init__(self, words: str, at: int) -> None:
        super().__init__(words)
        self.at = at


class Unplaced(Exception):
    """It is not looked for any further."""


def find_fault(raw: Raw, found: list[NotJson]) -> Iterator[None]:
    """Adds what is wrong first. Nothing is added where nothing is, or where it would take too long to tell."""
    if json.detect_encoding(raw[:4]) != "utf-8":
        return
    try:
        yield from _walk(raw)
        return
    except Unplaced:
        return
    except Fault as first:
        fault = first
    at = yield from _letters(raw, fault.at)
    if at is not None:
        found.append(NotJson(f"{fault} (char {at})", at))


def _letters(raw: Raw, end: int) -> Generator[None, None, int | None]:
    """How many there are before `end`; None when some bytes anywhere make none."""
    decoder = codecs.getincrementaldecoder("utf-8")("surrogatepass")
    count = 0
    for start, stop in ((0, end), (end, len(raw))):
        for at in range(start, stop, WINDOW_BYTES):
            try:
                letters = decoder.decode(raw[at : min(at + WINDOW_BYTES, stop)])
            except UnicodeDecodeError:
                return None
            count += len(letters) if stop == end else 0
            yield
    return None if decoder.getstate()[0] else count


def _walk(raw: Raw) -> Iterator[None]:
    """Raises `Fault` or `Unplaced`."""
    open_: list[bytes] = []
    at = yield from _value(raw, (yield from _space(raw, 0)), open_)
    for step in range(MOST_STEPS):
        if step % STEPS_AT_ONCE == 0:
            yield
        at = yield from _space(raw, at)
        mark = raw[at : at + 1]
        if not open_:
            if mark:
                raise Fault("Extra data", at)
            return
        if mark == _CLOSED_BY[open_[-1]]:
            open_.pop()
            at += 1
        elif mark == _COMMA:
            at = yield from _next(raw, at + 1, open_)
        else:
            raise Fault("Expecting ',' delimiter", at)
    raise Unplaced


def _next(raw: Raw, at: int, open_: list[bytes]) -> Generator[None, None, int]:
    """After the value that follows a comma or an opening bracket, or after the bracket that opens it."""
    if open_[-1] == b"{":
        at = yield from _name(raw, (yield from _space(raw, at)))
    else:
        while (run := _NUMBERS.match(raw, at, at + WINDOW_BYTES)) is not None:
            at = run.end()
            yield
        at = yield from _space(raw, at)
    return (yield from _value(raw, at, open_))


def _name(raw: Raw, at: int) -> Generator[None, None, int]:
    if raw[at : at + 1] != _QUOTE:
        raise Fault("Expecting property name enclosed in double quotes", at)
    at = yield from _space(raw, (yield from _string(raw, at)))
    if raw[at : at + 1] != _COLON:
        raise Fault("Expecting ':' delimiter", at)
    return (yield from _space(raw, at + 1))


def _value(raw: Raw, at: int, open_: list[bytes]) -> Generator[None, None, int]:
    """What is in brackets is entered until the first value that is in none, or that is empty."""
    while (mark := bytes(raw[at : at + 1])) in _CLOSED_BY:
        open_.append(mark)
        if len(open_) > MOST_DEPTH:
            raise Unplaced
        at = yield from _space(raw, at + 1)
        if raw[at : at + 1] == _CLOSED_BY[mark]:
            open_.pop()
            return at + 1
        if mark == b"{":
            at = yield from _name(raw, at)
    if mark == _QUOTE:
        return (yield from _string(raw, at))
    simple = _SIMPLE.match(raw, at, at + WINDOW_BYTES)
    if simple is None:
        raise Fault("Expecting value", at)
    if len(simple[0]) > MOST_DIGITS:
        raise Unplaced
    return simple.end()


def _space(raw: Raw, at: int) -> Generator[None, None, int]:
    while True:
        match = _SPACE.match(raw, at, at + WINDOW_BYTES)
        end = at if match is None else match.end()
        if end < at + WINDOW_BYTES:
            return end
        at = end
        yield


def _string(raw: Raw, begin: int) -> Generator[None, None, int]:
    at = begin + 1
    while True:
        match = _IN_STRING.match(raw, at, at + WINDOW_BYTES)
        at = at if match is None else match.end()
        mark = raw[at : at + 1]
        if mark == _QUOTE:
            return at + 1
        if not mark:
            raise _unended(raw, begin)
        if mark == _BACKSLASH:
            at = _after_escape(raw, at, begin)
        elif mark < b" ":
            raise Fault("Invalid control character at", at)
        yield


def _unended(raw: Raw, begin: int) -> Fault:
    """That reader takes no letter by its number for whole where nothing follows it."""
    before, last = bytes(raw[max(begin + 1, len(raw) - WINDOW_BYTES) : -5]), bytes(raw[-5:])
    backslashes = len(before) - len(before.rstrip(_BACKSLASH))
    if backslashes % 2 and _LETTER_BY_NUMBER.fullmatch(last):
        return Fault("Invalid \\uXXXX escape", len(raw) - 5)
    return Fault("Unterminated string starting at", begin)


def _after_escape(raw: Raw, at: int, begin: int) -> int:
    """At the end of a window, or a wrong one."""
    match = _IN_STRING.match(raw, at, at + 6)
    if match is not None and match.end() > at:
        return match.end()
    kind = raw[at + 1 : at + 2]
    if not kind:
        raise Fault("Unterminated string starting at", begin)
    raise Fault("Invalid \\uXXXX escape", at + 1) if kind == _U else Fault("Invalid \\escape", at)
