"""Answers as bytes: heads, and bodies in every framing, however they are cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.http1 import Chunked, Decoder, Head, Malformed, Sized, decoder_for, request_head


def chunked(parts: list[bytes], trailer: bytes = b"") -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts if part) + b"0\r\n" + trailer + b"\r\n"


def feed(decoder: Decoder, data: bytes) -> bytes:
    parts, at = [], 0
    while at < len(data):
        part, at = decoder.step(data, at)
        parts.append(part)
    return b"".join(parts)


@given(st.lists(st.binary(max_size=40)), st.lists(st.integers(min_value=0)), st.sampled_from([b"", b"x-a: b\r\n"]))
def test_a_chunked_body_is_the_same_however_it_is_cut(parts: list[bytes], cuts: list[int], trailer: bytes) -> None:
    data = chunked(parts, trailer)
    edges = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    decoder = Chunked()
    got = b"".join(feed(decoder, data[start:end]) for start, end in pairwise(edges))
    assert got == b"".join(parts)
    assert decoder.done


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1), st.integers(min_value=1))
def test_a_body_that_was_cut_off_is_never_done(parts: list[bytes], cut: int) -> None:
    data = chunked(parts)
    decoder = Chunked()
    feed(decoder, data[: max(0, len(data) - 1 - cut % len(data))])
    assert not decoder.done


@pytest.mark.parametrize("data", [b"zz\r\nabc\r\n", b"\r\nabc\r\n", b"-1\r\n", b"x" * 5000])
def test_a_chunk_without_a_size_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        feed(Chunked(), data)


def test_a_sized_body_is_done_at_its_length() -> None:
    decoder = Sized(5)
    assert feed(decoder, b"abc") == b"abc"
    assert not decoder.done
    feed(decoder, b"de")
    assert decoder.done


def test_more_than_the_length_is_refused() -> None:
    with pytest.raises(Malformed):
        feed(Sized(2), b"abc")


def parse(data: bytes) -> tuple[Head, bytes | None]:
    head = Head()
    return head, head.feed(data)


def test_a_head_gives_back_what_follows_it() -> None:
    head, rest = parse(b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\ncontent-length: 3\r\n\r\nabc")
    assert (head.status, head.get(b"content-type"), rest, head.keep_alive) == (200, b"a/b", b"abc", True)


@given(st.integers(min_value=1, max_value=60))
def test_a_head_may_come_in_pieces(cut: int) -> None:
    data = b"HTTP/1.1 404 Not Found\r\ncontent-type: a/b\r\ncontent-length: 0\r\n\r\n"
    head = Head()
    rest = head.feed(data[:cut])
    if rest is None:
        rest = head.feed(data[cut:])
    assert head.status == 404


def test_interim_answers_are_passed_over() -> None:
    head, rest = parse(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\ncontent-length: 1\r\n\r\nx")
    assert (head.status, rest) == (201, b"x")


def test_a_server_that_closes_is_not_kept() -> None:
    head, _ = parse(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
    assert not head.keep_alive


@pytest.mark.parametrize("data", [b"hello\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"x" * 70000])
def test_what_is_not_an_answer_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        parse(data)


def test_framing_follows_the_head() -> None:
    head, _ = parse(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    assert isinstance(decoder_for(head, "POST"), Chunked)
    head, _ = parse(b"HTTP/1.1 204 No Content\r\n\r\n")
    assert decoder_for(head, "POST").done
    head, _ = parse(b"HTTP/1.0 200 OK\r\n\r\n")
    assert decoder_for(head, "POST").ends_at_eof


def test_a_request_head_is_one_request_head() -> None:
    head = request_head("POST", "/v1/x?a=b", [(b"host", b"h")], 3)
    assert head == b"POST /v1/x?a=b HTTP/1.1\r\nhost: h\r\ncontent-length: 3\r\n\r\n"
