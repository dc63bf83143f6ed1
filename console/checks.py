"""System checks: one for each setting that one can get wrong, with a hint that says what to do."""

from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register

MIN_SECRET_LENGTH = 32
NPM_FOLDERS = ("@tabler/core/dist", "uplot/dist", "sortablejs/modular")


OF_SETTINGS = "settings"


@register(OF_SETTINGS)
def check_settings(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    checks = (_secret, _public_url, _allowed_hosts, _redis, _tempo, _records, _npm_packages, _debug)
    return [message for check in checks for message in check()]


def _secret() -> Iterator[CheckMessage]:
    if len(settings.SECRET_KEY) < MIN_SECRET_LENGTH:
        yield Error(
            f"SECRET_KEY is shorter than {MIN_SECRET_LENGTH} characters: logins could be forged.",
            hint="Leave SECRET_KEY unset, and one is made and kept in DATA_DIR; or give a long random value.",
            id="switchyard.E001",
        )


def _public_url() -> Iterator[CheckMessage]:
    if not settings.PUBLIC_URL:
        return
    parts = urlsplit(settings.PUBLIC_URL)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
        yield Error(
            f"PUBLIC_URL={settings.PUBLIC_URL!r} is not the address of a site.",
            hint="Give scheme and host as browsers see them, without a path: https://switchyard.example.org",
            id="switchyard.E002",
        )


def _allowed_hosts() -> Iterator[CheckMessage]:
    if "*" in settings.ALLOWED_HOSTS:
        yield Warning(
            "ALLOWED_HOSTS takes any host name: a page elsewhere can make a browser speak to this console.",
            hint="List the names people use: ALLOWED_HOSTS=switchyard.example.org,127.0.0.1",
            id="switchyard.W003",
        )
    name = urlsplit(settings.PUBLIC_URL).hostname
    if name and not _covers(settings.ALLOWED_HOSTS, name):
        yield Error(
            f"PUBLIC_URL names {name}, which ALLOWED_HOSTS does not allow: every page would answer 400.",
            hint=f"Add it: ALLOWED_HOSTS={name},127.0.0.1",
            id="switchyard.E004",
        )


def _covers(allowed: list[str], name: str) -> bool:
    return any(entry in ("*", name) or (entry.startswith(".") and f".{name}".endswith(entry)) for entry in allowed)


def _redis() -> Iterator[CheckMessage]:
    if not _is_broker(settings.REDIS_URL):
        yield Error(
            "REDIS_URL is not the address of a Redis or Valkey.",
            hint="Give redis://:password@host:6379/0, with %2F for / and the like in a password, or leave it unset to "
            "start an embedded Valkey.",
            id="switchyard.E005",
        )
    public = urlsplit(settings.BROKER_PUBLIC_URL)
    if settings.BROKER_PUBLIC_URL and (public.scheme not in ("redis", "rediss") or not public.hostname):
        yield Error(
            "BROKER_PUBLIC_URL is not the address of a Redis or Valkey: no host could join.",
            hint="Give the address by which hosts reach the broker: redis://broker.example.org:6379/0",
            id="switchyard.E012",
        )
    if settings.VALKEY_BIND and not _is_address(settings.VALKEY_BIND):
        yield Error(
            f"VALKEY_BIND={settings.VALKEY_BIND!r} is not an address on which a program can listen.",
            hint="Give this machine's address in the network of the hosts, such as 10.0.0.5, or 0.0.0.0 for all.",
            id="switchyard.E013",
        )
    if not settings.REDIS_PREFIX.replace("-", "").replace("_", "").isalnum():
        yield Error(
            f"REDIS_PREFIX={settings.REDIS_PREFIX!r} holds characters that part the names of keys.",
            hint="Use letters, digits, hyphens and underscores, for example REDIS_PREFIX=switchyard",
            id="switchyard.E006",
        )


def _is_broker(url: str) -> bool:
    try:
        parts = urlsplit(url)
        has_port = parts.port != 0
    except ValueError:
        return False
    return has_port and parts.scheme in ("redis", "rediss", "unix") and bool(parts.hostname or parts.path)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return text == "*"
    return True


def _tempo() -> Iterator[CheckMessage]:
    for name in ("AGENT_REPORT_EVERY_S", "HOST_UNREACHABLE_AFTER_S", "TICK_EVERY_S"):
        if getattr(settings, name) <= 0:
            yield Error(
                f"{name} must be more than 0 seconds.",
                hint=f"Leave {name} unset for its default.",
                id="switchyard.E007",
            )
    if settings.HOST_UNREACHABLE_AFTER_S < 2 * settings.AGENT_REPORT_EVERY_S:
        yield Error(
            "HOST_UNREACHABLE_AFTER_S is less than two reports of an agent: one late report would lose a host.",
            hint="Set HOST_UNREACHABLE_AFTER_S to at least twice AGENT_REPORT_EVERY_S.",
            id="switchyard.E008",
        )


def _records() -> Iterator[CheckMessage]:
    if settings.RECORDS_KEPT_DAYS < 1:
        yield Error(
            "RECORDS_KEPT_DAYS is less than 1: finished requests would be deleted at once.",
            hint="Set RECORDS_KEPT_DAYS to the number of days for which requests are kept, 14 by default.",
            id="switchyard.E009",
        )


def _npm_packages() -> Iterator[CheckMessage]:
    missing = [folder for folder in NPM_FOLDERS if not (settings.NODE_MODULES / folder).is_dir()]
    if missing:
        yield Warning(
            f"Pages would have no style and no charts: {', '.join(missing)} not found in {settings.NODE_MODULES}.",
            hint="Run `npm ci`, or set NODE_MODULES to the folder that holds the packages.",
            id="switchyard.W010",
        )


def _debug() -> Iterator[CheckMessage]:
    if settings.DEBUG and settings.PUBLIC_URL:
        yield Warning(
            "DEBUG is on for a site with a PUBLIC_URL: error pages show settings and source to everyone.",
            hint="Unset DEBUG.",
            id="switchyard.W011",
        )
