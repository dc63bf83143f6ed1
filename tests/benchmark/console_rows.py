"""Fills a fresh database with one split deployment in front of two URLs; prints a session cookie of a viewer.

python -m tests.benchmark.console_rows PREFILL_URL DECODE_URL
"""

import os
import sys
from urllib.parse import urlsplit

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
django.setup()

from django.contrib.sessions.backends.db import SessionStore
from django.core.management import call_command
from django.utils import timezone

from console.accounts.models import Role, User
from console.fleet.models import Deployment, Engine, Host, Pair, Server
from console.fleet.states import PairState, ServerRole, ServerState
from console.gateway.models import Epoch

DEPLOYMENT = "tiny"


def make_server(role: ServerRole, url: str, deployment: Deployment, host: Host) -> Server:
    return Server.objects.create(
        name=f"bench-{role}",
        role=role,
        state=ServerState.READY,
        generation=1,
        api_port=urlsplit(url).port,
        ready_at=timezone.now(),
        max_model_len=8192,
        deployment=deployment,
        host=host,
    )


def make_deployment(prefill_url: str, decode_url: str) -> None:
    host = Host.objects.create(name="bench", address="127.0.0.1", last_seen_at=timezone.now())
    deployment = Deployment.objects.create(
        name=DEPLOYMENT, model=DEPLOYMENT, served_model_name=DEPLOYMENT, engine=Engine.VLLM, require_key=False
    )
    prefill = make_server(ServerRole.PREFILL, prefill_url, deployment, host)
    decode = make_server(ServerRole.DECODE, decode_url, deployment, host)
    Pair.objects.create(
        prefill=prefill, decode=decode, prefill_generation=1, decode_generation=1, state=PairState.VERIFIED
    )
    Epoch.bump()


def session_cookie(user: User) -> str:
    session = SessionStore()
    session["_auth_user_id"] = str(user.pk)
    session["_auth_user_backend"] = "django.contrib.auth.backends.ModelBackend"
    session["_auth_user_hash"] = user.get_session_auth_hash()
    session.create()
    return f"sessionid={session.session_key}"


def main() -> None:
    call_command("migrate", verbosity=0, interactive=False)
    make_deployment(*sys.argv[1:])
    print(session_cookie(User.objects.create_user("vera", role=Role.VIEWER)), end="")


if __name__ == "__main__":
    main()
