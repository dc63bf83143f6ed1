"""What the worker does for the traffic: stores finished requests each second, forgets old ones each hour."""

from contextlib import suppress
from datetime import timedelta

from celery import shared_task
from django.utils import timezone

from console import valkey
from console.database import tried_again
from console.traffic import ingest
from console.traffic.models import RequestRecord

PRUNE_BATCH = 1000


@shared_task(name="traffic.ingest", autoretry_for=())
def take_records() -> int:
    """Runs every second; what it cannot do now, the next one does. May run twice at once without harm."""
    taken = 0
    with suppress(*valkey.Down), tried_again("storing finished requests"):
        taken = ingest.take_all()
    return taken


@shared_task(name="traffic.prune")
def prune() -> int:
    """Deletes records older than RECORDS_KEPT_DAYS, in small steps that hold no lock for long."""
    oldest = timezone.now() - timedelta(days=ingest.kept_days())
    deleted = 0
    while ids := list(RequestRecord.objects.filter(received_at__lt=oldest).values_list("pk", flat=True)[:PRUNE_BATCH]):
        deleted += RequestRecord.objects.filter(pk__in=ids).delete()[0]
    return deleted
