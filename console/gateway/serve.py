"""How the web process listens: one uvicorn server for the router, which passes connections for pages on."""

import socket
import sys
from functools import partial
from typing import Any

import uvicorn
from django.conf import settings

from console.gateway.application import RouterApplication, is_routers
from console.gateway.passing import Passing, adopt, passing
from routing.tuning import take_short_turns, tune_process
from routing.uvicorn_protocol import protocol_for

STREAMS_MAY_END_S = 3
"""After SIGTERM running streams have so long; then they are cut, visibly."""
SWITCH_INTERVAL_S = 0.0001
"""How long another thread may keep Python's lock while the event loop waits for it."""
UVICORN: dict[str, Any] = {
    "loop": "uvloop",
    "lifespan": "on",
    "log_config": None,
    "access_log": False,
    "server_header": False,
    "timeout_keep_alive": settings.KEEP_ALIVE_S,
}
"""What all our servers have in common."""


class WebServer(uvicorn.Server):
    """Listens, and takes connections that the pages' process passes back."""

    def __init__(self, config: uvicorn.Config, application: RouterApplication) -> None:
        super().__init__(config)
        self._services = application.services

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._services.pages.adopt = partial(adopt, self)
        self._services.start_pages()
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._services.pages.terminate()  # Now, so that both processes end side by side.
        await super().shutdown(sockets)


def make_server(application: RouterApplication, host: str, port: int) -> WebServer:
    passes = passing(Passing, is_routers, application.services.pages.pass_on)
    config = uvicorn.Config(
        application,
        host=host,
        port=port,
        http=protocol_for(application.router, passes),
        ws="none",
        timeout_graceful_shutdown=STREAMS_MAY_END_S,
        **UVICORN,
    )
    return WebServer(config, application)


def serve(host: str, port: int) -> None:
    """Returns, or ends with the signal, within five seconds of SIGTERM or SIGINT."""
    take_short_turns()  # The pages' process, which it starts, as well.
    run(make_server(RouterApplication(), host, port))


def run(server: uvicorn.Server) -> None:
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    tune_process()
    server.run()
