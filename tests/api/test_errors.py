"""Every error has one shape and says what to do, whatever went wrong."""

import logging
from typing import Any

import pytest
from django.db import OperationalError
from kombu.exceptions import OperationalError as BrokerError
from redis.exceptions import ConnectionError as RedisConnectionError

from console.accounts import tokens
from console.accounts.models import ApiToken, Role
from tests.api.calls import Api
from tests.factories import make_server

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("path", ["/nowhere", "/", ""])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_an_unknown_path_is_not_found_in_json(method: str, path: str) -> None:
    answer = Api(Role.VIEWER).call(method, path)
    assert (answer.status, answer.error["code"]) == (404, "not_found")


@pytest.mark.parametrize("path", ["/tokens", "/openapi.json", "/docs"])
def test_a_method_that_a_path_does_not_have_is_named_with_those_it_has(path: str) -> None:
    answer = Api(Role.VIEWER).call("PUT", path)
    assert (answer.status, answer.error["code"]) == (405, "method_not_allowed")
    assert "GET" in answer.headers["Allow"]


def test_a_server_that_never_was_is_not_called_one_that_was() -> None:
    answer = Api(Role.OPERATOR).post("/servers/999/start", {})
    assert answer.status == 404
    assert answer.error["message"] == "There is no server with id 999. If there was one, it has been deleted."


def test_a_body_that_is_not_json_is_refused() -> None:
    answer = Api(Role.ADMIN).post("/tokens", b"{name: ci")
    assert (answer.status, answer.error["code"]) == (400, "not_json")


@pytest.mark.parametrize("body", [None, [], "ci", 7, {}])
def test_a_body_of_the_wrong_kind_is_refused(body: Any) -> None:
    assert Api(Role.ADMIN).post("/tokens", body).status == 400


def test_every_wrong_field_is_named() -> None:
    answer = Api(Role.ADMIN).post("/tokens", {"name": "", "scope": "owner", "colour": "red"})
    assert answer.status == 400
    assert {detail["field"] for detail in answer.error["details"]} == {"name", "scope", "colour"}
    assert answer.error["field"] in ("name", "scope", "colour")
    assert not ApiToken.objects.filter(name="").exists()


@pytest.mark.parametrize("path", ["/tokens", "/servers/1/move"])
@pytest.mark.parametrize("body", [None, b""])
def test_a_body_that_is_missing_is_asked_for(path: str, body: Any) -> None:
    answer = Api(Role.ADMIN).post(path, body)
    assert (answer.status, answer.error["field"]) == (400, "body")
    assert answer.error["message"] == "body: Send a JSON object as the body."


def test_the_length_of_a_text_is_told_in_characters() -> None:
    server = {"deployment": "chat", "host": "gpu01", "role": "plain", "name": "x" * 64}
    answer = Api(Role.OPERATOR).post("/servers", server)
    assert (answer.error["field"], answer.error["message"]) == ("name", "name: At most 63 characters.")
    assert Api(Role.ADMIN).post("/tokens", {"name": ""}).error["message"] == "name: It cannot be empty."


def test_the_length_of_a_reason_is_told_in_characters_too() -> None:
    answer = Api(Role.OPERATOR).post(f"/servers/{make_server().pk}/start", {"reason": "x" * 401})
    assert answer.error["message"] == "reason: At most 400 characters."


def test_a_misspelt_field_is_refused_and_named() -> None:
    answer = Api(Role.ADMIN).post("/tokens", {"name": "ci", "expires_in_dayz": 3})
    assert (answer.error["field"], answer.error["message"]) == (
        "expires_in_dayz",
        "expires_in_dayz: There is no such field.",
    )


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_characters_that_cannot_be_stored_are_refused(name: str) -> None:
    assert Api(Role.ADMIN).post("/tokens", {"name": name}).error["field"] == "name"


@pytest.mark.parametrize("days", ["5", 5.5, True, 0, 10**30])
def test_numbers_are_numbers_within_their_limits(days: Any) -> None:
    assert Api(Role.ADMIN).post("/tokens", {"name": "ci", "expires_in_days": days}).error["field"] == "expires_in_days"


def test_a_whole_number_may_be_written_with_a_point() -> None:
    assert Api(Role.ADMIN).post("/tokens", {"name": "ci", "expires_in_days": 30.0}).status == 201


def test_an_unknown_filter_is_refused_and_named() -> None:
    answer = Api(Role.OPERATOR).get("/audit", actr="ada")
    assert (answer.status, answer.error["field"]) == (400, "actr")
    assert "actor" in answer.error["message"]


@pytest.mark.parametrize("query", [{"limit": 0}, {"limit": 501}, {"limit": "all"}, {"offset": -1}, {"offset": 10**30}])
def test_a_page_outside_the_limits_is_refused(query: dict[str, Any]) -> None:
    assert Api(Role.VIEWER).get("/tokens", **query).error["field"] in ("limit", "offset")


def test_a_body_that_is_too_big_is_refused() -> None:
    assert Api(Role.ADMIN).post("/tokens", b"x" * 3_000_000).status == 400


@pytest.mark.parametrize(
    ("failure", "status"),
    [(OperationalError("locked"), 503), (BrokerError("gone"), 503), (RedisConnectionError("gone"), 503)],
)
def test_what_passes_by_itself_is_unavailable(failure: Exception, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise failure

    monkeypatch.setattr(tokens, "visible_to", fail)
    answer = Api(Role.VIEWER).get("/tokens")
    assert (answer.status, answer.error["code"]) == (status, "unavailable")


def test_a_fault_of_ours_is_logged_and_shows_nothing_of_the_inside(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: Any) -> None:
        raise RuntimeError("the inside")

    monkeypatch.setattr(tokens, "visible_to", fail)
    with caplog.at_level(logging.ERROR):
        answer = Api(Role.VIEWER).get("/tokens")
    assert (answer.status, answer.error["code"]) == (500, "internal")
    assert "inside" not in str(answer.body)
    assert "the inside" in caplog.text
