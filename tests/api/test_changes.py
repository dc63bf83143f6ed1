"""Changes: rehearsed without effect, all or nothing, and once per Idempotency-Key."""

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from console.accounts import audit
from console.accounts.models import ApiToken, AuditEntry, InferenceKey, Role
from console.api.models import KeptAnswer
from console.fleet.models import Deployment
from console.fleet.signals import deployment_changed
from tests.api.calls import Answer, Api
from tests.factories import make_deployment

pytestmark = pytest.mark.django_db(transaction=True)
KEY = {"Idempotency_Key": "once-1"}


@pytest.fixture
def told() -> Iterator[list[str]]:
    """Names of deployments whose change was heard of after commit."""
    names: list[str] = []

    def hear(deployment: Deployment, **kwargs: Any) -> None:
        transaction.on_commit(lambda: names.append(deployment.name))

    deployment_changed.connect(hear)
    yield names
    deployment_changed.disconnect(hear)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("?dry_run=true", {"name": "laptop"}),
        ("?dry_run=1", {"name": "laptop"}),
        ("", {"name": "laptop", "dry_run": True}),
    ],
)
def test_a_rehearsal_answers_like_the_change_and_changes_nothing(
    path: str, body: dict[str, Any], told: list[str]
) -> None:
    make_deployment("chat")
    answer = Api(Role.OPERATOR).post(f"/deployments/chat/keys{path}", body)
    assert (answer.status, answer.body["name"], answer.body["key"]) == (201, "laptop", None)
    assert (answer.body["dry_run"], answer.headers["Dry-Run"]) == (True, "true")
    assert not InferenceKey.objects.exists()
    assert not AuditEntry.objects.exists()
    assert told == []


def test_the_change_itself_is_heard_of(told: list[str]) -> None:
    make_deployment("chat")
    answer = Api(Role.OPERATOR).post("/deployments/chat/keys", {"name": "laptop", "dry_run": False})
    assert "dry_run" not in answer.body
    assert "Dry-Run" not in answer.headers
    assert told == ["chat"]


def test_a_rehearsal_refuses_what_the_change_would_refuse() -> None:
    make_deployment("chat")
    assert Api(Role.OPERATOR).post("/deployments/chat/keys?dry_run=true", {"name": " "}).status == 400
    assert Api(Role.VIEWER).post("/deployments/chat/keys?dry_run=true", {"name": "x"}).status == 403


@pytest.mark.parametrize(("path", "body"), [("?dry_run=maybe", {"name": "x"}), ("", {"name": "x", "dry_run": "true"})])
def test_an_unclear_dry_run_is_refused_and_not_taken_for_no(path: str, body: dict[str, Any]) -> None:
    make_deployment("chat")
    assert Api(Role.OPERATOR).post(f"/deployments/chat/keys{path}", body).error["field"] == "dry_run"
    assert not InferenceKey.objects.exists()


def test_a_failing_change_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no trail, no change")

    monkeypatch.setattr(audit, "record", fail)
    make_deployment("chat")
    assert Api(Role.OPERATOR).post("/deployments/chat/keys", {"name": "laptop"}, **KEY).status == 500
    assert not InferenceKey.objects.exists()
    assert not KeptAnswer.objects.exists()


def test_the_same_key_and_request_get_the_same_answer_and_change_nothing_again() -> None:
    make_deployment("chat")
    api = Api(Role.OPERATOR)
    first = api.post("/deployments/chat/keys", {"name": "laptop"}, **KEY)
    again = api.post("/deployments/chat/keys", {"name": "laptop"}, **KEY)
    assert (again.status, again.headers["Idempotency-Replayed"]) == (201, "true")
    assert again.body == {**first.body, "key": None}
    assert InferenceKey.objects.count() == 1


def test_what_is_shown_once_is_not_kept_for_a_repetition() -> None:
    make_deployment("chat")
    first = Api(Role.OPERATOR).post("/deployments/chat/keys", {"name": "laptop"}, **KEY)
    assert first.body["key"].startswith("syk-")
    assert first.body["key"] not in KeptAnswer.objects.get().body


def test_the_same_key_for_another_request_is_refused() -> None:
    make_deployment("chat")
    api = Api(Role.OPERATOR)
    api.post("/deployments/chat/keys", {"name": "laptop"}, **KEY)
    answer = api.post("/deployments/chat/keys", {"name": "server"}, **KEY)
    assert (answer.status, answer.error["code"]) == (409, "key_reused")
    assert InferenceKey.objects.count() == 1


def test_keys_of_two_callers_do_not_meet() -> None:
    make_deployment("chat")
    for _ in range(2):
        assert Api(Role.OPERATOR).post("/deployments/chat/keys", {"name": "laptop"}, **KEY).status == 201
    assert InferenceKey.objects.count() == 2


def test_a_refusal_is_not_kept() -> None:
    api = Api(Role.OPERATOR)
    assert api.post("/deployments/chat/keys", {"name": "laptop"}, **KEY).status == 404
    make_deployment("chat")
    assert api.post("/deployments/chat/keys", {"name": "laptop"}, **KEY).status == 201


def test_after_a_day_a_key_is_forgotten() -> None:
    make_deployment("chat")
    api = Api(Role.OPERATOR)
    api.post("/deployments/chat/keys", {"name": "laptop"}, **KEY)
    KeptAnswer.objects.update(created_at=timezone.now() - timedelta(hours=25))
    api.post("/deployments/chat/keys", {"name": "laptop"}, **KEY)
    assert InferenceKey.objects.count() == 2


@pytest.mark.parametrize("key", ["", "x" * 201, "two words"])
def test_a_key_of_the_wrong_form_is_refused(key: str) -> None:
    make_deployment("chat")
    answer = Api(Role.OPERATOR).post("/deployments/chat/keys", {"name": "laptop"}, Idempotency_Key=key)
    assert (answer.status, answer.error["field"]) == (400, "Idempotency-Key")


def test_two_at_once_with_one_key_have_one_effect() -> None:
    make_deployment("chat")
    api, answers, together = Api(Role.OPERATOR), [], threading.Barrier(2)

    def send() -> None:
        together.wait()
        answers.append(api.post("/deployments/chat/keys", {"name": "laptop"}, **KEY))
        connection.close()

    both(send)
    assert [answer.status for answer in answers] == [201, 201]
    assert len({answer.body["id"] for answer in answers}) == 1
    assert sorted(answer.body["key"] is None for answer in answers) == [False, True]
    assert InferenceKey.objects.count() == 1


def test_two_at_once_with_one_key_and_other_requests_have_one_effect() -> None:
    make_deployment("chat")
    api, names, together = Api(Role.OPERATOR), iter(["laptop", "server"]), threading.Barrier(2)
    answers: list[Answer] = []

    def send() -> None:
        name = next(names)
        together.wait()
        answers.append(api.post("/deployments/chat/keys", {"name": name}, **KEY))
        connection.close()

    both(send)
    assert sorted(answer.status for answer in answers) == [201, 409]
    assert InferenceKey.objects.count() == 1


def both(work: Any) -> None:
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_taking_back_a_token_can_be_rehearsed() -> None:
    api = Api(Role.ADMIN)
    token = ApiToken.objects.get()
    answer = api.delete(f"/tokens/{token.pk}?dry_run=true")
    assert (answer.status, answer.body["valid"]) == (200, False)
    assert ApiToken.objects.get().is_valid()
