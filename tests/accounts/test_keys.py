"""Inference keys: made and taken back by operators, and routers hear of both."""

from collections.abc import Iterator
from typing import Any

import pytest

from console.accounts import keys
from console.accounts.models import AuditEntry, InferenceKey, digest
from console.fleet.errors import Forbidden, NotFound
from console.fleet.models import Deployment
from console.fleet.signals import deployment_changed
from tests.factories import OPERATOR, VIEWER, make_deployment

pytestmark = pytest.mark.django_db


@pytest.fixture
def heard() -> Iterator[list[str]]:
    names: list[str] = []

    def hear(deployment: Deployment, **kwargs: Any) -> None:
        names.append(deployment.name)

    deployment_changed.connect(hear)
    yield names
    deployment_changed.disconnect(hear)


def test_a_key_is_stored_as_its_hash_and_routers_hear_of_it(heard: list[str]) -> None:
    deployment = make_deployment("chat")
    key, plain = keys.issue(OPERATOR, deployment.pk, "laptop")
    assert plain.startswith("syk-")
    assert InferenceKey.objects.get().hashed == digest(plain)
    assert key.prefix == plain[:10]
    assert heard == ["chat"]


def test_taking_a_key_back_reaches_routers_and_leaves_one_trace(heard: list[str]) -> None:
    deployment = make_deployment("chat")
    key, _ = keys.issue(OPERATOR, deployment.pk, "laptop")
    for _ in range(2):
        keys.revoke(key.pk, deployment.pk, OPERATOR)
    assert not InferenceKey.objects.get().is_valid()
    assert heard == ["chat", "chat"]
    assert AuditEntry.objects.filter(action="key.revoke", target="deployment chat").count() == 1


def test_a_viewer_neither_makes_nor_takes_back_keys() -> None:
    deployment = make_deployment()
    key, _ = keys.issue(OPERATOR, deployment.pk, "laptop")
    with pytest.raises(Forbidden):
        keys.issue(VIEWER, deployment.pk, "more")
    with pytest.raises(Forbidden):
        keys.revoke(key.pk, deployment.pk, VIEWER)
    assert InferenceKey.objects.get().is_valid()


def test_a_key_of_another_deployment_is_not_found() -> None:
    key, _ = keys.issue(OPERATOR, make_deployment().pk, "laptop")
    with pytest.raises(NotFound):
        keys.revoke(key.pk, make_deployment().pk, OPERATOR)


def test_a_key_for_nothing_is_not_made() -> None:
    with pytest.raises(NotFound):
        keys.issue(OPERATOR, 999, "laptop")
