"""How the web process listens: one uvicorn server, with the router taken straight from the HTTP parser."""

import gc
import sys

import uvicorn

from console.gateway.application import Application
from routing.uvicorn_protocol import protocol_for

STREAMS_MAY_END_S = 3
"""After SIGTERM running streams have so long; then they are cut, visibly."""
SWITCH_INTERVAL_S = 0.0001
"""How long a page's thread may keep Python's lock while the event loop waits for it.

`docs/architecture.md` has the figures. Pages got no slower.
"""
LARGEST_SOCKET_MESSAGE_BYTES = 64 * 1024


def make_server(application: Application, host: str, port: int) -> uvicorn.Server:
    config = uvicorn.Config(
        application,
        host=host,
        port=port,
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
    return uvicorn.Server(config)


def serve(application: Application, host: str, port: int) -> None:
    """Returns, or ends with the signal, within five seconds of SIGTERM or SIGINT."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    # What is loaded by now stays. Without this every full collection looks at all of it again and holds Python's lock
    # meanwhile: 68 ms, measured, in which no stream moves.
    gc.collect()
    gc.freeze()
    make_server(application, host, port).run()
