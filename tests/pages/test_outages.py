"""The database is away or locked: a page says so with 503 and asks again; a change says that it was not done."""

from typing import Any

import pytest
from django.db import InterfaceError, OperationalError
from django.test import Client

from tests.pages.conftest import Fleet

REGION = {"HX-Request": "true"}


@pytest.fixture(params=[OperationalError("database is locked"), InterfaceError("connection already closed")])
def away(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise request.param

    monkeypatch.setattr("console.fleet.views.hosts.get_object_or_404", fail)
    monkeypatch.setattr("console.fleet.actions.stop", fail)


@pytest.mark.usefixtures("away")
def test_a_page_says_so_and_asks_again_by_itself(fleet: Fleet, viewer: Client) -> None:
    answer = viewer.get("/hosts/gpu01/")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert "The database does not answer" in answer.text
    assert '<meta http-equiv="refresh" content="5">' in answer.text


@pytest.mark.usefixtures("away")
def test_a_change_says_that_it_was_not_done_and_is_not_sent_again(fleet: Fleet, operator: Client) -> None:
    answer = operator.post(f"/servers/{fleet.prefill.pk}/stop/")
    assert answer.status_code == 503
    assert "What you asked for was not done." in answer.text
    assert "http-equiv" not in answer.text


@pytest.mark.usefixtures("away")
def test_a_region_keeps_what_it_shows(fleet: Fleet, operator: Client) -> None:
    answer = operator.post(f"/servers/{fleet.prefill.pk}/stop/", headers=REGION)
    assert (answer.status_code, answer.headers["HX-Reswap"], answer.text) == (503, "none", "")
    assert "nothing was done" in answer.headers["HX-Trigger"]


def test_a_session_that_cannot_be_read_is_told_like_the_rest(
    fleet: Fleet, viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr("django.contrib.sessions.backends.db.SessionStore.load", fail)
    monkeypatch.setattr("django.contrib.sessions.middleware.SessionMiddleware.process_response", fail)
    viewer.raise_request_exception = False
    answer = viewer.get("/hosts/")
    assert answer.status_code == 503
    assert "The database does not answer" in answer.text


def test_another_fault_is_no_outage(fleet: Fleet, viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a bug")

    monkeypatch.setattr("console.fleet.views.hosts.get_object_or_404", fail)
    viewer.raise_request_exception = False
    answer = viewer.get("/hosts/gpu01/")
    assert answer.status_code == 500
    assert "Something broke on our side" in answer.text
