"""What the first page tells of each deployment and each host, in a fixed number of queries."""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Prefetch, QuerySet

from console.fleet.cards import degradations
from console.fleet.models import Deployment, Host, Pair, Server, attach_pairs
from console.fleet.states import ServerRole
from console.gateway import loads
from console.live.snapshot import mode
from console.traffic.models import RequestRecord

MODE_TEXT: Mapping[str, str] = {
    "split": "Split",
    "plain": "Plain",
    "split and plain": "Split and plain",
    "fallback": "Fallback",
    "refusing": "Refusing",
    "down": "Down",
    "empty": "No server yet",
}
MODE_WHY: Mapping[str, str] = {
    "fallback": "No verified pair is ready. Requests are served without splitting: by a plain server, else by a decode "
    "server.",
    "refusing": "No verified pair is ready, and this deployment is set to refuse: requests that would be split get "
    "503.",
    "down": "No server is ready that could answer: every request gets 503.",
    "empty": "Add one: until it is ready every request gets 503.",
}
"""Of the modes that need an explanation; the script of a deployment's page has the same words."""
COLUMNS: tuple[tuple[ServerRole, str], ...] = (
    (ServerRole.PREFILL, "computes prompts and hands their KV cache on"),
    (ServerRole.DECODE, "takes the cache over and writes the answer"),
    (ServerRole.PLAIN, "does both on one server"),
)
"""The columns of the yard, with what each is for."""


def shown_mode(mode: str, servers: Sequence[object]) -> str:
    """A deployment that has no server yet is not broken."""
    return mode if servers else "empty"


@dataclass(frozen=True)
class RoleOfDeployment:
    role: ServerRole
    label: str
    servers: list[Server]


@dataclass(frozen=True)
class Summary:
    """One deployment on the overview. Numbers are of the last minute; None where nothing happened."""

    deployment: Deployment
    mode: str
    roles: list[RoleOfDeployment]
    degradations: list[str]
    requests_per_min: float | None
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    worst_gap_ms: float | None

    @property
    def mode_text(self) -> str:
        return MODE_TEXT.get(self.mode, self.mode)

    @property
    def mode_why(self) -> str:
        return MODE_WHY.get(self.mode, "")


def hosts_with_counts() -> QuerySet[Host]:
    """Each with `gpu_count` and `server_count`."""
    return Host.objects.annotate(
        gpu_count=Count("gpus", distinct=True), server_count=Count("servers", distinct=True)
    ).order_by("name")


def by_role(servers: Iterable[Server]) -> list[RoleOfDeployment]:
    found: dict[str, list[Server]] = defaultdict(list)
    for server in servers:
        found[server.role].append(server)
    return [RoleOfDeployment(role, str(role.label), found[role]) for role, _ in COLUMNS]


def summaries(start: datetime, end: datetime) -> list[Summary]:
    """Every deployment with what finished in [start, end), in a number of queries that does not grow with them."""
    minutes = (end - start).total_seconds() / 60
    finished = _finished(start, end)
    deployments = list(Deployment.objects.prefetch_related(Prefetch("servers", Server.objects.with_names())))
    attach_pairs((server for deployment in deployments for server in deployment.servers.all()), Pair.objects.doubtful())
    avoided = loads.avoided_in(loads.read())
    split = set(Pair.objects.splitting(avoided).values_list("prefill__deployment", flat=True))
    return [
        _summary(deployment, finished.get(deployment.pk, []), minutes, deployment.pk in split, avoided)
        for deployment in deployments
    ]


def _summary(
    deployment: Deployment,
    finished: list[tuple[float | None, float | None]],
    minutes: float,
    has_pair: bool,
    avoided: Collection[int],
) -> Summary:
    servers = list(deployment.servers.all())
    first_tokens = sorted(ms for ms, _ in finished if ms is not None)
    worst_gaps = [ms for _, ms in finished if ms is not None]
    notes = [f"{server.name}: {note['text']}" for server in servers for note in degradations(server)]
    failed = [f"{server.name}: {server.failure.get('message', 'failed')}" for server in servers if server.failure]
    return Summary(
        deployment=deployment,
        mode=shown_mode(mode(servers, deployment.when_no_pair, has_pair, avoided), servers),
        roles=by_role(servers),
        degradations=[*failed, *notes],
        requests_per_min=len(finished) / minutes if finished else None,
        ttft_p50_ms=_quantile(first_tokens, 0.5),
        ttft_p99_ms=_quantile(first_tokens, 0.99),
        worst_gap_ms=max(worst_gaps, default=None),
    )


def _finished(start: datetime, end: datetime) -> dict[int, list[tuple[float | None, float | None]]]:
    """First token and worst gap in ms of each request, by deployment."""
    found: dict[int, list[tuple[float | None, float | None]]] = defaultdict(list)
    rows = RequestRecord.objects.filter(received_at__gte=start, received_at__lt=end, deployment__isnull=False)
    for deployment_id, first_token_ms, max_gap_ms in rows.order_by().values_list(
        "deployment_id", "first_token_ms", "max_gap_ms"
    ):
        found[deployment_id].append((first_token_ms, max_gap_ms))
    return found


def _quantile(ordered: list[float], share: float) -> float | None:
    """The smallest value that `share` of all do not exceed."""
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)] if ordered else None
