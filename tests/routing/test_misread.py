"""The place where a large body stops being JSON is the one that Python's reader names, however it is looked for."""

import json
import time
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from routing import misread
from routing.bodies import LARGE_BYTES, NotJson
from routing.misread import find_fault
from tests.routing.scripted import Json, Seen, Wire, prefills, site, streams

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=True) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)
PIECES = ['"', ",", "}", "]", "\\", "\\u12", "\\x", "\x01", "x", " ", ":", "{", "[", "-", ".", "01", "NaN", "tru", "é"]


def fault_of(raw: bytes) -> tuple[str, str] | None:
    found: list[NotJson] = []
    for _ in find_fault(raw, found):
        pass
    return (str(found[0]).rpartition(" (char ")[0], found[0].param) if found else None


def fault_by_python(raw: bytes) -> tuple[str, str] | None:
    try:
        json.loads(raw)
    except json.JSONDecodeError as error:
        return error.msg, f"body.{error.pos}"
    except ValueError:
        return None
    return None


@given(VALUES, st.booleans(), st.integers(0), st.integers(0, 3), st.sampled_from(["", *PIECES]))
def test_the_place_is_pythons(value: Any, escaped: bool, at: int, less: int, piece: str) -> None:
    text = json.dumps({"a": value, "b": [value]}, ensure_ascii=escaped)
    at %= len(text) + 1
    for broken in (text[:at] + piece, text[:at] + piece + text[at + less :]):
        raw = broken.encode("utf-8", "surrogatepass")
        expected = fault_by_python(raw)
        assume(expected is None or "trailing comma" not in expected[0])  # Newer versions name another place.
        assert fault_of(raw) == expected


@given(st.binary(max_size=40))
def test_any_bytes_at_all_have_pythons_place_or_none(raw: bytes) -> None:
    raw = b'{"a":' + raw
    assert fault_of(raw) == fault_by_python(raw)


WINDOW = misread.WINDOW_BYTES


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a":"' + b"x" * (3 * WINDOW) + b'" 1}',
        b'{"a":"' + b"\\n" * (2 * WINDOW) + b'\\q"}',
        b'{"a":"' + b"x" * (WINDOW - 9) + b'\\u00e9\\"' * 9 + b'x\ny"}',
        b'{"a":"' + b"x" * (WINDOW - 3) + b"\\u12",
        b'{"a":"' + b"x" * WINDOW + b"\\\\\\u1234",
        b'{"a":"' + b"x" * WINDOW + b"\\\\\\\\u1234",
        b'{"a":"' + "ä".encode() * (2 * WINDOW) + b'",x}',
        b'{"a":[' + b"12345, " * WINDOW + b"x]}",
        b'{"a":[' + b"1" + b" " * (2 * WINDOW) + b",x]}",
        b'{"a"' + b"\n" * (2 * WINDOW) + b"x",
        b'{"a":' + b"[" * 100 + b"1" + b"]" * 99 + b"}",
        b"[" + b'{"a":[[],{}]},' * 1000 + b"x]",
    ],
)
def test_windows_end_anywhere(raw: bytes) -> None:
    expected = fault_by_python(raw)
    assert expected is not None
    assert fault_of(raw) == expected


@pytest.mark.parametrize("unit", [b"\\\\", b"\\u0041", b"\\\\u0041", b"\\n", b"x"])
def test_no_text_that_never_ends_takes_long_to_look_through(unit: bytes) -> None:
    began_s = time.thread_time()
    assert fault_of(b'{"a":"' + unit * (2 * WINDOW // len(unit))) is not None
    assert time.thread_time() - began_s < 1.0


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a":' + b"[" * 10**6,
        b'{"a":[' + b"[]," * 10**6,
        b'{"a":' + b"1" * 10**6 + b"x",
        b'{"a":"\xff" x}',
        b'{"a" x:"' + b"y" * (2 * WINDOW) + b'\xff"}',
        json.dumps({"a": 1})[:-1].encode("utf-16"),
    ],
)
def test_what_nobody_names_a_place_in_has_none(raw: bytes) -> None:
    assert fault_of(raw) is None


LARGE = [{"role": "user", "content": "wörter " * LARGE_BYTES}]
BODY = json.dumps({"model": "m", "messages": LARGE, "n": 1}, ensure_ascii=False)


@pytest.mark.parametrize(
    "text",
    [
        BODY[:-1],
        BODY[: len(BODY) // 2],
        BODY + "}",
        BODY.replace('"n": 1', '"n" 1'),
        BODY.replace('"n": 1', '"n": 01'),
        BODY.replace('"n": 1', '"n": "\n"'),
        BODY.replace('"n": 1', "n: 1"),
        BODY.replace("wörter w", 'wörter "w', 1),
    ],
    ids=range(8),
)
async def test_a_client_is_told_where_its_large_body_breaks(text: str) -> None:
    with pytest.raises(json.JSONDecodeError) as wrong:
        json.loads(text)
    async with site({"P1": prefills, "D1": streams()}) as place:
        answer = await place.post(text.encode())
        assert place["P1"].seen == []
    error = answer.json["error"]
    assert (answer.status, error["type"], error["param"]) == (400, "Bad Request", f"body.{wrong.value.pos}")
    assert wrong.value.msg in error["message"]


async def test_where_a_value_breaks_that_is_passed_on_unread_a_server_tells_that_has_the_clients_own_body() -> None:
    def names(place: int) -> Json:
        words = f"1 validation error:\n  {{'type': 'json_invalid', 'loc': 'body.{place}', 'msg': 'JSON decode error'}}"
        return {"error": {"message": words, "type": "Bad Request", "param": f"body.{place}", "code": 400}}

    async def reads(seen: Seen, wire: Wire) -> None:
        try:
            json.loads(seen.raw)
        except json.JSONDecodeError as error:
            await wire.json(names(error.pos), 400)

    raw = BODY.replace("wörter w", "wörter \\q w", 1).encode()
    with pytest.raises(json.JSONDecodeError) as wrong:
        json.loads(raw)
    async with site({"P1": reads, "D1": reads}) as place:
        answer = await place.post(raw)
        record = await place.record()
        assert place["D1"].seen[0].raw == raw
        assert {view.failures for view in place.router.circuits().values()} == {0}
    assert (answer.status, answer.json) == (400, names(wrong.value.pos))
    assert (record.outcome, record.reason) == ("refused", "fallback: P1 refused it (400)")
