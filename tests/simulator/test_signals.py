"""How a server ends: signals, drains, deaths of the engine, and what is left behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.own import is_free
from tests.running import is_running
from tests.simulator.harness import SimulatedServer
from tests.waiting import LIMIT_S, wait_until

SLOW = {"SIMULATOR_SPEED": "1"}
PROMPT = "Which way does the train go at the points? " * 10


class Stream:
    """A streamed completion read by a thread of its own."""

    def __init__(self, server: SimulatedServer, **body: Any) -> None:
        self.text = ""
        self.error: Exception | None = None
        self._body = {"prompt": "x", "max_tokens": 60, "stream": True, **body}
        self._url = f"{server.url}/v1/completions"
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            with httpx.stream("POST", self._url, json=self._body, timeout=120) as response:
                for part in response.iter_text():
                    self.text += part
        except httpx.TransportError as error:
            self.error = error

    def wait_first(self) -> None:
        wait_until(lambda: "data: {" in self.text, "first chunk")

    def join(self) -> None:
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()


def test_sigterm_when_idle_is_exit_code_0() -> None:
    with SimulatedServer("prefill") as server:
        assert server.stop() == 0
        assert "[shutdown] API server: shutdown triggered" in server.log()
        assert is_free(server.port)
        assert is_free(server.side_port)


def test_sigterm_in_flight_hangs_until_the_clients_leave() -> None:
    body = {"prompt": "x", "max_tokens": 500, "stream": True}
    with SimulatedServer(env=SLOW) as server:
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as response:
            parts = response.iter_text()
            next(parts)
            server.process.terminate()
            time.sleep(0.5)
            assert server.process.poll() is None
        assert server.wait_exit() == 0


def test_sigterm_in_flight_can_end_the_streams_with_done() -> None:
    with SimulatedServer(env=SLOW, faults={"sigterm_in_flight": "ends"}) as server:
        stream = Stream(server, max_tokens=5000)
        stream.wait_first()
        assert server.stop() == 0
        stream.join()
        assert stream.text.endswith("data: [DONE]\n\n")
        assert '"finish_reason":"length"' not in stream.text


def test_shutdown_timeout_lets_requests_finish_and_refuses_new_ones() -> None:
    with SimulatedServer(env=SLOW, args=["--shutdown-timeout", "120"]) as server:
        stream = Stream(server, max_tokens=400)
        stream.wait_first()
        server.process.terminate()
        wait_until(lambda: "shutdown triggered" in server.log(), "shutdown")
        refused = httpx.post(f"{server.url}/v1/completions", json={"prompt": "x"})
        assert refused.status_code == 500
        assert refused.json()["error"]["message"] == "cannot schedule new futures after shutdown"
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{server.url}/health")
        server.process.terminate()
        stream.join()
        assert '"finish_reason":"length"' in stream.text
        assert server.wait_exit() == 0


def test_shutdown_timeout_ends_what_takes_longer() -> None:
    with SimulatedServer(env=SLOW, args=["--shutdown-timeout", "0.3"]) as server:
        stream = Stream(server, max_tokens=5000)
        stream.wait_first()
        assert server.stop() == 0
        stream.join()


def test_prefill_server_stays_until_its_blocks_are_read() -> None:
    with (
        SimulatedServer("prefill", args=["--shutdown-timeout", "120"]) as prefill,
        SimulatedServer("decode") as decode,
    ):
        body = {"prompt": PROMPT, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
        params = httpx.post(f"{prefill.url}/v1/completions", json=body).json()["kv_transfer_params"]
        prefill.process.terminate()
        time.sleep(0.3)
        assert prefill.process.poll() is None
        body = {"prompt": PROMPT, "max_tokens": 2, "kv_transfer_params": params}
        assert httpx.post(f"{decode.url}/v1/completions", json=body).status_code == 200
        assert prefill.wait_exit() == 0


def test_sigterm_can_be_ignored() -> None:
    with SimulatedServer(faults={"ignore_sigterm": True}) as server:
        server.process.terminate()
        time.sleep(0.3)
        assert server.is_ready()


def test_sigkill_breaks_answers_off() -> None:
    with SimulatedServer(env=SLOW) as server:
        stream = Stream(server, max_tokens=500)
        stream.wait_first()
        server.kill()
        stream.join()
        assert isinstance(stream.error, httpx.TransportError)


def test_a_server_can_be_told_to_die_with_an_exit_code() -> None:
    with SimulatedServer() as server:
        server.faults(die={"exit_code": 3})
        assert server.wait_exit() == 3


def test_a_server_can_die_at_a_later_request() -> None:
    with SimulatedServer(faults={"die": {"exit_code": 9, "after_requests": 2}}) as server:
        for _ in range(2):
            httpx.post(f"{server.url}/v1/completions", json={"prompt": "x", "max_tokens": 1}).raise_for_status()
        with pytest.raises(httpx.TransportError):
            httpx.post(f"{server.url}/v1/completions", json={"prompt": "x", "max_tokens": 1})
        assert server.wait_exit() == 9


def test_side_channel_port_can_be_held_after_the_exit() -> None:
    with SimulatedServer("prefill", faults={"hold_s": 5.0}) as server:
        assert server.stop() == 0
        assert is_free(server.port)
        assert not is_free(server.side_port)
        wait_until(lambda: is_free(server.side_port), "side-channel port free")


# --- with the engine in a process of its own


@contextmanager
def two_processes(**options: Any) -> Iterator[tuple[SimulatedServer, psutil.Process]]:
    options["env"] = {"SIMULATOR_PROCESSES": "2", **options.get("env", {})}
    with SimulatedServer(**options) as server:
        (engine,) = psutil.Process(server.pid).children()
        yield server, engine


def test_engine_is_a_child_in_the_same_group_and_named_as_vllms() -> None:
    with two_processes(role="prefill") as (server, engine):
        assert Path(f"/proc/{engine.pid}/comm").read_text().strip() == "VLLM::EngineCor"
        assert os.getpgid(engine.pid) == server.pid
        assert f"(EngineCore pid={engine.pid}) " in server.log()


def test_engine_of_its_own_answers_and_counts_as_the_other_does() -> None:
    with two_processes() as (server, _), SimulatedServer() as single:
        body = {"prompt": PROMPT, "max_tokens": 5}
        texts = [
            httpx.post(f"{one.url}/v1/completions", json=body).json()["choices"][0]["text"] for one in (server, single)
        ]
        assert texts[0] == texts[1]
        assert server.metric("vllm:generation_tokens_total") == 5
        stopped = httpx.post(f"{server.url}/v1/completions", json={**body, "stop": texts[0][4:8]}).json()
        assert stopped["choices"][0]["finish_reason"] == "stop"


def test_hand_off_works_between_engines_of_their_own() -> None:
    with two_processes(role="prefill") as (prefill, _), two_processes(role="decode") as (decode, _):
        body = {"prompt": PROMPT, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
        params = httpx.post(f"{prefill.url}/v1/completions", json=body).json()["kv_transfer_params"]
        body = {"prompt": PROMPT, "max_tokens": 2, "kv_transfer_params": params}
        assert httpx.post(f"{decode.url}/v1/completions", json=body).status_code == 200
        assert decode.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer") > 0


def test_sigkill_of_the_server_leaves_its_engine_with_the_port_and_the_kv() -> None:
    with two_processes(role="prefill") as (prefill, engine), SimulatedServer("decode") as decode:
        body = {"prompt": PROMPT, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
        params = httpx.post(f"{prefill.url}/v1/completions", json=body).json()["kv_transfer_params"]
        prefill.kill()
        assert is_free(prefill.port)
        assert not is_free(prefill.side_port)
        body = {"prompt": PROMPT, "max_tokens": 2, "kv_transfer_params": params}
        assert httpx.post(f"{decode.url}/v1/completions", json=body).status_code == 200
        assert engine.is_running()
        prefill.kill_group()
        wait_until(lambda: is_free(prefill.side_port), "side-channel port free")


def test_sigterm_to_the_engine_changes_nothing_and_to_the_server_ends_both() -> None:
    with two_processes(role="decode") as (server, engine):
        engine.terminate()
        time.sleep(0.2)
        assert engine.is_running()
        assert server.stop() == 0
        wait_until(lambda: not is_running(engine.pid), "engine gone")


def test_sigkill_of_the_engine_ends_the_server_with_exit_code_0() -> None:
    with two_processes() as (server, engine):
        engine.send_signal(signal.SIGKILL)
        assert server.wait_exit() == 0


def test_a_server_whose_engine_was_killed_says_so_to_everybody_while_it_lasts() -> None:
    with two_processes(env={**SLOW, "SIMULATOR_WATCHDOG_S": "600"}) as (server, engine):
        stream = Stream(server, max_tokens=5000)
        stream.wait_first()
        engine.send_signal(signal.SIGKILL)
        stream.join()
        event, done = stream.text.strip().split("\n\n")[-2:]
        assert "EngineCore encountered an issue. See stack trace (above) for the root cause." in event
        assert done == "data: [DONE]"
        assert httpx.get(f"{server.url}/health").status_code == 503
        refused = httpx.post(f"{server.url}/v1/completions", json={"prompt": "x"})
        assert refused.status_code == 500


def test_dead_engine_can_leave_its_server_up() -> None:
    env = {"VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "1", "SIMULATOR_WATCHDOG_S": "0"}
    with two_processes(env=env) as (server, engine):
        engine.kill()
        wait_until(lambda: httpx.get(f"{server.url}/health").status_code == 503, "503")
        time.sleep(0.3)
        assert server.process.poll() is None
