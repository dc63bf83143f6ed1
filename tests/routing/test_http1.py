"""Answers as bytes: heads, and bodies in every framing, however they are cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing import http1
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


@pytest.mark.parametrize(
    "data",
    [
        b"zz\r\nabc\r\n",
        b"\r\nabc\r\n",
        b"-1\r\n",
        b"+3\r\n",
        b"0x3\r\n",
        b"1_0\r\n",
        b";a=b\r\n",
        b"1 2\r\n",
        b"x" * 5000,
        b"100000000\r\n",
    ],
)
def test_a_chunk_without_a_size_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        feed(Chunked(), data)


@pytest.mark.parametrize("size", [b"3", b"03", b"00000003", b"3;a=b", b"3 ;a", b"3\t", b" 3"])
def test_a_size_may_be_written_in_many_ways(size: bytes) -> None:
    assert feed(Chunked(), size + b"\r\nabc\r\n0\r\n\r\n") == b"abc"


def test_a_sized_body_is_done_at_its_length() -> None:
    decoder = Sized(5)
    assert feed(decoder, b"abc") == b"abc"
    assert not decoder.done
    feed(decoder, b"de")
    assert decoder.done


def test_what_follows_a_body_is_left_where_it_is() -> None:
    assert Sized(2).step(b"xabc", 1) == (b"ab", 3)
    assert Sized(0).step(b"abc", 0) == (b"", 0)


SWITCHES = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"


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


def test_a_head_that_was_read_before_is_read_again_the_same() -> None:
    data = b"HTTP/1.1 200 OK\r\ncontent-type: a/b\r\ncontent-length: 1\r\n\r\nx"
    first, _ = parse(data)
    first.headers.clear()
    again, rest = parse(data)
    assert (again.status, again.keep_alive, again.headers, rest) == (
        200,
        True,
        [(b"content-type", b"a/b"), (b"content-length", b"1")],
        b"x",
    )


def test_no_more_heads_are_remembered_than_that() -> None:
    for number in range(3 * http1.REMEMBERED_HEADS):
        parse(b"HTTP/1.1 200 OK\r\nx: %d\r\ncontent-length: 0\r\n\r\n" % number)
    parse(b"HTTP/1.1 200 OK\r\nlong: %b\r\ncontent-length: 0\r\n\r\n" % (b"x" * http1.REMEMBERED_HEAD_BYTES))
    remembered = http1._read_heads
    assert 0 < len(remembered) <= http1.REMEMBERED_HEADS
    assert all(len(data) <= http1.REMEMBERED_HEAD_BYTES for data in remembered)


def test_interim_answers_may_be_many() -> None:
    head, rest = parse(b"HTTP/1.1 102 Processing\r\n\r\n" * 2000 + b"HTTP/1.1 200 OK\r\n\r\n")
    assert (head.status, rest) == (200, b"")


def test_a_server_that_closes_is_not_kept() -> None:
    head, _ = parse(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
    assert not head.keep_alive


@pytest.mark.parametrize("data", [b"hello\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", SWITCHES, b"x" * 70000])
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


@pytest.mark.parametrize("target", ["/a b", "/a\r\nhost: b", "/a\nb", "/€", "/\x00", ""])
def test_a_target_that_would_be_more_than_one_is_refused(target: str) -> None:
    with pytest.raises(ValueError, match="target"):
        request_head("GET", target, [], None)


@pytest.mark.parametrize("value", [b"a\r\nb: c", b"a\nb", b"a\r"])
def test_a_header_that_would_be_more_than_one_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match="end of a line"):
        request_head("GET", "/", [(b"a", value)], None)


@pytest.mark.parametrize("status", [600, 999])
def test_a_status_that_does_not_exist_is_malformed(status: int) -> None:
    with pytest.raises(Malformed, match=str(status)):
        Head().feed(b"HTTP/1.1 %d Odd\r\ncontent-length: 0\r\n\r\n" % status)
