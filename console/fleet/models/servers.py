"""Servers: one process each, and the states that it goes through."""

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.db import models
from django.utils import timezone

from console.fleet.errors import Conflict
from console.fleet.models.deployments import Deployment
from console.fleet.models.hosts import Host
from console.fleet.models.names import name_validator
from console.fleet.models.pairs import Pair, attach_pairs
from console.fleet.states import AT_REST, HOLDS_GPU, MOVE_OPEN, ServerRole, ServerState, may_become

if TYPE_CHECKING:
    from console.fleet.models.moves import Move

LONGEST_CHECK_WAIT = timedelta(minutes=5)
"""More than the waits between checks of a server."""


class ServerQuerySet(models.QuerySet["Server"]):
    def holding_gpu(self) -> "ServerQuerySet":
        return self.filter(state__in=HOLDS_GPU)

    def due(self) -> "ServerQuerySet":
        """Whose `check_due_at` has come, or was set before somebody set the clock back."""
        now = timezone.now()
        return self.filter(
            models.Q(check_due_at=None)
            | models.Q(check_due_at__lte=now)
            | models.Q(check_due_at__gt=now + LONGEST_CHECK_WAIT)
        )

    def with_names(self) -> "ServerQuerySet":
        return self.select_related("deployment", "host")

    def with_pairs(self) -> "list[Server]":
        """For many servers: one more query, and no server is read twice, however many pairs there are."""
        servers = list(self)
        attach_pairs(servers, Pair.objects.all())
        return servers

    def with_doubtful_pairs(self) -> "list[Server]":
        """For cards, which are silent about pairs that work."""
        servers = list(self)
        attach_pairs(servers, Pair.objects.doubtful())
        return servers


class Server(models.Model):
    """One `vllm serve` process, or simulated engine, of a deployment on some GPUs of a host.

    `generation` counts its starts. Whatever speaks of a process (a launch, a report, a verification) names the
    generation, so that news of an earlier start cannot change a later one. `state` changes only by `transition`.
    """

    deployment = models.ForeignKey(Deployment, on_delete=models.PROTECT, related_name="servers")
    host = models.ForeignKey(Host, on_delete=models.PROTECT, related_name="servers", null=True)
    """None for an adopted server: it runs somewhere, started by someone else. See `own_host`."""
    name = models.CharField(max_length=63, unique=True, validators=[name_validator])
    role = models.CharField(max_length=16, choices=ServerRole.choices)
    gpu_indexes = models.JSONField(default=list)
    """Indexes on its host, for CUDA_VISIBLE_DEVICES. Empty on a host without GPUs."""
    state = models.CharField(max_length=16, choices=ServerState.choices, default=ServerState.STOPPED)
    state_since = models.DateTimeField(default=timezone.now)
    state_before_unreachable = models.CharField(max_length=16, blank=True)
    generation = models.PositiveIntegerField(default=0)

    # The present start; cleared by the next one.
    api_port = models.PositiveIntegerField(null=True)
    side_channel_port = models.PositiveIntegerField(null=True)
    revision = models.PositiveIntegerField(null=True)
    """The deployment's revision that it was started with; an older one than the deployment's waits for a restart."""
    launch_spec = models.JSONField(default=dict)
    """The `launch.contracts.LaunchSpec` that was sent, secrets masked: what the page shows as the exact command."""
    started_at = models.DateTimeField(null=True)
    """Asked for (entered `pending`)."""
    ready_at = models.DateTimeField(null=True)
    observed = models.JSONField(default=dict)
    """The newest `launch.contracts.ServerObservation` of this generation."""
    failure = models.JSONField(default=dict)
    """{"code", "message", "instruction"} of the earliest known cause; empty when nothing failed."""
    stop_reason = models.CharField(max_length=200, blank=True)
    drain_epoch = models.BigIntegerField(null=True)
    """The routing epoch from which on no router sends it anything new."""
    max_model_len = models.PositiveIntegerField(null=True)
    """As its /v1/models said at verification."""
    forces_usage = models.BooleanField(default=False)
    """Its streams end with a usage chunk for everybody, as one showed at verification."""
    check_attempts = models.PositiveIntegerField(default=0)
    """Verifications of this start that ended without success."""
    check_due_at = models.DateTimeField(null=True)
    """Not verified again before this moment."""
    check_problem = models.CharField(max_length=400, blank=True)
    """Why the last verification did not succeed."""
    kv_watch = models.JSONField(default=dict)
    """`launch.handoffs.KvWatch`: whether live traffic really brings KV from other servers."""

    # Only of an adopted server. Its generation counts the processes that were seen at its address.
    adopted_url = models.CharField(max_length=300, blank=True)
    """Where it answers, as the operator gave it. Empty: ours, launched by its host's agent."""
    adopted_api_key = models.CharField(max_length=200, blank=True)
    """What it asks for. Never shown; the deployment's own key is not sent to a process that others started."""
    told = models.JSONField(default=dict)
    """`launch.introduction.Told`: what it said of itself when it was adopted."""

    attached_pairs: list[Pair] | None = None
    """Set by `attach_pairs`."""

    objects = ServerQuerySet.as_manager()

    class Meta:
        ordering = ["name"]
        indexes = [
            models.Index(fields=["deployment", "role"], name="server_yard_columns"),
            models.Index(fields=["state"], name="server_tick"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["adopted_url"], condition=~models.Q(adopted_url=""), name="one_server_per_adopted_url"
            ),
            models.CheckConstraint(
                condition=models.Q(host__isnull=False) ^ ~models.Q(adopted_url=""), name="server_ours_or_adopted"
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def url(self) -> str:
        """Empty while it has no port."""
        if self.host is None:
            return self.adopted_url
        address = self.host.address
        if not self.api_port or not address:
            return ""
        return f"http://[{address}]:{self.api_port}" if ":" in address else f"http://{address}:{self.api_port}"

    @property
    def is_adopted(self) -> bool:
        """Someone else started it: routed and watched, never started, stopped or moved by us."""
        return self.host_id is None

    @property
    def own_host(self) -> Host:
        """The host that runs it. Raises Conflict for an adopted server, which nobody here can start or end."""
        if self.host is None:
            raise Conflict(
                f"{self.name} was adopted: someone else started it, so it cannot be started, stopped or moved from "
                "here. Let it go to take it out of traffic."
            )
        return self.host

    @property
    def engine_key(self) -> str:
        """What requests to it carry; empty when it asks for nothing."""
        return self.adopted_api_key if self.is_adopted else self.deployment.server_api_key

    @property
    def is_at_rest(self) -> bool:
        return self.state in AT_REST

    @property
    def is_routed(self) -> bool:
        """Routers know of it: it takes requests or ends those it has, also while its host is silent."""
        state = self.state_before_unreachable if self.state == ServerState.UNREACHABLE else self.state
        return state in (ServerState.READY, ServerState.DRAINING) and bool(self.url)

    @property
    def is_silent_but_used(self) -> bool:
        """It was ready when its host fell silent; routers go on using it for as long as it answers."""
        return self.state == ServerState.UNREACHABLE and self.state_before_unreachable == ServerState.READY

    @property
    def runs_older_settings(self) -> bool:
        """Of an older revision than its deployment's; never of an adopted server, whose settings are not ours."""
        return self.revision is not None and self.revision < self.deployment.revision

    @property
    def leftover_pids(self) -> list[int]:
        """Processes of its last start that outlived the main process, as last reported."""
        if self.observed.get("alive") or self.observed.get("generation") != self.generation:
            return []
        return list(self.observed.get("group_pids", []))

    @property
    def holds_gpu(self) -> bool:
        """Its GPUs are its own: it runs, is about to, or has left processes behind."""
        return self.state in HOLDS_GPU or bool(self.leftover_pids) or bool(self.observed.get("alive"))

    def pairs(self) -> list[Pair]:
        """Of its present role, with both servers; fetched already after `with_pairs`."""
        if self.attached_pairs is not None:
            return self.attached_pairs
        name = "pairs_as_prefill" if self.role == ServerRole.PREFILL else "pairs_as_decode"
        return list(getattr(self, name).select_related("prefill", "decode"))

    def open_move(self) -> "Move | None":
        return self.moves.filter(status__in=MOVE_OPEN).first()

    def transition(self, new: ServerState, **fields: Any) -> bool:
        """Moves to `new` if the row still has the state and generation this object was read with.

        True when this call won; then the object is up to date, other pages and routers hear of it after commit.
        False when somebody else was faster: read again. Raises ValueError for an edge that the graph does not have.
        """
        old = ServerState(self.state)
        if not may_become(old, new):
            raise ValueError(f"a server cannot go from {old} to {new}")
        changes = {"state": new, "state_since": timezone.now(), **fields}
        won = Server.objects.filter(pk=self.pk, state=old, generation=self.generation).update(**changes)
        if not won:
            return False
        for field, value in changes.items():
            setattr(self, field, value)
        from console.fleet.signals import server_changed

        server_changed.send(sender=Server, server=self, old_state=old)
        return True
