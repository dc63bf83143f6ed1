"""Rows for tests: plain functions with defaults."""

from itertools import count
from typing import Any

from django.utils import timezone

from console.accounts.audit import Actor
from console.accounts.models import Role, User
from console.fleet.models import Deployment, Engine, Gpu, Host, Move, Server
from console.fleet.states import MoveStatus, ServerRole, ServerState

OPERATOR = Actor("olga", Role.OPERATOR)
ADMIN = Actor("ada", Role.ADMIN)
VIEWER = Actor("vera", Role.VIEWER)

_number = count(1)


def make_user(role: Role = Role.OPERATOR, username: str = "", password: str = "correct horse battery") -> User:
    return User.objects.create_user(username or f"user{next(_number)}", password=password, role=role)


def make_host(name: str = "", gpus: int = 4, **fields: Any) -> Host:
    """A host that has just reported, with simulated GPUs."""
    defaults: dict[str, Any] = {
        "name": name or f"host{next(_number)}",
        "address": "127.0.0.1",
        "last_seen_at": timezone.now(),
        "inventory": {"port_range": [21000, 21199], "busy_ports": []},
    }
    host = Host.objects.create(**{**defaults, **fields})
    for index in range(gpus):
        Gpu.objects.create(host=host, index=index, model_name="Simulated GPU", simulated=True, memory_total_mib=81920)
    return host


def make_deployment(name: str = "", **fields: Any) -> Deployment:
    name = name or f"chat{next(_number)}"
    defaults: dict[str, Any] = {
        "name": name,
        "model": "/models/tiny",
        "served_model_name": name,
        "engine": Engine.SIMULATED,
    }
    return Deployment.objects.create(**{**defaults, **fields})


def make_server(
    role: ServerRole = ServerRole.PLAIN,
    state: ServerState = ServerState.STOPPED,
    deployment: Deployment | None = None,
    host: Host | None = None,
    **fields: Any,
) -> Server:
    number = next(_number)
    defaults: dict[str, Any] = {
        "name": f"{role}-{number}",
        "gpu_indexes": [0],
        "generation": 0 if state == ServerState.STOPPED else 1,
        "api_port": None if state == ServerState.STOPPED else 21000 + number,
    }
    return Server.objects.create(
        role=role,
        state=state,
        deployment=deployment or make_deployment(),
        host=host or make_host(),
        **{**defaults, **fields},
    )


def make_move(server: Server, status: MoveStatus = MoveStatus.FAILED, **fields: Any) -> Move:
    """From the role that it has to decode."""
    defaults: dict[str, Any] = {
        "from_role": server.role,
        "to_role": ServerRole.DECODE,
        "requested_by": "olga",
    }
    return Move.objects.create(server=server, deployment=server.deployment, status=status, **{**defaults, **fields})
