"""`manage.py seed`: fills a running console for the demo. `manage.py demo` and the compose file call it."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from console import env
from console.demo import plans
from console.demo.seed import Known, SeedFailed, read_known, ready_line, seed, write_demo_file
from console.fleet.errors import FleetError


class Command(BaseCommand):
    help = "Makes the admin, a deployment and its servers, waits until they serve, and writes the demo's file."

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add("--url", required=True, help="where people reach the console")
        add("--host", required=True, action="append", help="name of a host to launch on; may be given several times")
        add("--since", type=float, help="Unix time; the hosts' agents started later. Default: hosts that report now")
        add("--file", required=True, type=Path, help="the file to write; what it tells stays good")
        add("--tell", action="store_true", help="print address and login when done")
        add("--then-send-to", metavar="URL", help="afterwards, send the demo's traffic there until stopped; TRAFFIC=0 "
            "sends none")  # fmt: skip

    def handle(self, *args: Any, file: Path, tell: bool, then_send_to: str | None, **options: Any) -> None:
        # Put aside, the file is of a run that is over: its token and key end, its password is still in people's heads.
        known = read_known(file) if file.exists() else Known(read_known(file.with_suffix(".last")).password)
        try:
            plan = plans.from_environment()
            demo = seed(plan, options["host"], options["since"], options["url"], known)
        except (SeedFailed, FleetError) as error:
            raise CommandError(str(error)) from error
        write_demo_file(file, demo)
        if tell:
            self.stdout.write(ready_line(demo))
            self.stdout.flush()
        if then_send_to:
            _go_on_as_sender(file, then_send_to)


def _go_on_as_sender(file: Path, url: str) -> None:
    """In this process's place: the sender needs neither Django nor its memory."""
    if not env.flag("TRAFFIC", True):
        signal.pause()
    os.execv(sys.executable, [sys.executable, "-m", "console.demo.traffic", str(file), "--url", url])
