"""Finished requests, as the routers recorded them. Never the text."""

from django.db import models


class RequestRecord(models.Model):
    """One request. Times in ms from `received_at`; server names are kept as text, so they outlive the servers."""

    request_id = models.CharField(max_length=120, unique=True)
    deployment = models.ForeignKey(
        "fleet.Deployment", null=True, on_delete=models.SET_NULL, related_name="request_records"
    )
    model = models.CharField(max_length=200, blank=True)
    path = models.CharField(max_length=120)
    streamed = models.BooleanField()
    received_at = models.DateTimeField()
    route = models.CharField(max_length=20, blank=True)
    reason = models.CharField(max_length=200, blank=True)
    prefill_server = models.CharField(max_length=63, blank=True)
    decode_server = models.CharField(max_length=63, blank=True)
    prefill_server_id = models.BigIntegerField(null=True)
    decode_server_id = models.BigIntegerField(null=True)
    chosen_ms = models.FloatField(null=True)
    prefill_sent_ms = models.FloatField(null=True)
    prefill_answered_ms = models.FloatField(null=True)
    decode_sent_ms = models.FloatField(null=True)
    decode_opened_ms = models.FloatField(null=True)
    first_token_ms = models.FloatField(null=True)
    last_token_ms = models.FloatField(null=True)
    finished_ms = models.FloatField(null=True)
    prompt_tokens = models.PositiveIntegerField(null=True)
    cached_tokens = models.PositiveIntegerField(null=True)
    completion_tokens = models.PositiveIntegerField(null=True)
    gaps_ms = models.JSONField(default=list)
    """Gaps between chunks in order, rounded to 0.1 ms."""
    max_gap_ms = models.FloatField(null=True)
    status = models.PositiveSmallIntegerField()
    outcome = models.CharField(max_length=12)
    error = models.CharField(max_length=400, blank=True)
    attempts = models.PositiveSmallIntegerField(default=1)
    orphaned_handoff = models.BooleanField(default=False)

    class Meta:
        ordering = ["-received_at", "-id"]
        indexes = [
            models.Index(fields=["deployment", "-received_at"], name="requests_page"),
            models.Index(fields=["-received_at"], name="requests_all"),
            models.Index(fields=["decode_server_id", "-received_at"], name="who_shared_its_server"),
        ]

    def __str__(self) -> str:
        return self.request_id
