"""Reads the top level of a large JSON body in small steps, so that no stream waits for it.

Parsing holds the interpreter from begin to end, in whatever thread: 5 MB of token ids take 40 ms. Here only the keys of
the body and its small values are parsed. Large values (messages, prompts) stay the bytes they are and go
into the legs' bodies unread; whether they are valid the engine says, as it would have without us.

A body made to hurt is read as calmly as any other: where things end is found by `routing.windows`, each of whose steps
takes about as long whatever it looks at. Of several large bodies one step is done at a time, in turn.
"""

import asyncio
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from routing.bodies import LARGE_BYTES, NotJson, Raw, Sendable, Unread, parse
from routing.misread import find_fault
from routing.windows import Field, top_level

KEPT_BYTES = 16 * 1024
"""Values from this size on stay bytes."""
SMALL_BYTES = 1024
KEPT_IN_ALL_BYTES = 2**20
"""When so much was parsed, values of more than `SMALL_BYTES` stay bytes too."""
MAX_FIELDS = 10_000
MUST_BE_READ = ("vllm_xargs", "sampling_params")
"""Where a client could hide what must not be passed on: read up to `LARGE_BYTES`, as a small body is."""
PROMPTS = ("messages", "prompt", "input", "token_ids")
STEP_S = 0.003
FIND_BYTES = 2**20
ADDRESS = re.compile(rb'"(?:url|(?:image|audio|video|file)_url)"\s{0,8}:\s{0,8}"(?!data:)[^"]{5}')
ADDRESS_BYTES = 64
"""Longer than what that pattern finds."""


@dataclass(slots=True)
class Large:
    """A large body at its top level. `prompt_at`: where the first value that makes the prompt begins."""

    body: dict[str, Any]
    prompt_at: int = 0
    parsed_bytes: int = 0


async def read_object(raw: Raw) -> dict[str, Any]:
    """A JSON object of any size; the large values of a large one are `Unread`. Raises `NotJson`."""
    return (await read_large(raw)).body if len(raw) > LARGE_BYTES else parse(raw)


async def read_large(raw: Raw) -> Large:
    """As `bodies.parse`, with `Unread` for large values. Lets others run every few milliseconds. Raises `NotJson`."""
    large = Large({})
    await in_steps(_read(raw, large))
    return large


async def misread(raw: Raw, error: NotJson) -> NotJson:
    """What an engine says of a body that `read_large` could not read; `error` where it says nothing or nobody knows."""
    found: list[NotJson] = []
    await in_steps(find_fault(raw, found))
    return found[0] if found else error


def _read(raw: Raw, large: Large) -> Iterator[None]:
    for field in top_level(raw):
        if field is not None:
            _take(raw, field, large)
        yield


def _take(raw: Raw, field: Field, large: Large) -> None:
    name, size = field.name, field.end - field.start
    if not large.prompt_at and name in PROMPTS:
        large.prompt_at = field.start
    is_large = size >= KEPT_BYTES or (size > SMALL_BYTES and large.parsed_bytes > KEPT_IN_ALL_BYTES)
    if name in MUST_BE_READ:
        is_large = False
        if size > LARGE_BYTES:
            raise NotJson(f"`{name}` is longer than {LARGE_BYTES} bytes")
    if is_large:
        large.body[name] = Unread(memoryview(raw)[field.start : field.end], field.commas)
    else:
        large.parsed_bytes += size
        large.body[name] = parse(b'{"v":%b}' % bytes(raw[field.start : field.end]))["v"]
    if len(large.body) > MAX_FIELDS:
        raise NotJson(f"it has more than {MAX_FIELDS} fields")


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


async def in_steps(steps: Iterator[None]) -> None:
    """Runs them all, some milliseconds at a time. However many call this, the loop does one such piece per turn."""
    turn = _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
    goes_on = True
    while goes_on:
        async with turn:
            goes_on = _some(steps)
            await asyncio.sleep(0)


def _some(steps: Iterator[None]) -> bool:
    """False when all are done."""
    until = time.monotonic() + STEP_S
    return any(time.monotonic() >= until for _ in steps)


async def find(raw: Raw, needle: bytes) -> int:
    """As `bytes.find`."""
    for start in range(0, len(raw), FIND_BYTES):
        at = raw.find(needle, start, start + FIND_BYTES + len(needle))
        if at >= 0:
            return at
        await asyncio.sleep(0)
    return -1


async def names_addresses(body: Sendable) -> bool:
    """Whether a server that gets this has to fetch a picture or the like from where the client says."""
    found: list[bool] = []
    for piece in body if isinstance(body, list) else [body]:
        await in_steps(_find_address(piece, found))
    return bool(found)


def _find_address(piece: Raw | memoryview, found: list[bool]) -> Iterator[None]:
    for start in range(0, len(piece), LARGE_BYTES):
        if ADDRESS.search(piece, start, start + LARGE_BYTES + ADDRESS_BYTES):
            found.append(True)
            return
        yield
