"""One start of a server: its GPUs and ports, its exact command, and the message to its host.

Used by the start button, by moves and by the preview that shows the command before anything runs.
"""

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from django.utils import timezone

from console.fleet import guards
from console.fleet.errors import Conflict, Invalid
from console.fleet.models import Deployment, Host, Server
from console.fleet.states import ServerRole, ServerState
from console.launch import command, ports, remote
from console.launch.contracts import LaunchSpec

DEFAULT_PORT_RANGE = (21000, 21999)
"""Until the host's agent has said which ports it gives to servers."""


@dataclass(frozen=True)
class Plan:
    """What a server would be started as."""

    deployment: Deployment
    host: Host
    role: str
    gpu_indexes: list[int]
    name: str
    server_id: int = 0
    generation: int = 1
    previous_api_port: int | None = None


def plan_of(server: Server, role: str) -> Plan:
    return Plan(
        deployment=server.deployment,
        host=server.own_host,
        role=role,
        gpu_indexes=list(server.gpu_indexes),
        name=server.name,
        server_id=server.pk,
        generation=server.generation + 1,
        previous_api_port=server.api_port,
    )


def spec_for(plan: Plan) -> LaunchSpec:
    """The launch specification, secrets included. Raises Invalid (extra arguments), Conflict (no ports left)."""
    deployment = plan.deployment
    try:
        return command.build(
            command.LaunchInputs(
                server_id=plan.server_id,
                name=plan.name,
                deployment=deployment.name,
                engine=cast(command.EngineName, deployment.engine),
                role=cast(command.Role, plan.role),
                generation=plan.generation,
                model=deployment.model,
                served_model_name=deployment.served_model_name,
                address=plan.host.address,
                ports=_allot(plan),
                engine_id=str(uuid.uuid4()),
                gpu_indexes=plan.gpu_indexes,
                engine_args=deployment.engine_args,
                engine_env=deployment.engine_env,
                api_key=deployment.server_api_key,
                connector=deployment.connector,
                kv_load_failure_policy=deployment.kv_load_failure_policy,
            )
        )
    except command.BadArguments as error:
        raise Invalid(f"{error}. Change the deployment's extra arguments.", "engine_args") from error
    except ports.NoPortsLeft as error:
        raise Conflict(f"Host {plan.host.name}: {error}") from error


def begin(server: Server, role: str, **fields: Any) -> bool:
    """Takes a server at rest to `pending` in `role` with a new generation, and sends the launch after commit.

    Call it in a transaction, with the server's host locked (`guards.host`). False when somebody else was faster;
    Conflict when its host, GPUs or ports do not allow it now.
    """
    guards.host_takes_launches(server.own_host)
    no_leftovers(server)
    gpus_are_free(server)
    spec = spec_for(plan_of(server, role))
    now = timezone.now()
    won = server.transition(
        ServerState.PENDING,
        role=ServerRole(role),
        generation=spec["generation"],
        api_port=spec["api_port"],
        side_channel_port=spec["side_channel_port"],
        launch_spec=command.masked(spec),
        revision=server.deployment.revision,
        started_at=now,
        **{**FRESH_START, **fields},
    )
    if won:
        remote.send_launch(spec, server.own_host)
    return won


FRESH_START: dict[str, Any] = {
    "ready_at": None,
    "observed": {},
    "failure": {},
    "stop_reason": "",
    "drain_epoch": None,
    "state_before_unreachable": "",
    "check_attempts": 0,
    "check_due_at": None,
    "check_problem": "",
    "kv_watch": {},
}


def again(server: Server) -> LaunchSpec:
    """The specification of its present start once more, the secrets filled in: what was stored holds none."""
    spec = cast(LaunchSpec, dict(server.launch_spec))
    deployment = server.deployment
    known = {"VLLM_API_KEY": deployment.server_api_key, **deployment.engine_env}
    return {**spec, "secret_env": {name: known.get(name, "") for name in spec["secret_env"]}}


def no_leftovers(server: Server) -> None:
    if server.observed.get("alive"):
        raise Conflict(f"The last start of {server.name} is still being ended. Try again in some seconds.")
    pids = server.leftover_pids
    if pids:
        raise Conflict(
            f"Processes of the last start of {server.name} still run on {server.own_host.name} (pid "
            f"{', '.join(map(str, pids))}) and hold its GPU. Press Stop to end them, then start it."
        )


def gpus_are_free(server: Server) -> None:
    """Raises Conflict naming the server that holds one of its GPUs."""
    if problem := held_gpu(server):
        raise Conflict(problem)


def hindrance(server: Server, others: Iterable[Server] | None = None) -> str:
    """What keeps a server at rest from being started now, in words; empty for one that is not at rest."""
    return held_gpu(server, others) if server.host is not None and server.is_at_rest else ""


def held_gpu(server: Server, others: Iterable[Server] | None = None) -> str:
    """Which of its GPUs another server holds, and what to do about it; empty when none is held.

    `others`: those of its host, when they were read already.
    """
    held = holder_of(server.own_host, server.gpu_indexes, besides=server.pk, others=others)
    if held is None:
        return ""
    index, other = held
    return (
        f"GPU {index} of {server.own_host.name} is held by {other.name}, which is {other.state}. "
        f"Stop {other.name}, or delete {server.name} and add a server on other GPUs."
    )


def holder_of(
    host: Host, gpu_indexes: Sequence[int], besides: int = 0, others: Iterable[Server] | None = None
) -> tuple[int, Server] | None:
    """The first of these GPUs that a server holds, with that server; `besides` is the key of one that may."""
    wanted = set(gpu_indexes)
    for other in Server.objects.filter(host=host) if others is None else others:
        shared = wanted & set(other.gpu_indexes)
        if shared and other.holds_gpu and other.pk != besides:
            return min(shared), other
    return None


def _allot(plan: Plan) -> ports.PortBlock:
    inventory = plan.host.inventory
    first, last = inventory.get("port_range") or DEFAULT_PORT_RANGE
    size = command.data_parallel_size(plan.deployment.engine_args)
    taken = set(inventory.get("busy_ports", []))
    for other in Server.objects.filter(host=plan.host).exclude(pk=plan.server_id).select_related("deployment"):
        if other.api_port and other.holds_gpu:
            other_size = command.data_parallel_size(other.deployment.engine_args)
            taken.update(ports.PortBlock(other.api_port, other_size).ports)
    return ports.allot((first, last), taken, size, plan.previous_api_port)
