"""What exists: hosts with their GPUs, deployments, servers, pairs and moves."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.utils import timezone

from console.fleet.errors import Conflict
from console.fleet.states import (
    AT_REST,
    HOLDS_GPU,
    MOVE_OPEN,
    MoveStatus,
    PairState,
    ServerRole,
    ServerState,
    may_become,
)

name_validator = RegexValidator(
    r"^(?!new$)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
    "Use lower-case letters, digits and hyphens, at most 63, starting and ending with a letter or digit; not “new”, "
    "which the pages' addresses use.",
)
no_flag_validator = RegexValidator(r"^[^-]", "It cannot begin with a hyphen: the engine would read it as an option.")


class Engine(models.TextChoices):
    VLLM = "vllm", "vLLM"
    SIMULATED = "simulated", "Simulated engine"


class KvLoadFailurePolicy(models.TextChoices):
    RECOMPUTE = "recompute", "Recompute: the decode server computes the prompt itself"
    FAIL = "fail", "Fail: the request ends with an error"


class WhenNoPair(models.TextChoices):
    FALLBACK = "fallback", "Serve without splitting, and say so"
    REFUSE = "refuse", "Refuse with 503"


class HostQuerySet(models.QuerySet["Host"]):
    def silent_since(self, moment: datetime) -> "HostQuerySet":
        return self.filter(last_seen_at__lt=moment)


class Host(models.Model):
    """A machine whose agent (a Celery worker on queue `host.<name>`) launches servers and reports every few seconds.

    `last_seen_at` is set by the console's clock when a report arrives; a host's own clock decides nothing.
    """

    name = models.CharField(max_length=63, unique=True, validators=[name_validator])
    address = models.CharField(max_length=255, blank=True)
    """Where routers and other hosts reach its servers; reported by the agent."""
    registered_at = models.DateTimeField(default=timezone.now)
    last_seen_at = models.DateTimeField(null=True)
    agent_started_at = models.FloatField(null=True)
    last_report_seq = models.BigIntegerField(default=0)
    """Reports older than the newest of the same agent start are dropped."""
    maintenance = models.BooleanField(default=False)
    inventory = models.JSONField(default=dict)
    """`launch.contracts.Inventory`: CPUs, memory, engines with their versions, port range, NICs."""

    objects = HostQuerySet.as_manager()

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    @property
    def queue(self) -> str:
        return f"host.{self.name}"

    @property
    def heartbeat_age_s(self) -> float | None:
        """Seconds since the last report by the console's clock; None before the first."""
        return None if self.last_seen_at is None else (timezone.now() - self.last_seen_at).total_seconds()

    @property
    def is_reachable(self) -> bool:
        age_s = self.heartbeat_age_s
        return age_s is not None and age_s <= settings.HOST_UNREACHABLE_AFTER_S


class Gpu(models.Model):
    """One GPU as its host last reported it. Power in watts, memory in MiB; None where the sensor does not say."""

    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="gpus")
    index = models.PositiveSmallIntegerField()
    uuid = models.CharField(max_length=80, blank=True)
    model_name = models.CharField(max_length=120)
    simulated = models.BooleanField(default=False)
    memory_total_mib = models.PositiveIntegerField(null=True)
    memory_used_mib = models.PositiveIntegerField(null=True)
    utilization_percent = models.FloatField(null=True)
    temperature_c = models.FloatField(null=True)
    power_w = models.FloatField(null=True)
    holders = models.JSONField(default=list)
    """[{"pid": …, "name": …, "memory_mib": …}]: processes that hold memory on it."""

    class Meta:
        ordering = ["host__name", "index"]
        constraints = [models.UniqueConstraint(fields=["host", "index"], name="one_gpu_per_host_and_index")]

    def __str__(self) -> str:
        return f"{self.host.name}:{self.index}"


class Deployment(models.Model):
    """One served model name: its engine arguments, its servers, its routing policy and its objectives."""

    name = models.CharField(max_length=63, unique=True, validators=[name_validator])
    model = models.CharField(max_length=500, validators=[no_flag_validator])
    """Model path or repository name. The same string goes to every server: it is part of the KV compatibility hash."""
    served_model_name = models.CharField(max_length=200, unique=True, validators=[no_flag_validator])
    engine = models.CharField(max_length=16, choices=Engine.choices, default=Engine.VLLM)
    engine_args = models.JSONField(default=list)
    """Extra arguments, a list of strings, for every server whatever its role."""
    engine_env = models.JSONField(default=dict)
    """Extra environment, name to value, none of it secret."""
    connector = models.CharField(max_length=60, default="NixlConnector")
    kv_load_failure_policy = models.CharField(
        max_length=16, choices=KvLoadFailurePolicy.choices, default=KvLoadFailurePolicy.RECOMPUTE
    )
    server_api_key = models.CharField(max_length=200, blank=True)
    """The key its servers ask for. Passed to them by environment and by the router; never shown."""
    require_key = models.BooleanField(default=True)
    """Clients of the router must send an inference key of this deployment."""

    # Routing policy; the fields and their meaning are those of routing.table.Policy.
    short_prompt_tokens = models.PositiveIntegerField(default=0)
    busy_decode_streams = models.PositiveIntegerField(null=True, blank=True)
    plain_share_percent = models.FloatField(default=0, validators=[MinValueValidator(0), MaxValueValidator(100)])
    when_no_pair = models.CharField(max_length=16, choices=WhenNoPair.choices, default=WhenNoPair.FALLBACK)
    prefix_affinity = models.BooleanField(default=True)
    session_affinity = models.BooleanField(default=True)
    retries = models.PositiveSmallIntegerField(default=2, validators=[MaxValueValidator(5)])
    wait_for_server_s = models.FloatField(default=0, validators=[MinValueValidator(0), MaxValueValidator(600)])

    # Objectives, milliseconds. None: no limit set.
    ttft_limit_ms = models.FloatField(null=True, blank=True, validators=[MinValueValidator(1)])
    gap_limit_ms = models.FloatField(null=True, blank=True, validators=[MinValueValidator(1)])
    created_at = models.DateTimeField(default=timezone.now)
    revision = models.PositiveIntegerField(default=1)
    """Grows with every change of what its servers are started with."""

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Revision(models.Model):
    """What the servers of a deployment were started with from one change to the next; never edited."""

    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="revisions")
    number = models.PositiveIntegerField()
    """The deployment's `revision` that it describes."""
    made_at = models.DateTimeField(default=timezone.now)
    made_by = models.CharField(max_length=150)
    reason = models.CharField(max_length=400, blank=True)
    settings = models.JSONField(default=dict)
    """The fields of `fleet.deployments.START_FIELDS`."""

    class Meta:
        ordering = ["-number"]
        constraints = [models.UniqueConstraint(fields=["deployment", "number"], name="one_row_per_revision")]

    def __str__(self) -> str:
        return f"{self.deployment.name} revision {self.number}"


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


def attach_pairs(servers: "Iterable[Server]", pairs: "PairQuerySet") -> None:
    """All servers of one or more deployments; what `pairs` holds of theirs then costs no query."""
    known = {server.pk: server for server in servers}
    for server in known.values():
        server.attached_pairs = []
    deployments = {server.deployment_id for server in known.values()}
    for pair in pairs.filter(prefill__deployment__in=deployments):
        if pair.prefill_id in known and pair.decode_id in known:
            pair.prefill, pair.decode = known[pair.prefill_id], known[pair.decode_id]
            _attach(pair, pair.prefill)
            _attach(pair, pair.decode)


def _attach(pair: "Pair", server: "Server") -> None:
    side = pair.prefill_id if server.role == ServerRole.PREFILL else pair.decode_id
    if side == server.pk and server.attached_pairs is not None:
        server.attached_pairs.append(pair)


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

    attached_pairs: "list[Pair] | None" = None
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
    def leftover_pids(self) -> list[int]:
        """Processes of its last start that outlived the main process, as last reported."""
        if self.observed.get("alive") or self.observed.get("generation") != self.generation:
            return []
        return list(self.observed.get("group_pids", []))

    @property
    def holds_gpu(self) -> bool:
        """Its GPUs are its own: it runs, is about to, or has left processes behind."""
        return self.state in HOLDS_GPU or bool(self.leftover_pids) or bool(self.observed.get("alive"))

    def pairs(self) -> "list[Pair]":
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


class PairQuerySet(models.QuerySet["Pair"]):
    def current(self) -> "PairQuerySet":
        """`Pair.is_current`, for the database."""
        return self.filter(
            prefill_generation=models.F("prefill__generation"), decode_generation=models.F("decode__generation")
        )

    def doubtful(self) -> "PairQuerySet":
        """Those that get no traffic."""
        return self.exclude(
            state=PairState.VERIFIED,
            prefill_generation=models.F("prefill__generation"),
            decode_generation=models.F("decode__generation"),
        )


class Pair(models.Model):
    """A prefill and a decode server, and what the canary through them showed. Only verified pairs get traffic.

    A row speaks of one start of each server; after a restart it is stale and counts as unverified.
    """

    prefill = models.ForeignKey(Server, on_delete=models.CASCADE, related_name="pairs_as_prefill")
    decode = models.ForeignKey(Server, on_delete=models.CASCADE, related_name="pairs_as_decode")
    prefill_generation = models.PositiveIntegerField()
    decode_generation = models.PositiveIntegerField()
    state = models.CharField(max_length=16, choices=PairState.choices, default=PairState.UNVERIFIED)
    reason = models.CharField(max_length=400, blank=True)
    checked_at = models.DateTimeField(null=True)
    attempts = models.PositiveIntegerField(default=0)
    transfer_ms = models.FloatField(null=True)
    """Mean transfer time of the canary by the decode server's own histogram."""
    transfer_bytes = models.BigIntegerField(null=True)
    canary_tokens = models.PositiveIntegerField(null=True)

    objects = PairQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["prefill", "decode"], name="one_row_per_pair")]

    def __str__(self) -> str:
        return f"{self.prefill.name} → {self.decode.name}"

    @property
    def megabytes_per_s(self) -> float | None:
        """Of the canary's transfer; None when its engine does not count transfers."""
        if not self.transfer_ms or not self.transfer_bytes:
            return None
        return round(self.transfer_bytes / self.transfer_ms / 1000, 1)

    def transfer_ms_for(self, prompt_tokens: int) -> float | None:
        """About how long the KV of such a prompt takes, in proportion to the canary's; None as above.

        Too long for an engine whose transfers have a fixed cost: a canary is short.
        """
        if not self.transfer_ms or not self.canary_tokens:
            return None
        return round(self.transfer_ms * prompt_tokens / self.canary_tokens, 1)

    @property
    def is_current(self) -> bool:
        return self.prefill_generation == self.prefill.generation and self.decode_generation == self.decode.generation


class Move(models.Model):
    """Taking a server from one role to another: drain, stop, start, verify. At most one open per deployment."""

    server = models.ForeignKey(Server, on_delete=models.CASCADE, related_name="moves")
    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="moves")
    from_role = models.CharField(max_length=16, choices=ServerRole.choices)
    to_role = models.CharField(max_length=16, choices=ServerRole.choices)
    status = models.CharField(max_length=16, choices=MoveStatus.choices, default=MoveStatus.DRAINING)
    requested_by = models.CharField(max_length=150)
    reason = models.CharField(max_length=400, blank=True)
    requested_at = models.DateTimeField(default=timezone.now)
    out_of_traffic_at = models.DateTimeField(null=True)
    drained_at = models.DateTimeField(null=True)
    stopped_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    verifying_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    error = models.CharField(max_length=400, blank=True)
    before = models.JSONField(default=dict)
    after = models.JSONField(default=dict)
    """`traffic.percentiles` of the deployment over the window before and after: TTFT, gaps, counts."""

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["deployment", "-id"], name="move_yard_markers")]
        constraints = [
            models.UniqueConstraint(
                fields=["deployment"], condition=models.Q(status__in=sorted(MOVE_OPEN)), name="one_open_move"
            )
        ]

    def __str__(self) -> str:
        return f"{self.server.name}: {self.from_role} → {self.to_role} ({self.status})"

    @property
    def is_open(self) -> bool:
        return self.status in MOVE_OPEN

    @property
    def out_of_service(self) -> timedelta | None:
        """From leaving traffic to taking it again; None while that has not happened."""
        if self.status != MoveStatus.DONE or self.finished_at is None:
            return None
        return self.finished_at - (self.out_of_traffic_at or self.requested_at)
