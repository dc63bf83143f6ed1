"""Tokens recognised in their frames without parsing: exactly those that parsing would find."""

from hypothesis import given
from hypothesis import strategies as st

from routing.sse import Scanner
from routing.template import FrameTemplate
from tests.routing.scripted import chat_chunk, event

QUOTE = '"'


def frame(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def template() -> FrameTemplate:
    scanner = Scanner("chat", drop_usage=False)
    scanner.feed(event(chat_chunk({"content": "learn"})))
    return FrameTemplate(scanner.prefix, scanner.suffix)


@given(st.text(), st.sampled_from([None, "stop", "length"]))
def test_a_frame_is_a_token_only_when_parsing_says_so(text: str, finish: str | None) -> None:
    data = event(chat_chunk({"content": text}, finish))
    out, counting = Scanner("chat", drop_usage=False).feed(data)
    if template().is_token(frame(data)):
        assert (counting, finish) == (1, None)
    assert out == data


@given(st.text(st.characters(codec="utf-8", exclude_characters=QUOTE), min_size=1))
def test_every_text_without_a_quote_is_recognised(text: str) -> None:
    assert template().is_token(frame(event(chat_chunk({"content": text}))))


def test_an_empty_text_is_no_token() -> None:
    assert not template().is_token(frame(event(chat_chunk({"content": ""}))))


def test_a_frame_whose_size_line_lies_is_no_token() -> None:
    data = event(chat_chunk({"content": "x"}))
    lying = frame(data).replace(b"%x\r\n" % len(data), b"%x\r\n" % (len(data) + 1))
    assert not template().is_token(lying)
    assert template().run(lying, 0) == (0, 0)


@given(st.lists(st.text(min_size=1), max_size=5), st.binary(max_size=30))
def test_a_run_takes_whole_tokens_and_stops_at_the_first_other_thing(texts: list[str], rest: bytes) -> None:
    frames = [frame(event(chat_chunk({"content": text}))) for text in texts]
    data = b"".join(frames) + rest
    count, end = template().run(data, 0)
    expected = next((n for n, text in enumerate(texts) if b'"' in text.encode("utf-8", "replace")), len(texts))
    assert count <= len(texts)
    assert end == len(b"".join(frames[:count]))
    assert count == expected or b"\\" in frames[count]


def test_many_lengths_are_not_all_remembered() -> None:
    known = template()
    assert all(known.is_token(frame(event(chat_chunk({"content": "x" * n})))) for n in range(1, 1500))
