"""Tokens and inference keys: shown once, taken back for good. And the audit trail that they leave."""

import re
import uuid
from html import unescape
from typing import cast

import pytest
from django.test import Client
from django.utils.html import strip_tags

from console.accounts.models import ApiToken, AuditEntry, InferenceKey, Role, User
from console.fleet import actions
from console.fleet.deployments import DeploymentData
from tests.factories import ADMIN
from tests.pages.conftest import Fleet


def secret(page: str) -> str:
    found = re.search(r'id="secret">([^<]+)<', page)
    return found[1] if found else ""


def token(**fields: str) -> dict[str, str]:
    return {"name": "grafana", "scope": "viewer", "expires_in_days": "90", **fields}


def key(**fields: str) -> dict[str, str]:
    return {"name": "bench", "deployment": "chat", "expires_in_days": "", **fields}


def test_a_token_is_shown_once(fleet: Fleet, admin: Client) -> None:
    answer = admin.post("/tokens/new/", token())
    plain = secret(answer.text)
    assert plain.startswith("syt-")
    assert answer.headers["Cache-Control"] == "no-store"
    assert plain not in admin.get("/tokens/").text
    assert "grafana" in admin.get("/tokens/").text


def test_a_key_is_shown_once_to_an_operator(fleet: Fleet, operator: Client) -> None:
    assert secret(operator.post("/tokens/keys/new/", key()).text).startswith("syk-")
    assert InferenceKey.objects.get().expires_at is None


@pytest.mark.parametrize("path", ["/tokens/new/", "/tokens/keys/new/"])
def test_the_same_form_sent_twice_makes_one(path: str, fleet: Fleet, admin: Client) -> None:
    fields = {**token(), **key(), "once": uuid.uuid4().hex}
    assert secret(admin.post(path, fields).text)
    again = admin.post(path, fields)
    assert not secret(again.text)
    assert "This form was sent already" in again.text
    assert ApiToken.objects.count() + InferenceKey.objects.count() == 1


@pytest.mark.parametrize(
    ("path", "wrong", "message"),
    [
        ("/tokens/new/", {"name": ""}, "This field is required."),
        ("/tokens/new/", {"scope": "root"}, "root is not one of the available choices"),
        ("/tokens/new/", {"expires_in_days": "7000"}, "7000 is not one of the available choices"),
        ("/tokens/keys/new/", {"deployment": "gone"}, "That choice is not one of the available choices"),
    ],
)
def test_wrong_input_makes_nothing_and_says_why(
    path: str, wrong: dict[str, str], message: str, fleet: Fleet, admin: Client
) -> None:
    answer = admin.post(path, {**token(), **key(), **wrong})
    assert answer.status_code == 400
    assert message in answer.text
    assert not ApiToken.objects.exists()
    assert not InferenceKey.objects.exists()


def test_a_viewer_sees_no_form_and_only_their_own_tokens(fleet: Fleet, admin: Client, viewer: Client) -> None:
    admin.post("/tokens/new/", token(name="of-the-admin"))
    ApiToken.issue(User.objects.get(role=Role.VIEWER), "of-the-viewer", Role.VIEWER)
    page = viewer.get("/tokens/").text
    assert "of-the-viewer" in page
    assert "of-the-admin" not in page
    assert "Make the" not in page


def test_a_token_that_was_taken_back_stays_listed_as_such(fleet: Fleet, admin: Client) -> None:
    admin.post("/tokens/new/", token())
    admin.post(f"/tokens/{ApiToken.objects.get().pk}/revoke/")
    assert not ApiToken.objects.get().is_valid()
    assert "taken back" in admin.get("/tokens/").text


def test_a_key_is_taken_back_by_an_operator_and_not_by_a_viewer(fleet: Fleet, operator: Client, viewer: Client) -> None:
    operator.post("/tokens/keys/new/", key())
    address = f"/tokens/keys/{InferenceKey.objects.get().pk}/revoke/"
    assert viewer.post(address).status_code == 403
    assert InferenceKey.objects.get().is_valid()
    operator.post(address)
    assert not InferenceKey.objects.get().is_valid()


@pytest.mark.parametrize("path", ["/tokens/999/revoke/", "/tokens/keys/999/revoke/"])
def test_what_does_not_exist_cannot_be_taken_back(path: str, fleet: Fleet, admin: Client) -> None:
    assert "notice-bad" in admin.post(path, follow=True).text


def test_the_audit_trail_tells_who_did_what_and_why(fleet: Fleet, operator: Client, viewer: Client) -> None:
    operator.post(f"/servers/{fleet.prefill.pk}/stop/", {"reason": "night", "confirmed": "on"})
    page = viewer.get("/audit/").text
    for words in ("server.stop", "server chat-1", "night", AuditEntry.objects.get().actor):
        assert words in page


def test_the_audit_trail_can_be_filtered(fleet: Fleet, operator: Client) -> None:
    operator.post(f"/servers/{fleet.prefill.pk}/stop/", {"confirmed": "on"})
    operator.post(f"/servers/{fleet.stopped.pk}/start/")
    page = operator.get("/audit/", {"action": "start"}).text
    assert "server.start" in page
    assert "server.stop" not in page
    assert "No change matches." in operator.get("/audit/", {"target": "nothing"}).text


def test_the_audit_trail_is_written_as_people_write(fleet: Fleet, admin: Client, viewer: Client) -> None:
    settings = {"engine_args": ["--max-model-len", "8192"], "engine_env": {"NCCL_DEBUG": "INFO"}, "require_key": False}
    actions.update_deployment(fleet.deployment.pk, ADMIN, cast(DeploymentData, settings))
    actions.add_server(
        ADMIN, deployment_id=fleet.deployment.pk, host_id=fleet.prefill.own_host.pk, role="decode", gpu_indexes=[0, 1]
    )
    admin.post("/tokens/new/", token())
    trail = viewer.get("/audit/").text.partition("<tbody>")[2].partition("</tbody>")[0]
    shown = unescape(strip_tags(trail))
    for words in ("engine_args --max-model-len 8192", "engine_env NCCL_DEBUG=INFO", "require_key no", "gpus 0, 1"):
        assert words in shown
    for unlike in ("[", "{", "True", "False", "None", "+00:00"):
        assert unlike not in shown


def test_an_empty_audit_trail_says_so(fleet: Fleet, viewer: Client) -> None:
    assert "No change yet." in viewer.get("/audit/").text
