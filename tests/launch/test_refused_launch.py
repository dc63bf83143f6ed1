"""A launch that cannot work is refused with the reason, and nothing is started."""

import os
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from console.launch import obstacles
from console.launch.contracts import Cause, GpuReport
from console.launch.ports import PortBlock
from tests.launch.hosts import TestHost, free_ports


def refused(host: TestHost) -> tuple[str, str]:
    """Code and message of a start that was not made."""
    seen = host.seen()
    assert seen["cause"] is not None
    assert (seen["pid"], seen["alive"], seen["group_pids"], seen["exit_code"]) == (None, False, [], None)
    assert host.pids() == []
    return seen["cause"]["code"], seen["cause"]["message"]


def listen(port: int) -> socket.socket:
    return socket.create_server(("127.0.0.1", port))


def test_when_the_api_port_is_taken(host: TestHost) -> None:
    ports = free_ports()
    with listen(ports.api):
        host.launch(ports=ports)
    assert refused(host) == ("port_in_use", f"Taken by another process on the host: port {ports.api}.")


def test_when_a_side_channel_is_taken(host: TestHost) -> None:
    ports = free_ports()
    with listen(ports.side_channel):
        host.launch(ports=ports, role="decode")
    assert refused(host)[0] == "side_channel_in_use"


def test_when_the_side_channel_of_a_later_rank_is_taken(host: TestHost) -> None:
    ports = free_ports(data_parallel=3)
    with listen(ports.side_channels[2]):
        host.launch(ports=ports, role="prefill", engine_args=["-dp", "3"])
    assert refused(host) == (
        "side_channel_in_use",
        f"Taken by another process on the host: port {ports.side_channels[2]}.",
    )


def test_a_plain_server_needs_no_side_channel(host: TestHost) -> None:
    ports = free_ports()
    with listen(ports.side_channel):
        host.launch(ports=ports, role="plain")
    assert host.seen()["alive"]


def test_when_the_address_is_not_of_this_host(host: TestHost) -> None:
    host.launch(address="203.0.113.7")
    code, message = refused(host)
    assert code == "address_not_here"
    assert "203.0.113.7" in message


def test_when_there_is_no_vllm(host: TestHost) -> None:
    host.vllm.unlink()
    host.launch()
    assert refused(host)[0] == "engine_missing"


def test_when_the_command_cannot_be_run(host: TestHost) -> None:
    host.vllm.write_text("#!/no/such/python\n")
    host.launch()
    assert refused(host)[0] == "could_not_start"


def test_when_the_state_cannot_be_written(host: TestHost, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    host.launch()
    assert refused(host) == ("could_not_start", "The host could not start the process: No space left on device")


def test_a_state_that_could_not_be_written_is_written_later(host: TestHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.launch()
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left")))
        host.starts.stop(7, 1, drain_s=0)
        host.wait(lambda seen: not seen["group_pids"])
    host.starts.look()
    host.new_agent().adopt()
    assert host.seen()["stop_requested"]


def test_a_refused_start_stays_refused_and_the_next_one_works(host: TestHost) -> None:
    ports = free_ports()
    with listen(ports.api):
        spec = host.launch(ports=ports)
    host.starts.launch(spec)
    refused(host)
    host.launch(generation=2)
    assert host.seen()["alive"]


def test_processes_of_a_forgotten_start_count_as_leftovers(host: TestHost) -> None:
    host.launch()
    shutil.rmtree(host.folder / "state" / "servers")
    host.new_agent().adopt()
    host.launch(generation=2)
    cause = host.seen()["cause"]
    assert cause is not None
    assert cause["code"] == "orphans_left"


def gpu(held_mib: int, pid: int = 4242, simulated: bool = False) -> GpuReport:
    return GpuReport(
        index=0,
        uuid="GPU-1",
        model_name="H200",
        simulated=simulated,
        memory_total_mib=100 * 1024,
        memory_used_mib=held_mib,
        utilization_percent=None,
        temperature_c=None,
        power_w=None,
        holders=[{"pid": pid, "name": "train.py", "memory_mib": held_mib}],
    )


def test_a_gpu_that_a_stranger_holds_is_named_with_process_and_size(host: TestHost) -> None:
    cause = obstacles.held_gpus(host.spec(gpu_indexes=(0,)), [gpu(40 * 1024)], ours=[])
    assert cause is not None
    assert cause["message"] == "GPU 0 is held by process 4242 train.py with 40.0 GiB."


def test_memory_that_nobody_seems_to_hold_counts_as_held(host: TestHost) -> None:
    unseen = gpu(40 * 1024)
    unseen["holders"] = []
    cause = obstacles.held_gpus(host.spec(gpu_indexes=(0,)), [unseen], ours=[])
    assert cause is not None
    assert cause["message"] == "GPU 0 is held by processes that cannot be seen from here, with 40.0 GiB."


@pytest.mark.parametrize(
    ("report", "ours", "arguments"),
    [
        (gpu(40 * 1024), [4242], []),
        (gpu(5 * 1024), [], []),
        (gpu(40 * 1024), [], ["--gpu-memory-utilization", "0.5"]),
        (gpu(40 * 1024), [], ["--gpu_memory_utilization=0.5"]),
        (gpu(40 * 1024, simulated=True), [], []),
    ],
)
def test_a_gpu_with_room_enough_is_not_refused(
    host: TestHost, report: GpuReport, ours: list[int], arguments: list[str]
) -> None:
    spec = host.spec(gpu_indexes=(0,), engine_args=arguments)
    assert obstacles.held_gpus(spec, [report], ours) is None


def test_memory_that_is_given_back_in_time_is_waited_for() -> None:
    answers = iter([Cause(code="gpu_held", message="", instruction=""), None])
    assert obstacles.wait_for_gpus(lambda: next(answers)) is None


def test_the_launch_is_refused_with_the_gpus_reason(host: TestHost) -> None:
    spec = host.spec(gpu_indexes=(0,))
    host.starts.launch(spec, obstacles.held_gpus(spec, [gpu(40 * 1024)], ours=[]))
    assert refused(host)[0] == "gpu_held"


def test_side_channels_follow_the_data_parallel_ranks(host: TestHost) -> None:
    spec = host.spec(ports=PortBlock(21000, 2), role="prefill", engine_args=["-dp", "2"])
    assert obstacles.needed_ports(spec) == [21000, 21001, 21002]


def test_a_missing_gpu_is_named(host: TestHost, tmp_path: Path) -> None:
    cause = obstacles.missing_gpus(host.spec(gpu_indexes=(0, 5)), [gpu(0)])
    assert cause is not None
    assert cause["message"] == "This host has no GPU 5."
