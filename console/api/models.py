"""Answers kept for a while, so that a repeated change does nothing twice."""

from django.db import models
from django.utils import timezone


class KeptAnswer(models.Model):
    """The answer to a change that carried an `Idempotency-Key`. Commits together with the change itself."""

    caller = models.CharField(max_length=40)
    key = models.CharField(max_length=200)
    request_digest = models.CharField(max_length=64)
    """SHA-256 of method, path, query and body."""
    status = models.PositiveSmallIntegerField(default=0)
    body = models.TextField(blank=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["caller", "key"], name="one_answer_per_key")]
        indexes = [models.Index(fields=["created_at"], name="answers_to_forget")]

    def __str__(self) -> str:
        return f"{self.caller}: {self.key}"
