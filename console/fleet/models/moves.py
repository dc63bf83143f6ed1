"""Moves of servers between roles."""

from datetime import timedelta

from django.db import models
from django.utils import timezone

from console.fleet.models.deployments import Deployment
from console.fleet.models.servers import Server
from console.fleet.states import MOVE_OPEN, MoveStatus, ServerRole


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
