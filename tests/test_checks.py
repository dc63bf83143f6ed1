"""System checks: each setting that one can get wrong is named, with a hint."""

from pathlib import Path
from typing import Any

import pytest
from django.core.checks import CheckMessage, run_checks
from django.test import override_settings

from console.checks import check_settings
from console.gateway.management.commands import web


def found(**settings: Any) -> dict[str | None, CheckMessage]:
    with override_settings(**settings):
        return {message.id: message for message in check_settings(None)}


def test_the_defaults_raise_no_error() -> None:
    assert [message for message in found().values() if message.is_serious()] == []


def test_the_web_process_looks_at_them_too_before_it_listens() -> None:
    with override_settings(SECRET_KEY="short"):
        assert "switchyard.E001" in {message.id for message in run_checks(tags=web.Command.requires_system_checks)}


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"SECRET_KEY": "short"}, "switchyard.E001"),
        ({"PUBLIC_URL": "switchyard.example.org"}, "switchyard.E002"),
        ({"PUBLIC_URL": "https://switchyard.example.org/console"}, "switchyard.E002"),
        ({"ALLOWED_HOSTS": ["*"]}, "switchyard.W003"),
        ({"PUBLIC_URL": "https://switchyard.example.org"}, "switchyard.E004"),
        ({"REDIS_URL": "127.0.0.1:6379"}, "switchyard.E005"),
        ({"REDIS_PREFIX": "a:b"}, "switchyard.E006"),
        ({"BROKER_PUBLIC_URL": "broker.example.org:6379"}, "switchyard.E012"),
        ({"VALKEY_BIND": "eth0"}, "switchyard.E013"),
        ({"TICK_EVERY_S": 0.0}, "switchyard.E007"),
        ({"HOST_UNREACHABLE_AFTER_S": 3.0}, "switchyard.E008"),
        ({"RECORDS_KEPT_DAYS": 0}, "switchyard.E009"),
        ({"NODE_MODULES": Path("/nowhere")}, "switchyard.W010"),
        ({"DEBUG": True, "PUBLIC_URL": "https://localhost"}, "switchyard.W011"),
    ],
)
def test_a_wrong_setting_is_named_with_a_hint(settings: dict[str, Any], name: str) -> None:
    message = found(**settings)[name]
    assert message.hint


@pytest.mark.parametrize("allowed", [["switchyard.example.org"], [".example.org"], ["*"]])
def test_a_public_address_that_is_allowed_is_fine(allowed: list[str]) -> None:
    assert "switchyard.E004" not in found(PUBLIC_URL="https://switchyard.example.org", ALLOWED_HOSTS=allowed)
