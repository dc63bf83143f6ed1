"""`manage.py web`: listens, routes, and keeps the pages' process beside it."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from console.checks import OF_SETTINGS


class Command(BaseCommand):
    help = "Serve the router, and with a process of their own the pages, the API and the live sockets."

    requires_system_checks = [OF_SETTINGS]
    """The others read every page's module, for a third of the time until it routes. The pages' process does them."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=8000)

    def handle(self, *args: Any, **options: Any) -> None:
        from console.gateway.serve import serve

        serve(options["host"], options["port"])
