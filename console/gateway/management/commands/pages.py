"""`manage.py pages`: started by `manage.py web`, which passes it the connections that ask for pages."""

import socket
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError


class Command(BaseCommand):
    help = "Serve pages, API and live sockets for `manage.py web`, which starts this itself."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--channel", type=int, required=True, help="the descriptor of a socket to the web process")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            end = socket.socket(fileno=options["channel"])
        except OSError as error:
            raise CommandError("This is started by `manage.py web`; start that instead.") from error
        # Imported here: building the application reads every static file's name.
        from console.asgi import application
        from console.gateway.serve import run
        from console.live.serve import PagesServer, give_way

        give_way()
        run(PagesServer(application, end))
