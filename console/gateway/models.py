"""The routing epoch: one row that grows with every change routers must hear of."""

from django.db import models
from django.db.models import F


class Epoch(models.Model):
    """A row of its own, so that asking "did anything change?" costs one tiny query a second."""

    value = models.BigIntegerField(default=1)

    def __str__(self) -> str:
        return str(self.value)

    @classmethod
    def bump(cls) -> int:
        """Grows inside the caller's transaction, so a router that sees the new value also sees the change."""
        cls.objects.get_or_create(pk=1)
        cls.objects.filter(pk=1).update(value=F("value") + 1)
        return cls.current()

    @classmethod
    def current(cls) -> int:
        return cls.objects.filter(pk=1).values_list("value", flat=True).first() or 0
