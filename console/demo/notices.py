"""What a person who has just started a console should know: that nobody can log in yet, that its broker is away."""

import os
import shlex
import sys
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import redis

from console import env
from console.accounts.models import User
from console.database import Away
from console.demo.supervise import CannotRun
from console.demo.up import MANAGE
from console.launch.joining import shown

BROKER_TIMEOUT_S = 2.0


def of_broker(url: str) -> str:
    """Empty when it answers."""
    if trouble := _why_no_answer(url):
        return (
            f"{trouble} Requests are routed without it. Until it answers no server starts, stops or moves, no host "
            "joins or is heard, and charts and the list of requests stand still. Nothing has to be started again then."
        )
    return ""


def refuse_absent_broker(url: str) -> None:
    """For a run whose first step is to launch servers. Raises CannotRun."""
    if trouble := _why_no_answer(url):
        raise CannotRun(
            f"{trouble} Without it no server can be launched. Start it, correct REDIS_URL, or unset it: then an "
            "embedded Valkey is started."
        )


def _why_no_answer(url: str) -> str:
    """Empty when it answers. Names it without its password."""
    client = redis.Redis.from_url(url, socket_connect_timeout=BROKER_TIMEOUT_S, socket_timeout=BROKER_TIMEOUT_S)
    try:
        client.ping()
    except (redis.RedisError, OSError) as error:
        address = shown(url) if urlsplit(url).hostname else f"unix://{urlsplit(url).path}"
        return f"The broker that REDIS_URL names, {address}, does not answer: {str(error).rstrip('.')}."
    finally:
        client.close()
    return ""


def of_people() -> str:
    """Empty when there is one, or nobody knows."""
    with suppress(*Away):
        if not User.objects.exists():
            return f"Nobody can log in yet. Make the first account, in another terminal: {_createperson()}"
    return ""


def _createperson() -> str:
    """To be copied: another terminal has not the settings of this one. An address with a password is not shown."""
    words = [_path(sys.executable), _path(MANAGE), "createperson", "NAME", "--role", "admin"]
    if folder := env.text("DATA_DIR"):
        words.insert(0, f"DATA_DIR={Path(folder).expanduser().absolute()}")
    return shlex.join(words) + ("   (with DATABASE_URL as here)" if env.secret("DATABASE_URL") else "")


def _path(path: str) -> str:
    """As short as it can be written here."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
