"""Asking a server how it is, whatever it answers or does not answer."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from console.launch.probe import SILENT, probe
from tests.launch.hosts import free_ports
from tests.waiting import LIMIT_S

Answer = Callable[[socket.socket, bytes], object]
METRICS = b"HTTP/1.0 200 OK\r\n\r\nvllm:num_requests_running{} 3\n"
HEALTHY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


@contextmanager
def server(answer: Answer) -> Iterator[int]:
    """The port of a server that lets `answer` deal with each connection and its request line."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    answer(connection, connection.recv(4096).split(b"\r\n")[0])

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def answering(health: bytes, metrics: bytes) -> Answer:
    return lambda connection, line: connection.sendall(health if b"/health" in line else metrics)


def test_a_healthy_server_gives_its_numbers() -> None:
    with server(answering(HEALTHY, METRICS)) as port:
        found = probe("127.0.0.1", port, LIMIT_S)
    assert (found.listens, found.healthy) == (True, True)
    assert found.sample is not None
    assert found.sample["running"] == 3


def test_a_closed_port_is_silent() -> None:
    assert probe("127.0.0.1", free_ports().api) == SILENT


def test_a_dead_engine_listens_and_is_not_healthy() -> None:
    with server(answering(b"HTTP/1.1 503 Service Unavailable\r\n\r\n", METRICS)) as port:
        found = probe("127.0.0.1", port, LIMIT_S)
    assert (found.listens, found.healthy) == (True, False)


@pytest.mark.parametrize("metrics", [b"", b"HTTP/1.1 500 Oh\r\n\r\n", b"nonsense", b"HTTP/1.1 200 OK\r\n\r\nhello"])
def test_health_counts_without_metrics(metrics: bytes) -> None:
    with server(answering(HEALTHY, metrics)) as port:
        found = probe("127.0.0.1", port, LIMIT_S)
    assert (found.healthy, found.sample) == (True, None)


@pytest.mark.parametrize("health", [b"", b"\r\n", b"SSH-2.0-OpenSSH\r\n"])
def test_something_else_on_the_port_is_not_healthy(health: bytes) -> None:
    with server(answering(health, METRICS)) as port:
        assert not probe("127.0.0.1", port, LIMIT_S).healthy


def test_a_server_that_drips_bytes_does_not_hold_the_agent_up() -> None:
    enough = threading.Event()

    def drip(connection: socket.socket, line: bytes) -> None:
        connection.sendall(HEALTHY if b"/health" in line else b"HTTP/1.1 200 OK\r\n\r\n")
        while b"/metrics" in line and not enough.wait(0.02):
            try:
                connection.sendall(b"x")
            except OSError:
                return

    with server(drip) as port:
        began = time.monotonic()
        found = probe("127.0.0.1", port, timeout_s=2.0)
        took_s = time.monotonic() - began
        enough.set()
    assert (found.healthy, found.sample) == (True, None)
    assert took_s < 30


def test_a_server_that_never_answers_is_not_healthy() -> None:
    enough = threading.Event()
    with server(lambda connection, line: enough.wait(LIMIT_S)) as port:
        found = probe("127.0.0.1", port, timeout_s=0.2)
        enough.set()
    assert (found.listens, found.healthy) == (True, False)
