"""A request for a host name that is not ours: 400 in words, and one line in the log."""

import logging

import pytest
from django.test import Client

REFUSED = ["evil.example.org", "not a name", "127.0.0.1:80:80", "evil.example.org\nINFO forged: line"]


@pytest.mark.parametrize("host", REFUSED)
def test_it_is_refused_in_words_with_one_line_of_warning(host: str, caplog: pytest.LogCaptureFixture) -> None:
    answer = Client().get("/login/", headers={"Host": host})
    assert answer.status_code == 400
    assert "The console does not take the name" in answer.text
    assert "in ALLOWED_HOSTS, or use its usual name" in answer.text
    (line,) = caplog.records
    assert line.levelno == logging.WARNING
    assert line.exc_info is None
    assert "GET /login/: Invalid HTTP_HOST header" in line.getMessage()
    assert "\n" not in line.getMessage()


def test_the_api_says_it_in_its_own_shape() -> None:
    answer = Client().get("/api/servers", headers={"Host": "evil.example.org"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unknown_host")
    assert "start it with evil.example.org in ALLOWED_HOSTS" in answer.json()["error"]["message"]


def test_what_the_header_says_is_shown_as_text() -> None:
    answer = Client().get("/login/", headers={"Host": "<script>alert(1)</script>" + "x" * 5000})
    assert "<script>alert" not in answer.text
    assert "x" * 100 not in answer.text


def test_a_change_is_refused_alike() -> None:
    assert Client().post("/login/", headers={"Host": "evil.example.org"}).status_code == 400


@pytest.mark.django_db
def test_a_name_of_ours_is_served() -> None:
    assert Client().get("/login/", headers={"Host": "localhost:8000"}).status_code == 200
