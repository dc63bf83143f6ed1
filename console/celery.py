"""The Celery application: the console's worker, beat, and every host's agent run it."""

import os

from celery import Celery
from celery.signals import after_task_publish, beat_init

from console import alive

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")

app = Celery("switchyard")
app.config_from_object("django.conf:settings", namespace="CELERY")
# Console tasks touch the database and run on the queues `console` (short) and `checks` (canaries).
# Agent tasks (console.launch.agent) run on a host's own queue and never do.
app.conf.imports = ("console.launch.tasks", "console.launch.agent", "console.traffic.tasks")


@beat_init.connect
def show_that_beat_lives(**kwargs: object) -> None:
    after_task_publish.connect(lambda **_: alive.show(), weak=False)
