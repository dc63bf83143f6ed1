"""What split serving is about: a long prompt stalls the streams of a plain server, and not those of a decode server."""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from typing import Any

import httpx

from tests.simulator.harness import SimulatedServer
from tests.waiting import wait_until

SPEED = {"SIMULATOR_SPEED": "0.1"}
# 2,000 tokens: one step of 2 s beside which a stream's usual step is 0.15 s.
LONG_PROMPT = "the long one " * 615


class Gaps:
    """A stream read in a thread until its longest wait between two chunks is asked for."""

    def __init__(self, server: SimulatedServer) -> None:
        self.times: list[float] = []
        self._server, self._enough = server, threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        self._wait_for_chunks(5)

    def _read(self) -> None:
        body = {"prompt": "the short one", "max_tokens": 5000, "stream": True}
        with httpx.stream("POST", f"{self._server.url}/v1/completions", json=body, timeout=120) as response:
            for _ in response.iter_raw():
                self.times.append(time.monotonic())
                if self._enough.is_set():
                    return

    def _wait_for_chunks(self, count: int) -> None:
        wanted = len(self.times) + count
        wait_until(lambda: len(self.times) >= wanted, "the stream to go on")

    def longest_s(self) -> float:
        """The stream goes on beyond what it was to be held up by, and has left the engine at the end."""
        self._wait_for_chunks(2)
        self._enough.set()
        self._thread.join()
        wait_until(lambda: self._server.metric("vllm:num_requests_running") == 0, "the engine to be idle")
        return max(after - before for before, after in pairwise(self.times))


def complete(server: SimulatedServer, **body: Any) -> Any:
    response = httpx.post(f"{server.url}/v1/completions", json={"prompt": LONG_PROMPT, **body}, timeout=120)
    assert response.status_code == 200, response.text
    return response.json()


def test_a_long_prompt_stalls_the_stream_of_a_plain_server() -> None:
    with SimulatedServer("plain", env=SPEED) as server:
        gaps = Gaps(server)
        complete(server, max_tokens=4)
        assert gaps.longest_s() > 1


def test_a_decode_server_spends_no_step_on_a_long_prompt_that_a_prefill_server_computed() -> None:
    with SimulatedServer("prefill", env=SPEED) as prefill, SimulatedServer("decode", env=SPEED) as decode:
        gaps = Gaps(decode)
        answer = complete(prefill, max_tokens=1, kv_transfer_params={"do_remote_decode": True})
        complete(decode, max_tokens=4, kv_transfer_params=answer["kv_transfer_params"])
        gaps.longest_s()
        # Counted in steps, not seconds, so that a busy machine changes nothing: none of them held a long prompt.
        steps = decode.metric("vllm:iteration_tokens_total_count")
        assert decode.metric("vllm:iteration_tokens_total_bucket", le="16.0") == steps
        assert decode.metric("vllm:prompt_tokens_by_source_total", source="local_compute") < 10


def test_the_plain_server_spends_a_step_on_it() -> None:
    with SimulatedServer("plain") as server:
        complete(server, max_tokens=4)
        small = server.metric("vllm:iteration_tokens_total_bucket", le="1024.0")
        assert server.metric("vllm:iteration_tokens_total_count") - small == 1


def test_smaller_batches_cut_a_long_prompt_into_more_and_shorter_steps() -> None:
    with SimulatedServer("plain", args=["--max-num-batched-tokens", "256"]) as server:
        complete(server, max_tokens=1)
        assert server.metric("vllm:iteration_tokens_total_count") == 8


def test_transfer_time_follows_from_bytes_over_bandwidth() -> None:
    slow = {"SIMULATOR_SPEED": "1", "SIMULATOR_KV_BYTES_PER_TOKEN": "1000000", "SIMULATOR_KV_GBPS": "80"}
    with SimulatedServer("prefill", env=slow) as prefill, SimulatedServer("decode", env=slow) as decode:
        answer = complete(prefill, max_tokens=1, kv_transfer_params={"do_remote_decode": True})
        usage = complete(decode, max_tokens=1, kv_transfer_params=answer["kv_transfer_params"])["usage"]
        expected_s = usage["prompt_tokens"] * 1e6 / 1e10
        assert abs(decode.metric("vllm:nixl_xfer_time_seconds_sum") - expected_s) < 1e-6
        assert decode.metric("vllm:nixl_bytes_transferred_sum") == usage["prompt_tokens"] * 1e6
