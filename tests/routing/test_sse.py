"""What the scanner reads from a stream, however its bytes are cut."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.sse import MAX_EVENT_BYTES, EventTooLong, Scanner
from routing.usage import Usage, read_usage
from tests.routing.scripted import chat_chunk, event, usage_chunk

ROLE = chat_chunk({"role": "assistant", "content": ""})
DONE = b"data: [DONE]\n\n"
STREAM = b"".join(
    [
        event(ROLE),
        event(chat_chunk({"content": "Hello"})),
        b": keep-alive\n\n",
        event(chat_chunk({"content": ' "quoted" \\ back\n\nslash'})),
        event(chat_chunk({"content": " 漢字 é 🚀"})),
        event(chat_chunk({"reasoning": "hm"})),
        event(chat_chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a":1}'}}]})),
        event(chat_chunk({"content": ""}, "stop")),
        event(usage_chunk(8, 5)),
        DONE,
    ]
)


def scan(data: bytes, cuts: list[int], *, drop_usage: bool = False) -> tuple[bytes, int, Scanner]:
    scanner = Scanner("chat", drop_usage=drop_usage)
    out, counting = b"", 0
    edges = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    for start, end in pairwise(edges):
        passed, counted = scanner.feed(data[start:end])
        out += passed
        counting += counted
    return out, counting, scanner


@given(st.lists(st.integers(min_value=0)), st.booleans())
def test_any_cut_gives_the_same_result(cuts: list[int], drop_usage: bool) -> None:
    whole, cut = scan(STREAM, [], drop_usage=drop_usage), scan(STREAM, cuts, drop_usage=drop_usage)
    assert cut[:2] == whole[:2]
    assert (cut[2].usage, cut[2].ended, cut[2].is_complete) == (whole[2].usage, whole[2].ended, whole[2].is_complete)


@given(st.lists(st.text(min_size=1), min_size=1))
def test_every_text_passes_unchanged_and_is_counted(texts: list[str]) -> None:
    stream = b"".join(event(chat_chunk({"content": text})) for text in texts)
    out, counting, _ = scan(stream, [])
    assert (out, counting) == (stream, len(texts))


@given(st.text(), st.text())
def test_the_template_takes_nothing_for_a_token_that_is_none(first: str, second: str) -> None:
    """The same bytes are read the same with and without a template."""
    learnt = Scanner("chat", drop_usage=False)
    learnt.feed(event(chat_chunk({"content": "learn"})))
    assert learnt.prefix
    data = event(chat_chunk({"content": first}, second or None))
    assert learnt.feed(data)[1] == Scanner("chat", drop_usage=False).feed(data)[1]


def test_a_template_is_not_learnt_from_the_chunk_that_names_the_role() -> None:
    scanner = Scanner("chat", drop_usage=False)
    scanner.feed(event(ROLE))
    assert scanner.prefix == b""


def test_a_role_an_empty_delta_and_a_comment_do_not_count() -> None:
    assert scan(event(ROLE) + b": hm\n\n" + event(chat_chunk({})), [])[1] == 0


@pytest.mark.parametrize(
    "delta", [{"content": "x"}, {"reasoning": "x"}, {"reasoning_content": "x"}, {"tool_calls": [{"index": 0}]}]
)
def test_text_reasoning_and_tools_count(delta: dict[str, Any]) -> None:
    assert scan(event(chat_chunk(delta)), [])[1] == 1


def test_a_usage_chunk_is_taken_out_when_the_client_did_not_ask() -> None:
    out, _, scanner = scan(STREAM, [], drop_usage=True)
    assert b'"choices":[]' not in out
    assert scanner.usage == {"prompt_tokens": 8, "completion_tokens": 5, "total_tokens": 13}


def test_done_without_a_finish_reason_is_not_complete_and_is_held_back() -> None:
    out, _, scanner = scan(event(ROLE) + DONE, [])
    assert out == event(ROLE)
    assert scanner.done
    assert not scanner.is_complete


def test_a_choice_that_did_not_finish_leaves_the_stream_incomplete() -> None:
    first = chat_chunk({"content": "x"}, "stop")
    second = chat_chunk({"content": "y"})
    second["choices"][0]["index"] = 1
    assert not scan(event(first) + event(second) + DONE, [])[2].is_complete


@pytest.mark.parametrize(("answers", "is_complete"), [(1, True), (0, True), (2, False)])
def test_an_answer_that_never_came_leaves_the_stream_incomplete(answers: int, is_complete: bool) -> None:
    scanner = Scanner("chat", drop_usage=False, answers=answers)
    out, _ = scanner.feed(event(chat_chunk({"content": "x"}, "stop")) + DONE)
    assert scanner.is_complete is is_complete
    assert out.endswith(DONE) is is_complete


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_an_answer_that_the_engine_gave_up_is_not_complete(reason: str) -> None:
    assert not scan(event(chat_chunk({"content": "x"}, reason)) + DONE, [])[2].is_complete


def test_an_error_event_passes_and_is_known() -> None:
    data = event({"error": {"message": "boom", "code": 500}}) + DONE
    out, _, scanner = scan(data, [])
    assert out == data
    assert scanner.error == {"message": "boom", "code": 500}
    assert not scanner.is_complete


def test_line_ends_may_be_carriage_returns_as_well() -> None:
    data = event(chat_chunk({"content": "x"}, "stop")).replace(b"\n", b"\r\n")
    out, counting, scanner = scan(data, [])
    assert (out, counting, scanner.ended) == (data, 1, "stop")


def test_data_over_several_lines_is_one_event() -> None:
    text = json.dumps(chat_chunk({"content": "x"}))
    data = b"data: " + text.replace(", ", ",\ndata: ", 1).encode() + b"\n\n"
    assert scan(data, [])[1] == 1


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1000])
def test_a_long_event_is_the_same_in_any_pieces(piece: int, line_end: bytes) -> None:
    data = (event(chat_chunk({"content": "x" * 2000}, "stop")) + DONE).replace(b"\n", line_end)
    scanner = Scanner("chat", drop_usage=False)
    fed = [scanner.feed(data[at : at + piece]) for at in range(0, len(data), piece)]
    assert b"".join(out for out, _ in fed) == data
    assert (sum(counting for _, counting in fed), scanner.is_complete, scanner.carry) == (1, True, [])


def test_an_event_that_never_ends_is_refused_in_pieces_too() -> None:
    scanner = Scanner("chat", drop_usage=False)
    for _ in range(MAX_EVENT_BYTES // 2**14):
        scanner.feed(b"x" * 2**14)
    with pytest.raises(EventTooLong):
        scanner.feed(b"x")


def test_an_event_that_never_ends_is_refused() -> None:
    scanner = Scanner("chat", drop_usage=False)
    scanner.feed(b"data: " + b"x" * 2**22)
    with pytest.raises(EventTooLong):
        scanner.feed(b"x" * 2**23)


def named(kind: str, **more: object) -> bytes:
    return f"event: {kind}\ndata: ".encode() + json.dumps({"type": kind, **more}).encode() + b"\n\n"


def test_a_responses_stream_is_read() -> None:
    usage = {"input_tokens": 5, "output_tokens": 2}
    scanner = Scanner("responses", drop_usage=True)
    data = named("response.created", response={"id": "resp_1"})
    data += named("response.output_text.delta", delta="a") + named("response.reasoning_text.delta", delta="b")
    data += named("response.completed", response={"usage": usage})
    out, counting = scanner.feed(data)
    assert (out, counting) == (data, 2)
    assert (scanner.is_complete, scanner.response_id) == (True, "resp_1")
    assert read_usage(scanner.usage) == Usage(5, 2, None)


def test_a_messages_stream_is_read() -> None:
    scanner = Scanner("messages", drop_usage=True)
    data = named("message_start", message={}) + named("content_block_delta", delta={"type": "text_delta", "text": "a"})
    data += named("message_delta", delta={"stop_reason": "end_turn"}, usage={"input_tokens": 5, "output_tokens": 1})
    data += named("message_stop")
    out, counting = scanner.feed(data)
    assert (out, counting, scanner.is_complete) == (data, 1, True)


def test_a_messages_stream_without_a_token_is_not_complete_whatever_it_says() -> None:
    scanner = Scanner("messages", drop_usage=True)
    data = named("message_delta", delta={"stop_reason": "end_turn"}, usage={"input_tokens": 5, "output_tokens": 0})
    scanner.feed(data + named("message_stop"))
    assert not scanner.is_complete


FINGERPRINT = {"system_fingerprint": "vllm-1"}


def ended_by(*events: dict[str, Any], drop_usage: bool = True) -> list[dict[str, Any]]:
    """What goes out of a stream that begins with a token."""
    data = b"".join(map(event, [chat_chunk({"content": "a"}), *events])) + DONE
    out, _, _ = scan(data, [], drop_usage=drop_usage)
    return [json.loads(block[6:]) for block in out.split(b"\n\n")[1:] if block.startswith(b"data: {")]


def test_a_fingerprint_moves_from_the_usage_that_is_taken_out_to_the_last_event() -> None:
    last = chat_chunk({"content": "b"}, "stop")
    assert ended_by(last, usage_chunk() | FINGERPRINT) == [last | FINGERPRINT]


def test_a_fingerprint_stays_in_the_usage_that_the_client_asked_for() -> None:
    events = [chat_chunk({"content": "b"}, "stop"), usage_chunk() | FINGERPRINT]
    assert ended_by(*events, drop_usage=False) == events


def test_the_last_event_goes_out_as_it_came_where_no_fingerprint_follows() -> None:
    last = chat_chunk({"content": "b"}, "stop")
    assert ended_by(last, usage_chunk()) == ended_by(last) == [last]


def test_the_last_event_of_a_stream_that_breaks_off_is_not_lost() -> None:
    last = event(chat_chunk({"content": "b"}, "stop"))
    out, counting, scanner = scan(event(chat_chunk({"content": "a"})) + last, [], drop_usage=True)
    assert (out + scanner.rest(), counting) == (event(chat_chunk({"content": "a"})) + last, 2)
