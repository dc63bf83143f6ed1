"""Where the values of a large body begin and end, through whatever windows it is read, and whatever it holds."""

import json
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing import windows
from routing.bodies import NotJson
from routing.windows import Field, top_level
from tests.routing.test_bodies import objects

HOSTILE = {
    "deep brackets": b'{"a":' + b"[" * 2**20 + b"]" * 2**20 + b"}",
    "flat brackets": b'{"a":[' + b"[]," * 2**19 + b"[]]}",
    "empty strings": b'{"a":[' + b'"",' * 2**19 + b'""]}',
    "escaped quotes": b'{"a":"' + b'\\"' * 2**20 + b'"}',
    "backslashes": b'{"a":"' + b"\\\\" * 2**20 + b'"}',
    "one number": b'{"a":' + b"1" * 2**21 + b"}",
    "spaces": b'{"a":' + b" " * 2**21 + b"1}",
    "spaces at the end": b'{"a":1}' + b" " * 2**21,
}


def fields(raw: bytes) -> list[Field]:
    return [field for field in top_level(raw) if field is not None]


def through(last: int, largest: int) -> Any:
    return mock.patch.multiple(windows, LAST_WINDOW_BYTES=last, WINDOW_BYTES=largest)


@given(objects, st.sampled_from([None, 1]), st.booleans(), st.integers(2, 9), st.integers(0, 4))
def test_any_window_finds_the_same_values(
    body: dict[str, Any], indent: int | None, ascii_: bool, last: int, doublings: int
) -> None:
    raw = json.dumps(body, indent=indent, ensure_ascii=ascii_).encode("utf-8", "surrogatepass")
    with through(last, last * 2**doublings):
        found = {field.name: json.loads(raw[field.start : field.end]) for field in fields(raw)}
    assert found == json.loads(raw)


@given(st.text('"\\[]{},', max_size=40), st.integers(2, 9))
def test_marks_within_strings_are_text(text: str, last: int) -> None:
    raw = json.dumps({"a": [text, {text: text}], "b": text}).encode()
    with through(last, last * 4):
        assert [json.loads(raw[field.start : field.end]) for field in fields(raw)] == [[text, {text: text}], text]


@pytest.mark.parametrize(("value", "commas"), [("[1, 2, 3]", 2), ('["a,b", 1]', 1), ("[]", 0), ('"a,b"', 0), ("7", 0)])
def test_commas_outside_strings_are_counted(value: str, commas: int) -> None:
    assert fields(f'{{"a": {value}, "b": 1}}'.encode())[0].commas == commas


@pytest.mark.parametrize("shape", HOSTILE)
def test_nothing_is_looked_at_for_longer_than_a_window(shape: str) -> None:
    raw = HOSTILE[shape]
    looks = sum(1 for _ in top_level(raw))
    assert looks >= len(raw) / windows.WINDOW_BYTES


@pytest.mark.parametrize("shape", ["deep brackets", "flat brackets", "empty strings"])
def test_the_end_of_a_large_value_is_found_exactly(shape: str) -> None:
    raw = HOSTILE[shape]
    assert fields(raw)[0][:3] == ("a", 5, len(raw) - 1)


@pytest.mark.parametrize("cut", [b"[", b'["', b'["a', b'["a\\', b"[{", b'"', b'"a\\', b'"a\\\\\\"', b"", b'{"b": ['])
def test_a_body_that_ends_too_early_is_refused(cut: bytes) -> None:
    with pytest.raises(NotJson):
        fields(b'{"a": ' + cut)


def test_a_name_that_is_too_long_is_refused() -> None:
    with pytest.raises(NotJson, match="name is longer than 1024 bytes"):
        fields(b'{"' + b"n" * 2000 + b'": 1}')
