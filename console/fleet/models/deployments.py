"""Served models: what their servers are started with, and how requests are routed to them."""

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.utils import timezone

from console.fleet.models import limits
from console.fleet.models.names import name_validator, no_flag_validator


class Engine(models.TextChoices):
    VLLM = "vllm", "vLLM"
    SIMULATED = "simulated", "Simulated engine"


class KvLoadFailurePolicy(models.TextChoices):
    RECOMPUTE = "recompute", "Recompute: the decode server computes the prompt itself"
    FAIL = "fail", "Fail: the request ends with an error"


class WhenNoPair(models.TextChoices):
    FALLBACK = "fallback", "Serve without splitting, and say so"
    REFUSE = "refuse", "Refuse with 503"


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
    # None: the router's default, of these and of the time limits, whose meaning is that of routing.table.Timeouts.
    max_connections_per_server = models.PositiveIntegerField(
        null=True, blank=True, validators=limits.CONNECTIONS.validators()
    )
    connect_s = models.FloatField(null=True, blank=True, validators=limits.CONNECT_S.validators())
    first_byte_s = models.FloatField(null=True, blank=True, validators=limits.FIRST_BYTE_S.validators())
    idle_s = models.FloatField(null=True, blank=True, validators=limits.IDLE_S.validators())
    total_s = models.FloatField(null=True, blank=True, validators=limits.TOTAL_S.validators())
    comment_every_s = models.FloatField(null=True, blank=True, validators=limits.COMMENT_EVERY_S.validators())

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
