"""The one command that joins a host, and what can keep another machine from using it."""

import shlex
from urllib.parse import urlsplit

from django.conf import settings
from django.http import HttpRequest

from console import valkey
from console.fleet import broker_address
from console.launch import logins, network

HIDDEN_TOKEN = "syj-…"


def agent_command(request: HttpRequest, token: str = HIDDEN_TOKEN, name: str = "") -> str:
    """Ready to paste on the machine, but for a token that is shown once only."""
    given = token if token == HIDDEN_TOKEN else shlex.quote(token)
    return f"python manage.py agent --name {name or 'gpu01'} --console {console_address(request)} --token {given}"


def console_address(request: HttpRequest) -> str:
    return str(settings.PUBLIC_URL).rstrip("/") or f"{request.scheme}://{request.get_host()}"


def is_for_this_machine_only(request: HttpRequest) -> bool:
    """Another machine would not reach the console by that address, or not the broker."""
    console = urlsplit(console_address(request)).hostname or ""
    return network.is_loopback(console) or not broker_address.is_open_to_others()


def hosts_share_a_login() -> bool:
    """The broker keeps no logins for us. While it does not answer nobody knows, and nobody joins."""
    try:
        return not logins.are_possible()
    except valkey.Down:
        return False
