"""Asking a server: is it healthy, and what do its metrics say. Bounded in time and size."""

import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from console.launch.contracts import EngineSample
from console.launch.metrics import engine_sample
from console.launch.outside import Place

TIMEOUT_S = 2.0
SIZE_LIMIT_BYTES = 4 << 20


@dataclass(frozen=True)
class Probe:
    listens: bool
    healthy: bool
    sample: EngineSample | None
    metrics: str = ""
    """What the sample was read from."""


SILENT = Probe(listens=False, healthy=False, sample=None)


def probe(address: str, port: int, timeout_s: float = TIMEOUT_S) -> Probe:
    """Takes at most about twice `timeout_s`, however slowly the server answers. Raises nothing."""
    return probe_place(Place(address, port), timeout_s)


def probe_place(place: Place, timeout_s: float = TIMEOUT_S) -> Probe:
    try:
        status, _ = get(place, "/health", timeout_s)
    except ConnectionRefusedError:
        return SILENT
    except OSError:
        return Probe(listens=True, healthy=False, sample=None)
    text = _metrics(place, timeout_s)
    return Probe(listens=True, healthy=status == 200, sample=_sample(text), metrics=text)


def get(place: Place, path: str, timeout_s: float, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
    """Status and body. Raises OSError, TimeoutError when the whole answer is not there in time.

    By hand, because a client library's timeout bounds each read and not the sum of them.
    """
    deadline = time.monotonic() + timeout_s
    # HTTP/1.0: the answer is neither chunked nor kept open.
    lines = {"Host": place.netloc, "Connection": "close", **(headers or {})}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    with _connected(place, timeout_s) as connection:
        connection.sendall(f"GET {place.prefix}{path} HTTP/1.0\r\n{head}\r\n".encode())
        answer = _read_all(connection, deadline)
    first, _, body = answer.partition(b"\r\n\r\n")
    words = first.split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        raise ConnectionError("no HTTP answer")
    return int(words[1]), body


def _connected(place: Place, timeout_s: float) -> socket.socket:
    plain = socket.create_connection((place.host, place.port), timeout=timeout_s)
    if not place.tls:
        return plain
    try:
        return _tls().wrap_socket(plain, server_hostname=place.host)
    except BaseException:
        plain.close()
        raise


@cache
def _tls() -> ssl.SSLContext:
    """Reading the certificates costs some 20 ms, so once."""
    return ssl.create_default_context()


def _metrics(place: Place, timeout_s: float) -> str:
    try:
        status, body = get(place, "/metrics", timeout_s)
    except OSError:
        return ""
    return body.decode(errors="replace") if status == 200 else ""


def _sample(text: str) -> EngineSample | None:
    try:
        return engine_sample(text, time.time()) if text else None
    except ValueError:
        return None


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
