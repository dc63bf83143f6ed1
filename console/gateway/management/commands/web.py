"""`manage.py web`: pages, API, sockets and router in one process."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand


class Command(BaseCommand):
    help = "Serve the pages, the API, the live sockets and the router."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=8000)

    def handle(self, *args: Any, **options: Any) -> None:
        # Imported here: building the application reads every static file's name.
        from console.asgi import application
        from console.gateway.serve import serve

        serve(application, options["host"], options["port"])
