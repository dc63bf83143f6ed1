"""Machines and their GPUs, as their agents last reported them."""

from datetime import datetime

from django.conf import settings
from django.db import models
from django.utils import timezone

from console.fleet.models.names import name_validator


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
