"""`postgres://user:password@host:port/name?parameter=value`, each part percent-encoded, as Django's settings.

The parameters are those of PostgreSQL's own client library, libpq, such as `sslmode=require`. No message tells a value:
some are passwords.
"""

from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from console.env import BadSetting

CONNECT_TIMEOUT_S = 5
"""A database that does not even refuse must not hold up pages for minutes."""


def connection(url: str) -> dict[str, Any]:
    """A parameter goes before the part of the address that says the same, as in libpq. Raises BadSetting."""
    parts = _split(url)
    options = {"connect_timeout": str(CONNECT_TIMEOUT_S), **_parameters(parts.query)}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": options.pop("dbname", unquote(parts.path.lstrip("/"))),
        "USER": options.pop("user", unquote(parts.username or "")),
        "PASSWORD": options.pop("password", unquote(parts.password or "")),
        "HOST": options.pop("host", unquote(parts.hostname or "")),
        "PORT": options.pop("port", str(parts.port or "")),
        "OPTIONS": options,
        "CONN_MAX_AGE": 0,
        "CONN_HEALTH_CHECKS": True,
    }


def _split(url: str) -> SplitResult:
    """With the name of a database, and a port that is a number if any."""
    try:
        parts = urlsplit(url)
        has_port = parts.port != 0
    except ValueError as error:
        raise _not_one() from error
    # What follows a bare # would be lost.
    if has_port and parts.scheme in ("postgres", "postgresql") and parts.path.strip("/") and not parts.fragment:
        return parts
    raise _not_one()


def _not_one() -> BadSetting:
    return BadSetting(
        "DATABASE_URL: expected postgres://user:password@host:port/name, or nothing for SQLite. In a password "
        "write %2F for /, %40 for @, %25 for % and the like"
    )


def _parameters(query: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in query.split("&") if pair]
    found = {unquote(name): unquote(value) for name, _, value in pairs}
    if unknown := sorted(found.keys() - _libpq_names()) if found else []:
        raise BadSetting(
            f"DATABASE_URL: PostgreSQL knows no parameter {', '.join(map(repr, unknown))}. Use the names of its "
            "connection strings, such as sslmode=require"
        )
    for name, value in found.items():
        if name in ("connect_timeout", "port") and not value.isdecimal():
            raise BadSetting(f"DATABASE_URL: the parameter {name!r} must be a whole number")
    if empty := [unquote(name) for name, equals, _ in pairs if not equals]:
        raise BadSetting(f"DATABASE_URL: the parameter {empty[0]!r} has no value: write {empty[0]}=…")
    return found


def _libpq_names() -> set[str]:
    from psycopg.pq import Conninfo  # Here, because with SQLite it need not be installed.

    return {option.keyword.decode() for option in Conninfo.parse(b"")}
