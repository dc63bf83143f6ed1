"""Adding, changing and deleting a deployment."""

import re

import pytest
from django.test import Client

from console.accounts.models import AuditEntry
from console.fleet.models import Deployment
from tests.pages.conftest import Fleet

NEW, EDIT = "/deployments/new/", "/deployments/chat/edit/"


def typed(**fields: object) -> dict[str, object]:
    """What a browser sends for an untouched form."""
    untouched: dict[str, object] = {
        "name": "mixtral",
        "model": "/models/mixtral",
        "served_model_name": "",
        "engine": "vllm",
        "engine_args": "",
        "engine_env": "",
        "connector": "NixlConnector",
        "kv_load_failure_policy": "recompute",
        "when_no_pair": "fallback",
        "short_prompt_tokens": "0",
        "busy_decode_streams": "",
        "plain_share_percent": "0",
        "retries": "2",
        "wait_for_server_s": "0",
        "prefix_affinity": "on",
        "session_affinity": "on",
        "require_key": "on",
        "ttft_limit_ms": "",
        "gap_limit_ms": "",
        "max_connections_per_server": "",
        "connect_s": "",
        "first_byte_s": "",
        "idle_s": "",
        "total_s": "",
        "comment_every_s": "",
    }
    return {**untouched, **fields}


def typed_again(**fields: object) -> dict[str, object]:
    """The form of the deployment of the fixture, untouched but for `fields`."""
    same = {"name": "chat", "model": "/models/tiny", "served_model_name": "chat", "engine": "simulated"}
    return typed(**{**same, **fields})


def test_the_failure_policy_is_a_choice_with_its_consequence(fleet: Fleet, operator: Client) -> None:
    page = operator.get(NEW).text
    assert "The decode server computes the prompt itself." in page
    assert "The request ends with an error, and nobody else is slowed down." in page


def test_a_deployment_is_added_under_its_own_name(fleet: Fleet, operator: Client) -> None:
    answer = operator.post(NEW, typed())
    assert answer.headers["Location"] == "/deployments/mixtral/"
    made = Deployment.objects.get(name="mixtral")
    assert made.served_model_name == "mixtral"
    assert made.kv_load_failure_policy == "recompute"


def test_an_admin_gives_arguments_and_environment_as_on_a_command_line(fleet: Fleet, admin: Client) -> None:
    fields = typed(engine_args="--max-model-len 8192 --chat-template 'two words'", engine_env="A=1\n\nB=x=y")
    admin.post(NEW, fields)
    made = Deployment.objects.get(name="mixtral")
    assert made.engine_args == ["--max-model-len", "8192", "--chat-template", "two words"]
    assert made.engine_env == {"A": "1", "B": "x=y"}


def test_an_operator_cannot_set_arguments_by_sending_them(fleet: Fleet, operator: Client) -> None:
    operator.post(NEW, typed(engine_args="--trust-remote-code"))
    assert Deployment.objects.get(name="mixtral").engine_args == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": "chat"}, "chat"),
        ({"name": "Not A Name"}, "Use lower-case letters, digits and hyphens"),
        ({"name": ""}, "This field is required."),
        ({"model": ""}, "This field is required."),
        ({"engine": "other"}, "other is not one of the available choices"),
        ({"kv_load_failure_policy": "shrug"}, "shrug is not one of the available choices"),
        ({"plain_share_percent": "140"}, "less than or equal to 100"),
        ({"retries": "nine"}, "Enter a whole number."),
        ({"ttft_limit_ms": "-5"}, "greater than or equal to 1"),
        ({"connect_s": "0"}, "Give a number from 0.1 to 60, or leave it empty"),
        ({"first_byte_s": "-1"}, "Give a number from 0.1 to 86400, or leave it empty"),
        ({"idle_s": "nan"}, "Enter a number."),
        ({"total_s": "90000"}, "Give a number from 0.1 to 86400, or leave it empty"),
        ({"comment_every_s": "0.9"}, "Give a number from 1 to 3600, or leave it empty"),
        ({"max_connections_per_server": "0"}, "Give a number from 1 to 65535, or leave it empty"),
        ({"max_connections_per_server": "1.5"}, "Enter a whole number."),
        ({"engine_args": "--a 'open"}, "A quotation mark is not closed.</p>"),
        ({"engine_args": "--a b\\"}, "Nothing follows the backslash at the end."),
        ({"engine": "simulated", "connector": "Nope"}, "The simulated engine has no Nope. Choose NixlConnector,"),
        ({"engine_args": "--port 9"}, "--port"),
        ({"engine_env": "JUSTAWORD"}, "Write NAME=value, one a line"),
    ],
)
def test_wrong_input_is_answered_at_its_field(
    wrong: dict[str, object], message: str, fleet: Fleet, admin: Client
) -> None:
    answer = admin.post(NEW, typed(**wrong))
    assert answer.status_code == 400
    assert message in answer.text
    assert "field-error" in answer.text
    assert Deployment.objects.count() == 1


def test_what_was_typed_is_still_there_after_a_mistake(fleet: Fleet, admin: Client) -> None:
    page = admin.post(NEW, typed(name="", engine_args="--max-model-len 8192")).text
    assert "--max-model-len 8192" in page


def test_a_change_touches_only_what_was_changed(fleet: Fleet, operator: Client) -> None:
    answer = operator.post(EDIT, typed_again(gap_limit_ms="120", change_reason="stalls in the evening"))
    assert answer.headers["Location"] == "/deployments/chat/"
    entry = AuditEntry.objects.get(action="deployment.update")
    assert entry.after == {"gap_limit_ms": 120.0}
    assert entry.reason == "stalls in the evening"


@pytest.mark.parametrize(
    ("change", "told"),
    [({"plain_share_percent": "50"}, "It holds at once."), ({"engine_args": "--seed 1"}, "keep their")],
)
def test_only_what_servers_are_started_with_waits_for_a_start(
    fleet: Fleet, admin: Client, change: dict[str, str], told: str
) -> None:
    page = admin.post(EDIT, typed_again(**change), follow=True)
    assert f"Saved. {told}" in page.text or f"Saved. Servers that run {told}" in page.text


def test_a_limit_is_set_and_cleared_without_a_new_revision(fleet: Fleet, operator: Client) -> None:
    operator.post(EDIT, typed_again(idle_s="45", max_connections_per_server="8"))
    changed = Deployment.objects.get(name="chat")
    assert (changed.idle_s, changed.max_connections_per_server, changed.revision) == (45, 8, 1)
    assert 'value="45"' in operator.get(EDIT).text
    operator.post(EDIT, typed_again(max_connections_per_server="8"))
    changed.refresh_from_db()
    assert (changed.idle_s, changed.max_connections_per_server, changed.revision) == (None, 8, 1)
    last = AuditEntry.objects.filter(action="deployment.update").latest("pk")
    assert (last.before, last.after) == ({"idle_s": 45.0}, {"idle_s": None})


def test_a_box_that_is_cleared_is_a_change(fleet: Fleet, operator: Client) -> None:
    fields = typed_again()
    del fields["require_key"]
    operator.post(EDIT, fields)
    assert not Deployment.objects.get(name="chat").require_key


def test_what_running_servers_rely_on_is_refused_at_its_field(fleet: Fleet, operator: Client) -> None:
    answer = operator.post(EDIT, typed_again(model="/models/other"))
    assert answer.status_code == 400
    assert "chat-1, chat-2 run. Stop them first." in answer.text
    assert Deployment.objects.get(name="chat").model == "/models/tiny"


def test_arguments_of_an_admin_survive_an_operators_change(fleet: Fleet, operator: Client) -> None:
    Deployment.objects.update(engine_args=["--max-model-len", "8192"])
    operator.post(EDIT, typed_again(retries="1"))
    changed = Deployment.objects.get(name="chat")
    assert (changed.retries, changed.engine_args) == (1, ["--max-model-len", "8192"])


def test_a_deployment_with_running_servers_is_not_deleted(fleet: Fleet, admin: Client) -> None:
    answer = admin.post("/deployments/chat/delete/", follow=True)
    assert "Stop them, then delete chat" in answer.text
    assert Deployment.objects.filter(name="chat").exists()


def test_the_settings_show_whole_numbers_as_one_types_them(fleet: Fleet, operator: Client) -> None:
    fleet.deployment.ttft_limit_ms = 2000.0
    fleet.deployment.gap_limit_ms = 62.5
    fleet.deployment.save(update_fields=["ttft_limit_ms", "gap_limit_ms"])
    page = operator.get(EDIT).text
    assert 'value="2000"' in page
    assert 'value="62.5"' in page
    assert '.0"' not in page


def test_a_form_that_is_shown_again_says_first_that_nothing_was_changed(fleet: Fleet, operator: Client) -> None:
    page = operator.post(NEW, typed(model="")).text
    assert re.search(r'class="notice notice-bad" role="alert">.*Nothing was changed\.', page)
