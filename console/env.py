"""Typed readers for settings that come from the environment."""

import os
from collections.abc import Sequence
from pathlib import Path


class BadSetting(ValueError):
    """An environment variable holds a value that cannot be used; the message names it and what is expected."""


def text(name: str, default: str = "") -> str:
    return os.environ.get(name, "").strip() or default


def secret(name: str) -> str:
    """As given, else what the file named by NAME_FILE holds, so that a password need not stand in the environment."""
    path = text(f"{name}_FILE")
    if (given := text(name)) or not path:
        return given
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting(f"{name}_FILE={path!r} cannot be read: {error}") from error


def number(name: str, default: float) -> float:
    raw = text(name)
    try:
        return float(raw) if raw else default
    except ValueError as error:
        raise BadSetting(f"{name}={raw!r}: expected a number") from error


def integer(name: str, default: int) -> int:
    raw = text(name)
    try:
        return int(raw) if raw else default
    except ValueError as error:
        raise BadSetting(f"{name}={raw!r}: expected a whole number") from error


def flag(name: str, default: bool) -> bool:
    raw = text(name).lower()
    if not raw:
        return default
    if raw in ("1", "true", "yes", "on"):
        return True
    if raw in ("0", "false", "no", "off"):
        return False
    raise BadSetting(f"{name}={raw!r}: expected 1 or 0")


def choice(name: str, default: str, allowed: Sequence[str]) -> str:
    """One of `allowed`, which are in capitals; in whatever letters it was given."""
    raw = text(name, default)
    if raw.upper() not in allowed:
        raise BadSetting(f"{name}={raw!r}: expected {', '.join(allowed[:-1])} or {allowed[-1]}")
    return raw.upper()


def words(name: str) -> list[str]:
    return [word.strip() for word in text(name).split(",") if word.strip()]


def folder(name: str, default: Path) -> Path:
    return Path(text(name, str(default))).expanduser().resolve()
