"""`manage.py web`: pages, API, sockets and router in one process."""

import sys
from argparse import ArgumentParser
from typing import Any

import uvicorn
from django.core.management.base import BaseCommand

STREAMS_MAY_END_S = 3
"""After SIGTERM running streams have so long; then they are cut, visibly."""
SWITCH_INTERVAL_S = 0.001
"""How long a page's thread may keep Python's lock while the event loop waits for it; Python's own default is 0.005."""
LARGEST_SOCKET_MESSAGE_BYTES = 64 * 1024


class Command(BaseCommand):
    help = "Serve the pages, the API, the live sockets and the router."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=8000)

    def handle(self, *args: Any, **options: Any) -> None:
        from console.asgi import application
        from routing.uvicorn_protocol import protocol_for

        sys.setswitchinterval(SWITCH_INTERVAL_S)
        config = uvicorn.Config(
            application,
            host=options["host"],
            port=options["port"],
            loop="uvloop",
            http=protocol_for(application.router),
            ws="websockets-sansio",
            ws_max_size=LARGEST_SOCKET_MESSAGE_BYTES,
            # Compressing frames for every viewer would cost more than the rest of the live view.
            ws_per_message_deflate=False,
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=STREAMS_MAY_END_S,
        )
        uvicorn.Server(config).run()
