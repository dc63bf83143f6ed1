"""The API describes itself: every error is declared, and the page to read it loads nothing from outside."""

import re
from typing import Any

import pytest
from django.test import Client

from console.accounts.models import Role
from console.api.errors import MEANINGS
from tests.api.calls import Api, Browser

pytestmark = pytest.mark.django_db

CHANGES = {"post", "patch", "put", "delete"}
NOT_A_CHANGE = {"/api/servers/preflight", "/api/pairs/{pair_id}/parity"}


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    paths = Api(Role.VIEWER).get("/openapi.json").body["paths"]
    return [(path, method, operation) for path, methods in paths.items() for method, operation in methods.items()]


def test_every_operation_declares_every_error_and_one_success() -> None:
    for path, method, operation in operations():
        declared = set(operation["responses"])
        assert declared >= {str(status) for status in MEANINGS}, (path, method)
        assert any(status.startswith("2") for status in declared), (path, method)


def test_every_change_takes_dry_run_and_an_idempotency_key() -> None:
    for path, method, operation in operations():
        if method in CHANGES and path not in NOT_A_CHANGE:
            names = {parameter["name"] for parameter in operation["parameters"]}
            assert names >= {"dry_run", "Idempotency-Key"}, (path, method)
            done = next(operation["responses"][status] for status in operation["responses"] if status.startswith("2"))
            assert "Dry-Run" in done["headers"], (path, method)


def test_every_list_has_limit_and_offset() -> None:
    for path, method, operation in operations():
        if operation["operationId"].startswith("list_"):
            names = {parameter["name"] for parameter in operation["parameters"]}
            assert names >= {"limit", "offset"}, (path, method)


def test_every_operation_says_what_it_is_about_and_has_a_name_of_its_own() -> None:
    found = operations()
    assert len({operation["operationId"] for _, _, operation in found}) == len(found)
    assert all(operation["tags"] and operation["summary"] for _, _, operation in found)


def test_programs_without_login_do_not_read_the_description() -> None:
    assert Api().get("/openapi.json").status == 401


def test_a_browser_without_login_is_sent_to_the_form(settings: Any) -> None:
    settings.LOGIN_URL = "/login/"
    answer = Client().get("/api/docs", headers={"Accept": "text/html"})
    assert (answer.status_code, answer.headers["Location"]) == (302, "/login/?next=/api/docs")


def loaded(page: str) -> list[str]:
    return re.findall(r'<(?:script|link)\b[^>]*?(?:src|href)="([^"]+)"', page)


def test_the_page_is_reached_from_the_others_and_leads_back_to_them() -> None:
    client = Browser(Role.VIEWER).client
    assert re.search(r'<nav[^>]*>.*href="/api/docs".*</nav>', client.get("/tokens/").content.decode(), re.DOTALL)
    page = client.get("/api/docs").content.decode()
    assert '<a class="brand" href="/">' in page
    assert re.findall(r'href="([^"]+)" aria-current="page"', page) == ["/api/docs"]


def test_the_page_loads_nothing_from_outside_and_runs_no_script_of_its_own() -> None:
    page = Browser(Role.VIEWER).client.get("/api/docs")
    text = page.content.decode()
    addresses = loaded(text)
    assert addresses
    assert all(address.startswith("/static/") for address in addresses)
    assert not re.findall(r"<script(?![^>]*(?:src=|application/json))", text)
    assert "default-src 'self'" in page.headers["Content-Security-Policy"]


def test_the_page_can_try_changes_with_the_session_it_is_read_by() -> None:
    browser = Browser(Role.ADMIN)
    page = browser.client.get("/api/docs").content.decode()
    (token,) = re.findall(r'data-csrf-token="(\w+)"', page)
    assert browser.post("/hosts", {"name": "gpu01", "dry_run": True}, X_CSRFToken=token).status == 201


def test_what_the_page_loads_is_served_from_here() -> None:
    client = Browser(Role.VIEWER).client
    for address in loaded(client.get("/api/docs").content.decode()):
        served = client.get(address)
        assert served.status_code == 200
        b"".join(served.streaming_content)  # type: ignore[attr-defined]
        served.close()
