"""The one command that joins a host."""

import shlex
from urllib.parse import urlsplit, urlunsplit

from django.conf import settings

HIDDEN = "••••••"


def agent_command(name: str = "gpu01", masked: bool = True) -> str:
    """Ready to paste on the host. `masked`: the broker's password is covered."""
    broker = masked_address(settings.REDIS_URL) if masked else settings.REDIS_URL
    shown = f"'{broker}'" if masked else shlex.quote(broker)
    return f"python manage.py agent --name {shlex.quote(name)} --broker {shown}"


def masked_address(url: str) -> str:
    parts = urlsplit(url)
    if not parts.password:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", f":{HIDDEN}@")))


def is_loopback(url: str) -> bool:
    """A host that is another machine cannot reach this address."""
    return (urlsplit(url).hostname or "") in ("localhost", "::1") or (urlsplit(url).hostname or "").startswith("127.")
