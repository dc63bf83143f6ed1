"""Which pages may open a socket."""

import pytest
from pytest_django import Settings

from console.live.origin import allowed


def asks(origin: str | None, host: str = "localhost:8000") -> bool:
    headers = [(b"host", host.encode())]
    if origin is not None:
        headers.append((b"origin", origin.encode()))
    return allowed(headers)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://localhost:8000", "localhost:8000"),
        ("http://127.0.0.1:8000", "127.0.0.1:8000"),
        ("http://[::1]:8000", "[::1]:8000"),
    ],
)
def test_our_own_pages_may(origin: str, host: str) -> None:
    assert asks(origin, host)


@pytest.mark.parametrize(
    "origin",
    [
        None,
        "",
        "null",
        "https://evil.example",
        "http://localhost:9000",
        "http://localhost.evil.example:8000",
        "http://evil.example/localhost:8000",
    ],
)
def test_other_pages_may_not(origin: str | None) -> None:
    assert not asks(origin)


def test_a_foreign_name_that_points_to_us_may_not() -> None:
    assert not asks("http://evil.example:8000", "evil.example:8000")


def test_the_public_address_may_behind_a_proxy_that_changes_the_host(settings: Settings) -> None:
    settings.PUBLIC_URL = "https://switchyard.example"
    assert asks("https://switchyard.example", "10.0.0.5:8000")
    assert not asks("https://other.example", "10.0.0.5:8000")
