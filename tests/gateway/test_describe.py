"""What a record becomes for the charts, the list and the database."""

from console.gateway import describe
from console.traffic import wire
from tests.gateway.records import NAMES, make_record


def test_a_dot_stands_at_the_moment_of_the_first_token() -> None:
    event = describe.first_token(make_record(prompt_tokens=12), NAMES)
    assert (event["t"], event["ttft_ms"], event["prompt_tokens"]) == (1000.1, 100.0, 12)
    assert (event["route"], event["prefill"], event["decode"]) == ("split", "prefill-1", "decode-1")


def test_a_dot_shows_the_estimate_until_the_servers_have_counted() -> None:
    assert describe.first_token(make_record(estimated_prompt_tokens=40), NAMES)["prompt_tokens"] == 40


def test_a_long_prompt_is_marked_on_the_server_that_computes_it() -> None:
    event = describe.long_prompt(make_record(estimated_prompt_tokens=4000), NAMES, 2048)
    assert event == {"type": "long_prompt", "t": 1000.001, "server": "prefill-1", "prompt_tokens": 4000}


def test_without_a_prefill_server_the_answering_server_computes_the_prompt() -> None:
    record = make_record(
        route="plain", prefill_server=None, prefill_sent_ms=None, decode_server="3", estimated_prompt_tokens=4000
    )
    event = describe.long_prompt(record, NAMES, 2048)
    assert event is not None
    assert (event["server"], event["t"]) == ("plain-1", 1000.061)


def test_a_long_prompt_is_not_marked_before_it_is_sent() -> None:
    record = make_record(prefill_sent_ms=None, decode_sent_ms=None, estimated_prompt_tokens=4000)
    assert describe.long_prompt(record, NAMES, 2048) is None


def test_a_short_prompt_is_not_marked() -> None:
    assert describe.long_prompt(make_record(estimated_prompt_tokens=2047), NAMES, 2048) is None


def test_a_request_that_was_not_streamed_shows_no_ttft() -> None:
    row = describe.request_row(make_record(streamed=False, first_token_ms=None, finished_ms=500.0), NAMES)
    assert row["ttft_ms"] is None
    assert row["e2e_ms"] == 500.0


def test_the_row_of_a_request_shows_its_gaps() -> None:
    row = describe.request_row(make_record([10, 20, 90]), NAMES)
    assert (row["p50_gap_ms"], row["max_gap_ms"], row["model"]) == (20.0, 90.0, "tiny")


def test_a_server_that_is_not_known_any_more_shows_its_number() -> None:
    assert describe.request_row(make_record(decode_server="99"), NAMES)["decode"] == "99"


def test_the_stored_request_has_every_field_of_the_wire() -> None:
    found = describe.finished(make_record([10.04]), NAMES)
    assert wire.missing(dict(found)) == set()
    assert found["gaps_ms"] == [10.0]
    assert (found["prefill_server"], found["prefill_server_id"]) == ("prefill-1", 1)
