"""How servers are launched: exact commands, logs, and what would keep one from starting."""

from typing import Any, Literal, cast

from django.http import HttpRequest
from ninja import Query, Router, Schema
from pydantic import Field

from console.api import choices, find
from console.api.identity import OPERATOR, VIEWER
from console.api.shapes import Count, Input, Text
from console.fleet import actions, guards
from console.fleet import preflight as preflight_checks
from console.launch import command, remote
from console.launch.contracts import LaunchSpec

router = Router(tags=["servers"])

MAX_LOG_BYTES = 1_000_000


class CommandOut(Schema):
    generation: int = Field(description="Of the start that it is the command of.")
    argv: list[str]
    env: dict[str, str]
    secret_env: dict[str, str] = Field(description="Names with masked values.")
    text: str = Field(description="To paste into a shell; fill in what is masked.")


class LogQuery(Schema):
    max_bytes: int = Field(20_000, ge=1, le=MAX_LOG_BYTES)


class LogOut(Schema):
    path: str
    size_bytes: int
    text: str = Field(description="The end of the log, cut at a line, secrets masked.")
    truncated: bool


class PreflightIn(Input):
    deployment: Text
    host: Text
    role: choices.ServerRole
    gpu_indexes: list[Count] = Field([], max_length=64)
    name: Text = Field("", max_length=63)


class CheckOut(Schema):
    code: str
    title: str
    result: Literal["ok", "warning", "failed"]
    detail: str
    instruction: str


class PreflightOut(Schema):
    ok: bool = Field(description="No check failed.")
    command: CommandOut
    checks: list[CheckOut]


@router.post("/preflight", response=PreflightOut, auth=OPERATOR)
def preflight(request: HttpRequest, body: PreflightIn) -> dict[str, Any]:
    """Asks the host what would keep such a server from starting. Starts and changes nothing."""
    deployment, host = find.given_deployment(body.deployment), find.given_host(body.host)
    spec = actions.launch_preview(deployment, host, body.role, body.gpu_indexes, body.name)
    checks = preflight_checks.run(deployment, host, spec)
    return {"ok": all(check["result"] != "failed" for check in checks), "command": command_out(spec), "checks": checks}


@router.get("/{int:server_id}/command", response=CommandOut, auth=VIEWER)
def get_command(request: HttpRequest, server_id: int) -> CommandOut:
    """Of its newest start; before the first, what it would be started with now."""
    server = guards.server(server_id)
    if server.launch_spec:
        return command_out(cast(LaunchSpec, server.launch_spec))
    return command_out(
        actions.launch_preview(server.deployment, server.own_host, server.role, server.gpu_indexes, server.name)
    )


@router.get("/{int:server_id}/log", response=LogOut, auth=VIEWER)
def read_log(request: HttpRequest, server_id: int, query: Query[LogQuery]) -> dict[str, Any]:
    """The end of the log of its newest start, read on its host."""
    return {**remote.tail(guards.server(server_id), query.max_bytes)}


def command_out(spec: LaunchSpec) -> CommandOut:
    return CommandOut(
        generation=spec["generation"],
        argv=spec["argv"],
        env=spec["env"],
        secret_env=spec["secret_env"],
        text=command.shell_text(spec),
    )
