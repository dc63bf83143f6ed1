"""Fills a fresh database with a large fleet that is ready; prints a session cookie of a viewer.

python -m tests.benchmark.scale_rows HOSTS GPUS_EACH SERVERS_EACH
"""

import os
import sys

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
django.setup()

from django.core.management import call_command
from django.utils import timezone

from console.accounts.models import Role, User
from console.fleet.models import Deployment, Engine, Gpu, Host, Pair, Server
from console.fleet.states import PairState, ServerRole, ServerState
from console.gateway.models import Epoch
from tests.benchmark.console_rows import session_cookie
from tests.benchmark.scale_reports import DEPLOYMENT, host_name

PREFILL_SHARE, DECODE_SHARE = 0.1, 0.15
"""Of all servers; the rest is plain. Every prefill server makes a pair with every decode server."""


def role_of(number: int, count: int) -> ServerRole:
    if number < PREFILL_SHARE * count:
        return ServerRole.PREFILL
    return ServerRole.DECODE if number < (PREFILL_SHARE + DECODE_SHARE) * count else ServerRole.PLAIN


def make_fleet(hosts: int, gpus_each: int, servers_each: int) -> None:
    now, per_server = timezone.now(), gpus_each // servers_each
    rows = Host.objects.bulk_create(
        Host(name=host_name(n), address="127.0.0.1", last_seen_at=now, agent_started_at=1.0) for n in range(hosts)
    )
    Gpu.objects.bulk_create(Gpu(host=host, index=n, model_name="GPU") for host in rows for n in range(gpus_each))
    deployment = Deployment.objects.create(
        name=DEPLOYMENT, model=DEPLOYMENT, served_model_name=DEPLOYMENT, engine=Engine.SIMULATED
    )
    places = [(host, slot) for host in rows for slot in range(servers_each)]
    servers = Server.objects.bulk_create(
        Server(
            name=f"{DEPLOYMENT}-{n}",
            role=role_of(n, len(places)),
            state=ServerState.READY,
            generation=1,
            api_port=21000 + 10 * slot,
            gpu_indexes=list(range(slot * per_server, (slot + 1) * per_server)),
            ready_at=now,
            started_at=now,
            deployment=deployment,
            host=host,
        )
        for n, (host, slot) in enumerate(places)
    )
    Pair.objects.bulk_create(
        Pair(prefill=prefill, decode=decode, prefill_generation=1, decode_generation=1, state=PairState.VERIFIED)
        for prefill in servers
        if prefill.role == ServerRole.PREFILL
        for decode in servers
        if decode.role == ServerRole.DECODE
    )
    Epoch.bump()


def main() -> None:
    call_command("migrate", verbosity=0, interactive=False)
    hosts, gpus_each, servers_each = map(int, sys.argv[1:])
    make_fleet(hosts, gpus_each, servers_each)
    print(session_cookie(User.objects.create_user("vera", role=Role.VIEWER)), end="")


if __name__ == "__main__":
    main()
