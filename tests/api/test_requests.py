"""Finished requests through the API: the list with its filters, and one request with marks and gaps."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from console.accounts.models import Role
from console.fleet.models import Deployment
from console.traffic.models import RequestRecord
from tests.api.calls import Api
from tests.factories import make_deployment

pytestmark = pytest.mark.django_db
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def make_record(request_id: str, deployment: Deployment, **fields: Any) -> RequestRecord:
    defaults: dict[str, Any] = {
        "model": deployment.served_model_name,
        "path": "/v1/chat/completions",
        "streamed": True,
        "received_at": NOON,
        "route": "split",
        "prefill_server": "p1",
        "decode_server": "d1",
        "decode_server_id": 7,
        "chosen_ms": 0.2,
        "prefill_sent_ms": 0.3,
        "prefill_answered_ms": 80.0,
        "decode_sent_ms": 80.1,
        "decode_opened_ms": 90.0,
        "first_token_ms": 100.0,
        "last_token_ms": 160.0,
        "finished_ms": 161.0,
        "prompt_tokens": 900,
        "completion_tokens": 4,
        "gaps_ms": [10.0, 40.0, 10.0],
        "max_gap_ms": 40.0,
        "status": 200,
        "outcome": "ok",
    }
    return RequestRecord.objects.create(request_id=request_id, deployment=deployment, **{**defaults, **fields})


@pytest.fixture
def records() -> None:
    chat, code = make_deployment("chat"), make_deployment("code")
    make_record("chat-a", chat)
    make_record("chat-b", chat, received_at=NOON + timedelta(minutes=1), outcome="failed", decode_server="d2")
    make_record("code-a", code, received_at=NOON + timedelta(minutes=2), route="plain", first_token_ms=900.0)


def found(**filters: Any) -> list[str]:
    return [item["request_id"] for item in Api(Role.VIEWER).get("/requests", **filters).body["items"]]


def test_the_newest_comes_first_and_tells_servers_tokens_times_and_outcome(records: None) -> None:
    assert found() == ["code-a", "chat-b", "chat-a"]
    item = Api(Role.VIEWER).get("/requests", text="chat-a").body["items"][0]
    assert (item["prefill_server"], item["decode_server"], item["route"]) == ("p1", "d1", "split")
    assert (item["prompt_tokens"], item["completion_tokens"]) == (900, 4)
    assert (item["ttft_ms"], item["max_gap_ms"], item["outcome"]) == (100.0, 40.0, "ok")


@pytest.mark.parametrize(
    ("filters", "ids"),
    [
        ({"deployment": "chat"}, ["chat-b", "chat-a"]),
        ({"server": "d2"}, ["chat-b"]),
        ({"server": "p1", "outcome": "ok"}, ["code-a", "chat-a"]),
        ({"outcome": "failed"}, ["chat-b"]),
        ({"route": "plain"}, ["code-a"]),
        ({"min_ttft_ms": 500}, ["code-a"]),
        ({"text": "-a"}, ["code-a", "chat-a"]),
        ({"since": "2026-03-01T12:01:00Z"}, ["code-a", "chat-b"]),
        ({"until": "2026-03-01T12:01:00Z"}, ["chat-a"]),
        ({"limit": 1, "offset": 1}, ["chat-b"]),
    ],
)
def test_requests_are_filtered(records: None, filters: dict[str, Any], ids: list[str]) -> None:
    assert found(**filters) == ids


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("deployment", "nothing"),
        ("outcome", "fine"),
        ("route", "scenic"),
        ("min_ttft_ms", "slow"),
        ("min_ttft_ms", "nan"),
        ("since", "yesterday"),
        ("since", "1772366400"),
        ("since", "2026-03-01T12:00:00"),
        ("until", "0001-01-01T00:00:00+10:00"),
        ("text", "a\0b"),
    ],
)
def test_an_unknown_filter_value_is_refused_and_named(name: str, value: str) -> None:
    answer = Api(Role.VIEWER).get("/requests", **{name: value})
    assert (answer.status, answer.error["field"]) == (400, name)


def test_one_request_tells_its_marks_and_gaps(records: None) -> None:
    body = Api(Role.VIEWER).get("/requests/chat-a").body
    assert body["gaps_ms"] == [10.0, 40.0, 10.0]
    assert body["marks"] == {
        "chosen_ms": 0.2,
        "prefill_sent_ms": 0.3,
        "prefill_answered_ms": 80.0,
        "decode_sent_ms": 80.1,
        "decode_opened_ms": 90.0,
        "first_token_ms": 100.0,
        "last_token_ms": 160.0,
        "finished_ms": 161.0,
    }


def test_one_request_names_those_that_shared_its_server(records: None) -> None:
    make_record("chat-c", Deployment.objects.get(name="chat"), received_at=NOON + timedelta(milliseconds=50))
    assert Api(Role.VIEWER).get("/requests/chat-a").body["shared_server_with"] == ["chat-c"]


def test_an_id_that_a_client_chose_may_hold_any_character(records: None) -> None:
    make_record("trace/7?a=%20", Deployment.objects.get(name="chat"))
    assert Api(Role.VIEWER).get("/requests/trace%2F7%3Fa=%2520").body["request_id"] == "trace/7?a=%20"


def test_the_request_of_a_deleted_deployment_is_still_told(records: None) -> None:
    Deployment.objects.all().delete()
    body = Api(Role.VIEWER).get("/requests/chat-a").body
    assert (body["deployment"], body["model"]) == (None, "chat")


@pytest.mark.parametrize("request_id", ["nothing", "a%00b", "%F0%9F%9A%82"])
def test_a_request_that_does_not_exist_is_not_found(request_id: str) -> None:
    assert Api(Role.VIEWER).get(f"/requests/{request_id}").status == 404
