"""Which web pages may open a socket. A browser sends the page's origin; other pages must not ride on a login."""

from collections.abc import Iterable
from urllib.parse import urlsplit

from django.conf import settings
from django.http.request import split_domain_port, validate_host

Headers = Iterable[tuple[bytes, bytes]]


def allowed(headers: Headers) -> bool:
    """The origin is the very host that was asked (and a name of ours), or PUBLIC_URL. No origin: refused."""
    found = {name.lower(): value.decode("latin-1") for name, value in headers}
    origin, host = found.get(b"origin", ""), found.get(b"host", "")
    if not origin:
        return False
    if settings.PUBLIC_URL and origin == settings.PUBLIC_URL.rstrip("/"):
        return True
    domain, _ = split_domain_port(host)
    return bool(domain) and urlsplit(origin).netloc == host and validate_host(domain, settings.ALLOWED_HOSTS)
