"""Logging in and out."""

import pytest
from django.core.management import call_command
from django.test import Client

from tests.factories import make_user

pytestmark = pytest.mark.django_db
PASSWORD = "correct horse battery"


def test_a_person_logs_in_and_comes_back_to_the_page_that_was_asked_for(valkey: object) -> None:
    make_user(username="olga")
    answer = Client().post("/login/", {"username": "olga", "password": PASSWORD, "next": "/hosts/"})
    assert (answer.status_code, answer.headers["Location"]) == (302, "/hosts/")


def test_another_site_is_never_the_next_page() -> None:
    make_user(username="olga")
    answer = Client().post("/login/", {"username": "olga", "password": PASSWORD, "next": "https://evil.example/"})
    assert answer.headers["Location"] == "/"


def test_a_wrong_password_says_what_may_be_wrong() -> None:
    make_user(username="olga")
    answer = Client().post("/login/", {"username": "olga", "password": "wrong"})
    assert "Name and password do not match" in answer.text


def test_five_wrong_passwords_lock_the_name_for_a_while() -> None:
    make_user(username="olga")
    browser = Client()
    answers = [browser.post("/login/", {"username": "olga", "password": "wrong"}) for _ in range(6)]
    assert answers[-1].status_code == 429
    assert "Too many wrong passwords" in answers[-1].text


def test_a_locked_out_person_is_told_how_it_ends_and_led_to_the_login_page() -> None:
    make_user(username="olga")
    page = [Client().post("/login/", {"username": "olga", "password": "wrong"}) for _ in range(6)][-1].text
    assert "For a quarter of an hour" in page
    assert "manage.py axes_reset_username NAME" in page
    assert 'href="/login/"' in page
    assert "Back to the deployments" not in page


def test_an_admin_lifts_a_lock_with_the_command_that_the_page_names(capsys: pytest.CaptureFixture[str]) -> None:
    make_user(username="olga")
    for _ in range(6):
        Client().post("/login/", {"username": "olga", "password": "wrong"})
    call_command("axes_reset_username", "olga")
    assert Client().post("/login/", {"username": "olga", "password": PASSWORD}).status_code == 302


def test_while_there_is_no_person_the_login_page_says_how_the_first_one_is_made() -> None:
    assert "manage.py createperson ada --role admin" in Client().get("/login/").text
    make_user(username="olga")
    assert "createperson" not in Client().get("/login/").text


def test_logging_out_ends_the_session(viewer: Client) -> None:
    assert viewer.post("/logout/").headers["Location"] == "/login/"
    assert viewer.get("/").status_code == 302


def test_the_address_of_logging_out_is_no_page(viewer: Client) -> None:
    assert viewer.get("/logout/").status_code == 405
