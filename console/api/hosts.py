"""Hosts."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Query, Router, Schema
from ninja.responses import Status
from pydantic import Field, StrictBool

from console.api import find
from console.api.changes import change
from console.api.choices import HostLoginKind
from console.api.identity import ADMIN, OPERATOR, VIEWER, actor_of
from console.api.shapes import ChangeIn, Deleted, Page, Paging, Reason, ServerRef, Text, page, server_refs
from console.fleet import actions, maintenance
from console.fleet.admission import login_of
from console.fleet.models import Gpu, Host

router = Router(tags=["hosts"])


class Holder(Schema):
    pid: int
    name: str = ""
    memory_mib: int | None = None


class GpuOut(Schema):
    index: int
    uuid: str
    model_name: str
    simulated: bool
    memory_total_mib: int | None
    memory_used_mib: int | None
    utilization_percent: float | None
    temperature_c: float | None
    power_w: float | None
    holders: list[Holder] = Field(description="Processes that hold memory on it.")


class EnginesOut(Schema):
    vllm: str | None = None
    nixl: str | None = None
    nixl_pinned: str | None = Field(None, description="The NIXL version that vLLM asks for.")
    path: str = ""


class HostOut(Schema):
    name: str
    address: str = Field(description="Where routers and other hosts reach its servers; empty before its first report.")
    reachable: bool
    heartbeat_age_s: float | None = Field(description="Since its last report; null before the first.")
    last_seen_at: datetime | None
    registered_at: datetime
    maintenance: bool = Field(description="Gets no new launches; what runs there goes on.")
    login: HostLoginKind | None = Field(
        description="At the broker: its own, the console's, or revoked; null when it joined without a join token."
    )
    hostname: str
    cpu_count: int | None
    memory_total_mib: int | None
    agent_version: str
    engines: EnginesOut
    gpus: list[GpuOut]
    servers: list[ServerRef]


class HostFilters(Paging):
    maintenance: bool | None = None


class HostIn(ChangeIn):
    name: Text = Field(min_length=1, max_length=63, description="As its agent will call itself.")


class MaintenanceIn(ChangeIn):
    on: bool
    reason: Reason = ""


class DrainIn(ChangeIn):
    confirmed: StrictBool = Field(
        default=False, description="Needed when the last ready server of a role stands on it."
    )
    reason: Reason = ""


NO_DRAIN_SETTINGS = DrainIn()


class DrainOut(Schema):
    host: str
    servers: list[str] = Field(description="Being stopped; those that served, after their requests have ended.")
    consequences: list[str] = Field(description="What traffic will see.")


class RevokeIn(ChangeIn):
    reason: Reason = ""


NO_REASON = RevokeIn()


@router.get("", response=Page[HostOut], auth=VIEWER)
def list_hosts(request: HttpRequest, filters: Query[HostFilters]) -> dict[str, Any]:
    rows = Host.objects.select_related("login").prefetch_related("gpus", "servers")
    if filters.maintenance is not None:
        rows = rows.filter(maintenance=filters.maintenance)
    return page(rows, filters, host_out)


@router.post("", response={201: HostOut}, auth=ADMIN)
@change()
def register_host(request: HttpRequest, body: HostIn) -> Status[HostOut]:
    """Makes it known before its agent reports; one that nobody registered appears at its agent's first report."""
    return Status(201, host_out(actions.register_host(actor_of(request), body.name)))


@router.get("/{name}", response=HostOut, auth=VIEWER)
def get_host(request: HttpRequest, name: str) -> HostOut:
    return host_out(find.host(name))


@router.delete("/{name}", response=Deleted, auth=ADMIN)
@change()
def remove_host(request: HttpRequest, name: str) -> Deleted:
    """Only without servers. An agent that still runs makes it appear again."""
    actions.remove_host(find.host(name).pk, actor_of(request))
    return Deleted(deleted=f"host {name}")


@router.post("/{name}/maintenance", response=HostOut, auth=OPERATOR)
@change()
def set_maintenance(request: HttpRequest, name: str, body: MaintenanceIn) -> HostOut:
    """In maintenance a host gets no new launches; what runs there goes on."""
    return host_out(actions.set_maintenance(find.host(name).pk, body.on, actor_of(request), body.reason))


@router.post("/{name}/drain", response={202: DrainOut}, auth=OPERATOR)
@change()
def drain_host(request: HttpRequest, name: str, body: DrainIn = NO_DRAIN_SETTINGS) -> Status[DrainOut]:
    """Sets maintenance, and stops what runs there."""
    seen = maintenance.drain_host(find.host(name).pk, actor_of(request), body.reason, body.confirmed)
    return Status(202, DrainOut(host=seen["host"], servers=seen["servers"], consequences=seen["consequences"]))


@router.post("/{name}/revoke", response=HostOut, auth=ADMIN)
@change()
def revoke_host(request: HttpRequest, name: str, body: RevokeIn = NO_REASON) -> HostOut:
    """Takes back what it got when it joined: its agent is cut off, its servers go on serving."""
    actions.revoke_host(find.host(name).pk, actor_of(request), body.reason)
    return host_out(find.host(name))


def host_out(host: Host) -> HostOut:
    inventory = host.inventory
    return HostOut(
        name=host.name,
        address=host.address,
        reachable=host.is_reachable,
        heartbeat_age_s=host.heartbeat_age_s,
        last_seen_at=host.last_seen_at,
        registered_at=host.registered_at,
        maintenance=host.maintenance,
        login=login_of(host),
        hostname=inventory.get("hostname", ""),
        cpu_count=inventory.get("cpu_count"),
        memory_total_mib=inventory.get("memory_total_mib"),
        agent_version=inventory.get("agent_version", ""),
        engines=EnginesOut(**inventory.get("engines", {})),
        gpus=[gpu_out(gpu) for gpu in host.gpus.all()],
        servers=server_refs(host.servers.all()),
    )


def gpu_out(gpu: Gpu) -> GpuOut:
    return GpuOut.from_orm(gpu)
