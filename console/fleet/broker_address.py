"""The broker's address as a host that joins will reach it. A loopback address is of use to this machine only."""

from urllib.parse import SplitResult, urlsplit, urlunsplit

from django.conf import settings

from console.embedded import EVERYWHERE
from console.fleet.errors import Conflict
from console.launch import network


class BrokerNotOpen(Conflict):
    code = "broker_not_open"


def for_caller(caller: str, console_name: str, with_login: bool) -> str:
    """`caller`: the address that asks; `console_name`: the name by which it reached the console.

    `with_login`: with the console's own user and password. Raises BrokerNotOpen.
    """
    if settings.BROKER_PUBLIC_URL:
        public = urlsplit(settings.BROKER_PUBLIC_URL)
        return _built(public, public.hostname or "", with_login)
    own = urlsplit(settings.REDIS_URL)
    if own.scheme != "unix" and (not network.is_loopback(own.hostname or "") or _is_this_machine(caller)):
        return _built(own, own.hostname or "", with_login)
    if own.scheme != "unix" and settings.VALKEY_BIND:
        bound = settings.VALKEY_BIND
        return _built(own, console_name if bound in EVERYWHERE else bound, with_login)
    raise BrokerNotOpen(
        "The console's broker listens on its own machine only, so no other machine can join. Start the console with "
        "`.venv/bin/python manage.py up --bind ADDRESS` (its address in the network of the hosts), or give it a Redis "
        "or Valkey that hosts can reach as REDIS_URL or BROKER_PUBLIC_URL."
    )


def is_open_to_others() -> bool:
    """Whether a host on another machine would get an address at all."""
    own = urlsplit(settings.REDIS_URL)
    is_local = own.scheme == "unix" or network.is_loopback(own.hostname or "")
    return bool(settings.BROKER_PUBLIC_URL or not is_local or (settings.VALKEY_BIND and own.scheme != "unix"))


def _built(address: SplitResult, host: str, with_login: bool) -> str:
    login = ""
    if with_login:
        known = address.netloc if "@" in address.netloc else urlsplit(settings.REDIS_URL).netloc
        login = f"{known.rpartition('@')[0]}@" if "@" in known else ""
    shown = f"[{host}]" if ":" in host else host
    return urlunsplit((address.scheme, f"{login}{shown}:{address.port or 6379}", address.path, "", ""))


def _is_this_machine(caller: str) -> bool:
    return network.is_loopback(caller) or any(caller in card["addresses"] for card in network.nics())
