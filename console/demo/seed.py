"""Fills a running console for the demo, by the same calls that the pages make; may be run again on what it left."""

import contextlib
import json
import os
import secrets
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import cycle
from pathlib import Path
from typing import NamedTuple, TypedDict, TypeVar

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from console.accounts import people
from console.accounts.audit import Actor, person
from console.accounts.models import ApiToken, InferenceKey, Role, User, digest
from console.demo.plans import Plan
from console.fleet import actions
from console.fleet.errors import Conflict
from console.fleet.models import Deployment, Host, Pair, Server
from console.fleet.states import AT_REST, PairState, ServerRole, ServerState
from console.gateway import loads
from console.gateway.models import Epoch
from console.gateway.publish import changed

USERNAME = "admin"
SECRET_NAME = "demo"
POLL_S = 0.2
HOST_LIMIT_S = 120.0
ROUTERS_LIMIT_S = 120.0


T = TypeVar("T")


class SeedFailed(Exception):
    """The message is for the person at the terminal."""


class DemoFile(TypedDict):
    """`demo.json`: everything that a script needs to use the demo. Mode 600."""

    url: str
    username: str
    password: str
    api_token: str
    inference_key: str
    deployment: str
    model: str
    engine: str


class Known(NamedTuple):
    """What the file of an earlier filling says. What still opens its door stays: people and scripts use it."""

    password: str = ""
    api_token: str = ""
    inference_key: str = ""


def seed(plan: Plan, host_names: Sequence[str], since: float | None, url: str, known: Known) -> DemoFile:
    """Returns once the deployment serves. `since`: Unix time after which the hosts' agents started; None: it is not
    known, and a report that comes from now on will do.

    Raises SeedFailed.
    """
    user, password = ensure_admin(known.password)
    actor = person(user)
    begun_at = timezone.now()
    hosts = [wait_for_host(name, since, begun_at) for name in host_names]
    deployment, is_new = ensure_deployment(plan, actor, hosts)
    wait_until_it_serves(deployment, actor, plan.ready_limit_s, may_lack_some=not is_new)
    demo: DemoFile = {
        "url": url,
        "username": user.username,
        "password": password,
        "api_token": still_valid(user.tokens.all(), known.api_token) or fresh_token(user),
        "inference_key": still_valid(deployment.inference_keys.all(), known.inference_key) or fresh_key(deployment),
        "deployment": deployment.name,
        "model": deployment.served_model_name,
        "engine": deployment.engine,
    }
    wait_until_routers_serve(Epoch.current())
    return demo


def ensure_admin(known_password: str) -> tuple[User, str]:
    """With the password of the last run when it still opens the door, else with a new one."""
    user = User.objects.filter(username=USERNAME).first()
    if user is not None and known_password and user.check_password(known_password):
        return user, known_password
    password = secrets.token_urlsafe(12)
    if user is None:
        return people.create(people.COMMAND_LINE, USERNAME, password, Role.ADMIN), password
    return people.change(people.COMMAND_LINE, USERNAME, password=password), password


def wait_for_host(name: str, since: float | None, begun_at: datetime) -> Host:
    """Once it has reported by its present agent: until then its servers' rows tell of an earlier run."""
    is_present = Q(last_seen_at__gte=begun_at) if since is None else Q(agent_started_at__gte=since)

    def find() -> Host | None:
        host = Host.objects.filter(is_present, name=name).first()
        return host if host is not None and host.is_reachable and host.address else None

    return _wait_for(find, HOST_LIMIT_S, lambda: f"The agent of host {name} did not report. Read its log.")


@transaction.atomic
def ensure_deployment(plan: Plan, actor: Actor, hosts: Sequence[Host]) -> tuple[Deployment, bool]:
    """True when it was made just now, whole or not at all; its servers go to the hosts in turn.

    One that is there stays as it is: people may have changed it on purpose.
    """
    deployment = Deployment.objects.filter(name=plan.deployment["name"]).first()
    if deployment is not None and deployment.servers.exists():
        return deployment, False
    deployment = deployment or actions.create_deployment(actor, plan.deployment)
    for (role, gpus), host in zip(plan.servers, cycle(hosts), strict=False):
        actions.add_server(actor, deployment_id=deployment.pk, host_id=host.pk, role=role, gpu_indexes=list(gpus))
    return deployment, True


def wait_until_it_serves(deployment: Deployment, actor: Actor, limit_s: float, may_lack_some: bool) -> None:
    """Starts what has to be started and waits until it takes traffic. Raises SeedFailed.

    `may_lack_some`: of a deployment that people have worked on, one ready server is enough.
    """
    tried: set[int] = set()

    def look() -> bool | None:
        servers = list(deployment.servers.all())
        for server in to_start(servers):
            if server.pk not in tried:
                tried.add(server.pk)
                with contextlib.suppress(Conflict):  # somebody else starts or moves it
                    actions.start(server.pk, actor, reason="the demo starts")
                return None
        failed = [server for server in servers if server.state == ServerState.FAILED]
        up = [server for server in servers if server.state not in AT_REST]
        if failed and not (may_lack_some and up):
            raise SeedFailed("\n".join(_what_failed(server) for server in failed))
        return (all(map(_serves, up)) and _all_pairs_verified(up)) or None

    _wait_for(look, limit_s, lambda: f"Not ready within {limit_s:.0f} s: {_what_is_missing(deployment)}")


def wait_until_routers_serve(epoch: int) -> None:
    """Whoever is told that the demo is ready finds all of it served. Raises SeedFailed."""

    def look() -> bool | None:
        epochs = [router.epoch for router in loads.routers()]
        return (bool(epochs) and min(epochs) >= epoch) or None

    _wait_for(look, ROUTERS_LIMIT_S, lambda: "No router serves the demo's servers. Read the log of the web process.")


def to_start(servers: Sequence[Server]) -> list[Server]:
    """Those that never ran or that ended with the last demo; all when none is up. What people stopped stays stopped."""
    resting = [server for server in servers if server.state in AT_REST]
    wanted = [server for server in resting if server.state == ServerState.FAILED or server.generation == 0]
    return resting if len(resting) == len(servers) else wanted


def _serves(server: Server) -> bool:
    return server.state == ServerState.READY and bool(server.observed.get("alive"))


def _all_pairs_verified(servers: Sequence[Server]) -> bool:
    roles = [server.role for server in servers]
    wanted = roles.count(ServerRole.PREFILL) * roles.count(ServerRole.DECODE)
    pairs = Pair.objects.filter(state=PairState.VERIFIED, prefill__in=servers).select_related("prefill", "decode")
    return sum(pair.is_current for pair in pairs) >= wanted


def _what_failed(server: Server) -> str:
    failure = server.failure
    return f"{server.name} failed: {failure.get('message', 'it ended')} {failure.get('instruction', '')}".rstrip()


def _what_is_missing(deployment: Deployment) -> str:
    states = [f"{server.name} is {server.state}" for server in deployment.servers.exclude(state=ServerState.READY)]
    return ", ".join(states) or "a pair of prefill and decode server is not verified"


def still_valid(secrets_of: QuerySet[ApiToken] | QuerySet[InferenceKey], plain: str) -> str:
    """`plain` itself; empty when it opens nothing any more."""
    stored = secrets_of.filter(hashed=digest(plain)).first()
    return plain if stored is not None and stored.is_valid() else ""


def fresh_token(user: User) -> str:
    """Of the demos before, at most the file is left: their tokens end here."""
    user.tokens.filter(name=SECRET_NAME, revoked_at=None).update(revoked_at=timezone.now())
    return ApiToken.issue(user, SECRET_NAME, Role.ADMIN)[1]


def fresh_key(deployment: Deployment) -> str:
    deployment.inference_keys.filter(name=SECRET_NAME, revoked_at=None).update(revoked_at=timezone.now())
    _, plain = InferenceKey.issue(deployment.pk, SECRET_NAME)
    changed()
    return plain


def write_demo_file(path: Path, demo: DemoFile) -> None:
    """Whole or not at all, and never readable by others."""
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(demo, file, indent=2)
    draft.replace(path)


def ready_line(demo: DemoFile) -> str:
    return f"Switchyard is ready: {demo['url']}  (login {demo['username']} / {demo['password']})"


def read_known(path: Path) -> Known:
    """Nothing when there is no such file, or one that cannot be read."""
    try:
        found = json.loads(path.read_text())
        return Known(*(str(found[field]) for field in Known._fields))
    except (OSError, ValueError, KeyError, TypeError):
        return Known()


def _wait_for(find: Callable[[], T | None], limit_s: float, complaint: Callable[[], str]) -> T:
    deadline = time.monotonic() + limit_s
    while (found := find()) is None:
        if time.monotonic() > deadline:
            raise SeedFailed(complaint())
        time.sleep(POLL_S)
    return found
