"""Joining with a join token: the host asks the console once, and keeps what it gets in its state folder.

The agent makes its secret itself and sends only the hash, so that the secret is never on the way and a lost answer can
be asked for again.
"""

import hashlib
import json
import os
import secrets
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import httpx

from console.launch.joining import CannotJoin, LoginRefused, check_broker

FILE = "join.json"
ASK_TIMEOUT_S = 10.0
ATTEMPTS = 3
BETWEEN_ATTEMPTS_S = 1.0
LOGIN_WAIT_S = 10.0
NEW_TOKEN = (
    "Make a join token on the console's page that adds a host, and start the agent with the command shown there."
)


@dataclass(frozen=True, slots=True)
class Credential:
    """`broker` is empty until the console has answered. With an own login its user is `username`."""

    secret: str
    broker: str = ""
    username: str = ""
    prefix: str = ""

    @property
    def url(self) -> str:
        if not self.username:
            return self.broker
        parts = urlsplit(self.broker)
        login = f"{quote(self.username, safe='')}:{quote(self.secret, safe='')}"
        return urlunsplit(parts._replace(netloc=f"{login}@{parts.netloc}"))

    @property
    def hashed(self) -> str:
        return hashlib.sha256(self.secret.encode()).hexdigest()


class Kept:
    """The credential in a host's state folder, readable by its owner only."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / FILE

    def read(self) -> Credential | None:
        """None before the host has joined. Raises CannotJoin for a file that cannot be understood."""
        try:
            return Credential(**json.loads(self.path.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise CannotJoin(f"{self.path} cannot be read: {error}. Delete it. {NEW_TOKEN}") from error

    def write(self, credential: Credential) -> None:
        """Whole or not at all. Raises OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = self.path.with_suffix(".new")
        temporary.unlink(missing_ok=True)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(asdict(credential), file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)

    def put_back(self, known: Credential | None) -> None:
        """As before the console refused."""
        if known is None:
            self.path.unlink(missing_ok=True)
        else:
            self.write(known)


def settle(state_dir: Path, name: str, console: str, token: str) -> tuple[Credential, str] | None:
    """How this host reaches the broker, and a warning to show; None: it has not joined and nobody asks it to.

    What was kept goes first, so that a restart needs neither token nor console. Raises CannotJoin.
    """
    kept = Kept(state_dir)
    known = asking = kept.read()
    if bool(console) != bool(token):
        raise CannotJoin(f"--console and --token belong together. {NEW_TOKEN}")
    if known and known.broker:
        try:
            _check_login(known, name, wait_s=0.0 if console else LOGIN_WAIT_S)
        except CannotJoin as error:
            if not console:
                raise
            asking = None if isinstance(error, LoginRefused) else known
        else:
            return known, ""
    if not console:
        return None
    asking = asking or Credential(secret=secrets.token_urlsafe(32))
    # On disk before the console hears of it, so that a lost answer can be asked for again.
    kept.write(asking)
    try:
        answer = ask(console, token, name, asking.hashed)
    except Refused:
        kept.put_back(known)
        if known is None or not known.broker:
            raise
        # A used token in a start-up script, and a broker that has forgotten the login for a moment.
        with suppress(CannotJoin):
            _check_login(known, name, LOGIN_WAIT_S)
            return known, ""
        raise
    found = replace(asking, broker=answer["broker"], username=answer["username"], prefix=answer["prefix"])
    kept.write(found)
    check_broker(found.url)
    return found, answer["warning"]


def _check_login(known: Credential, name: str, wait_s: float) -> None:
    """A broker that has restarted knows no login until the console has made it again. Raises CannotJoin."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return check_broker(known.url, if_refused=_revoked(name))
        except LoginRefused:
            if time.monotonic() >= deadline:
                raise
            time.sleep(BETWEEN_ATTEMPTS_S)


class Refused(CannotJoin):
    """The console answered, and the answer is no."""


def ask(console: str, token: str, name: str, hashed: str) -> dict[str, Any]:
    """Some attempts, since asking twice does no harm. Raises CannotJoin, and Refused when the console says no."""
    parts = urlsplit(console)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Refused(f"--console {console}: expected an address such as http://console:8000. {NEW_TOKEN}")
    for attempt in range(ATTEMPTS):
        try:
            response = _post(f"{parts.scheme}://{parts.netloc}/api/join", token, name, hashed)
        except httpx.HTTPError as error:
            if attempt == ATTEMPTS - 1:
                raise CannotJoin(_unreachable(console, error)) from error
        else:
            if response.status_code != 503 or attempt == ATTEMPTS - 1:
                return _understood(console, response)
        time.sleep(BETWEEN_ATTEMPTS_S)
    raise AssertionError("the last attempt answers or raises")


def _post(url: str, token: str, name: str, hashed: str) -> httpx.Response:
    body = {"name": name, "secret_sha256": hashed}
    return httpx.post(url, json=body, headers={"Authorization": f"Bearer {token}"}, timeout=ASK_TIMEOUT_S)


def _understood(console: str, response: httpx.Response) -> dict[str, Any]:
    try:
        body = response.json()
        if response.status_code == 200:
            return {field: str(body[field]) for field in ("broker", "username", "prefix", "warning")}
        message = str(body["error"]["message"])
    except (ValueError, KeyError, TypeError) as error:
        raise Refused(_not_a_console(console, response)) from error
    if response.status_code == 503:
        raise CannotJoin(message)
    raise Refused(message)


def _not_a_console(console: str, response: httpx.Response) -> str:
    return f"What answers at {console} (with status {response.status_code}) is no Switchyard. Copy the whole command."


def _unreachable(console: str, error: Exception) -> str:
    return (
        f"The console at {console} cannot be reached: {error or type(error).__name__}. Check that it runs, that it "
        "listens on this address for other machines (HOST), and that no firewall is in between."
    )


def _revoked(name: str) -> str:
    return f"The broker does not take the login of host {name} any more: the console has revoked it. {NEW_TOKEN}"
