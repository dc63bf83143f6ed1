"""Asking a server on its own host: is it healthy, and what do its metrics say. Bounded in time and size."""

import socket
import time
from dataclasses import dataclass

from console.launch.contracts import EngineSample
from console.launch.metrics import engine_sample

TIMEOUT_S = 2.0
SIZE_LIMIT_BYTES = 4 << 20


@dataclass(frozen=True)
class Probe:
    listens: bool
    healthy: bool
    sample: EngineSample | None


SILENT = Probe(listens=False, healthy=False, sample=None)


def probe(address: str, port: int, timeout_s: float = TIMEOUT_S) -> Probe:
    """Takes at most about twice `timeout_s`, however slowly the server answers. Raises nothing."""
    try:
        status, _ = _get(address, port, "/health", timeout_s)
    except ConnectionRefusedError:
        return SILENT
    except OSError:
        return Probe(listens=True, healthy=False, sample=None)
    return Probe(listens=True, healthy=status == 200, sample=_sample(address, port, timeout_s))


def _sample(address: str, port: int, timeout_s: float) -> EngineSample | None:
    try:
        status, body = _get(address, port, "/metrics", timeout_s)
        return engine_sample(body.decode(errors="replace"), time.time()) if status == 200 else None
    except (OSError, ValueError):
        return None


def _get(address: str, port: int, path: str, timeout_s: float) -> tuple[int, bytes]:
    """Status and body. Raises OSError, TimeoutError when the whole answer is not there in time.

    By hand, because a client library's timeout bounds each read and not the sum of them.
    """
    deadline = time.monotonic() + timeout_s
    with socket.create_connection((address, port), timeout=timeout_s) as connection:
        host = f"[{address}]" if ":" in address else address
        # HTTP/1.0: the answer is neither chunked nor kept open.
        connection.sendall(f"GET {path} HTTP/1.0\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
        answer = _read_all(connection, deadline)
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        raise ConnectionError("no HTTP answer")
    return int(words[1]), body


def _read_all(connection: socket.socket, deadline: float) -> bytes:
    received = bytearray()
    while len(received) < SIZE_LIMIT_BYTES:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the answer took too long")
        connection.settimeout(left_s)
        chunk = connection.recv(1 << 16)
        if not chunk:
            break
        received += chunk
    return bytes(received)
