"""The Celery application: the console's worker, beat, and every host's agent run it."""

import os
import sys

from celery import Celery
from celery.signals import after_task_publish, beat_init
from django.conf import settings

from console import alive, env
from console.checks import check_settings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")


def refuse_wrong_settings() -> None:
    """Ends the program with status 1 and a line for each, as `manage.py` does."""
    try:
        wrong = [f"{found.msg} {found.hint}" for found in check_settings(None) if found.is_serious()]
    except env.BadSetting as error:
        wrong = [str(error)]
    if wrong:
        sys.exit("\n".join(wrong))


if not settings.configured:
    # `celery …` was started by hand. It would turn whatever is raised here or later into a traceback.
    refuse_wrong_settings()
app = Celery("switchyard")
app.config_from_object("django.conf:settings", namespace="CELERY")
# Console tasks touch the database and run on the queues `console` (short) and `checks` (canaries).
# Agent tasks (console.launch.agent) run on a host's own queue and never do.
app.conf.imports = ("console.launch.tasks", "console.launch.agent", "console.traffic.tasks")


@beat_init.connect
def show_that_beat_lives(**kwargs: object) -> None:
    after_task_publish.connect(lambda **_: alive.show(), weak=False)
