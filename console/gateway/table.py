"""Rows to the immutable table that the routers serve."""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from django.conf import settings
from django.utils import timezone

from console.accounts.models import InferenceKey
from console.fleet import models as fleet
from console.fleet.states import ON_ITS_WAY_UP, PairState, ServerState
from console.gateway.models import Epoch
from routing.table import EMPTY, Deployment, Policy, Role, Server, Table, Timeouts, WhenNoPair

LIMITS = ("max_connections_per_server", "comment_every_s")
TIME_LIMITS = tuple(field.name for field in fields(Timeouts))
"""What a deployment may set or leave to the router, by the names of `Policy` and `Timeouts`."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    name: str
    role: str
    deployment: str


@dataclass(frozen=True, slots=True)
class Names:
    """What the table leaves out: who is who, for records and the live view. Keys are ids as the table writes them."""

    deployment_ids: dict[str, int] = field(default_factory=dict)
    gap_limits_ms: dict[str, float] = field(default_factory=dict)
    """By deployment name; missing where none is set."""
    models: dict[str, str] = field(default_factory=dict)
    """Served model name by deployment name."""
    servers: dict[str, ServerFacts] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Published:
    table: Table = EMPTY
    names: Names = field(default_factory=Names)


def build() -> Table:
    return load().table


def load() -> Published:
    """Four queries. The epoch is read first, so the table holds at least every change of its epoch."""
    epoch = Epoch.current()
    deployments = list(fleet.Deployment.objects.all())
    servers = list(fleet.Server.objects.select_related("host"))
    servers_of: dict[int, list[fleet.Server]] = {}
    for server in servers:
        servers_of.setdefault(server.deployment_id, []).append(server)
    pairs = _verified_pairs()
    keys = _valid_keys(timezone.now())
    rows = {
        deployment.served_model_name: _deployment(deployment, servers_of.get(deployment.pk, []), pairs, keys)
        for deployment in deployments
    }
    return Published(Table(epoch, rows), _names(deployments, servers))


def _names(deployments: Iterable[fleet.Deployment], servers: Iterable[fleet.Server]) -> Names:
    by_pk = {deployment.pk: deployment.name for deployment in deployments}
    return Names(
        deployment_ids={deployment.name: deployment.pk for deployment in deployments},
        models={deployment.name: deployment.served_model_name for deployment in deployments},
        gap_limits_ms={d.name: d.gap_limit_ms for d in deployments if d.gap_limit_ms is not None},
        servers={
            str(server.pk): ServerFacts(server.name, server.role, by_pk.get(server.deployment_id, ""))
            for server in servers
        },
    )


def _verified_pairs() -> set[tuple[int, int]]:
    """Of the present start of both servers; a row about an earlier start says nothing any more."""
    verified = fleet.Pair.objects.current().filter(state=PairState.VERIFIED)
    return set(verified.values_list("prefill_id", "decode_id"))


def _valid_keys(now: datetime) -> dict[int, list[str]]:
    hashes: dict[int, list[str]] = {}
    for key in InferenceKey.objects.filter(revoked_at=None):
        if key.is_valid(now):
            hashes.setdefault(key.deployment_id, []).append(key.hashed)
    return hashes


def _deployment(
    row: fleet.Deployment, servers: list[fleet.Server], pairs: set[tuple[int, int]], keys: dict[int, list[str]]
) -> Deployment:
    serving = [server for server in servers if server.is_routed]
    ids = {server.pk for server in serving}
    return Deployment(
        name=row.name,
        model=row.served_model_name,
        servers=tuple(_server(server, row) for server in serving),
        pairs=frozenset((str(p), str(d)) for p, d in pairs if p in ids and d in ids),
        policy=_policy(row),
        key_hashes=frozenset(keys.get(row.pk, [])) if row.require_key else None,
        starting=any(server.state in ON_ITS_WAY_UP for server in servers),
    )


def _accepts(server: fleet.Server) -> bool:
    """Nothing new goes to a draining server, also when its host went silent meanwhile."""
    state = server.state_before_unreachable if server.state == ServerState.UNREACHABLE else server.state
    return state == ServerState.READY


def _server(row: fleet.Server, deployment: fleet.Deployment) -> Server:
    # Not `row.deployment`, which would cost a query each.
    key = row.adopted_api_key if row.is_adopted else deployment.server_api_key
    return Server(
        id=str(row.pk),
        name=row.name,
        role=cast(Role, str(row.role)),
        url=row.url,
        generation=row.generation,
        api_key=key or None,
        max_model_len=row.max_model_len,
        forces_usage=row.forces_usage,
        accepting=_accepts(row),
    )


def _policy(row: fleet.Deployment) -> Policy:
    return Policy(
        short_prompt_tokens=row.short_prompt_tokens,
        busy_decode_streams=row.busy_decode_streams,
        plain_share_percent=row.plain_share_percent,
        when_no_pair=cast(WhenNoPair, str(row.when_no_pair)),
        prefix_affinity=row.prefix_affinity,
        session_affinity=row.session_affinity,
        retries=row.retries,
        wait_for_server_s=row.wait_for_server_s,
        timeouts=Timeouts(**_set_limits(row, TIME_LIMITS)),
        **_set_limits(row, LIMITS),
    )


def _set_limits(row: fleet.Deployment, names: Iterable[str]) -> dict[str, Any]:
    """Without those that are None: there the router's default holds."""
    return {name: value for name in names if (value := getattr(row, name)) is not None}


def kept_path() -> Path:
    return Path(settings.DATA_DIR) / "routing-table.json"


def keep(published: Published) -> None:
    """Writes the table beside the database, readable by us alone (it holds the servers' keys)."""
    path = kept_path()
    fresh = path.with_suffix(".new")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as file:
        json.dump(_plain(published), file)
    fresh.replace(path)


def recall() -> Published | None:
    """The table that was kept last; None when there is none or this version cannot read it."""
    try:
        return _published(json.loads(kept_path().read_text()))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _plain(published: Published) -> dict[str, Any]:
    deployments = [
        {
            **asdict(deployment),
            "pairs": sorted(deployment.pairs or []),
            "key_hashes": None if deployment.key_hashes is None else sorted(deployment.key_hashes),
        }
        for deployment in published.table.deployments.values()
    ]
    return {"epoch": published.table.epoch, "deployments": deployments, "names": asdict(published.names)}


def _published(plain: dict[str, Any]) -> Published:
    deployments = [_deployment_from(row) for row in plain["deployments"]]
    names = plain["names"]
    servers = {server_id: ServerFacts(**facts) for server_id, facts in names["servers"].items()}
    return Published(
        Table(plain["epoch"], {deployment.model: deployment for deployment in deployments}),
        Names(**{**names, "servers": servers}),
    )


def _deployment_from(row: dict[str, Any]) -> Deployment:
    policy = {**row["policy"], "timeouts": Timeouts(**row["policy"]["timeouts"])}
    return Deployment(
        **{
            **row,
            "servers": tuple(Server(**server) for server in row["servers"]),
            "pairs": frozenset((prefill, decode) for prefill, decode in row["pairs"]),
            "policy": Policy(**policy),
            "key_hashes": None if row["key_hashes"] is None else frozenset(row["key_hashes"]),
        }
    )
