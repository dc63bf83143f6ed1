"""What tokens and inference keys have in common: how they are named and how long they last."""

from datetime import datetime, timedelta
from typing import NamedTuple

from django.utils import timezone

from console.fleet.errors import Invalid

MAX_NAME = 80
MAX_DAYS = 3650


class Terms(NamedTuple):
    """A checked name and the moment from which on the secret no longer works; None: it never expires."""

    name: str
    expires_at: datetime | None


def terms(name: str, expires_in_days: int | None) -> Terms:
    """Raises Invalid for an empty or too long name and for a life outside 1 to 3650 days."""
    name = name.strip()
    if not name or len(name) > MAX_NAME:
        raise Invalid(f"Give it a name of 1 to {MAX_NAME} characters, so that you can tell it from others.", "name")
    if "\0" in name:
        raise Invalid("A name cannot contain a NUL character.", "name")
    if expires_in_days is None:
        return Terms(name, None)
    if not 1 <= expires_in_days <= MAX_DAYS:
        raise Invalid(f"Choose 1 to {MAX_DAYS} days, or none for a life without end.", "expires_in_days")
    return Terms(name, timezone.now() + timedelta(days=expires_in_days))
