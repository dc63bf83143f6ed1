"""What a host says about itself: GPUs, addresses, ports."""

import socket
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from console.launch.engines import EngineCache
from console.launch.gpus import Holder, NvmlGpus, SimulatedGpus
from console.launch.inventory import HostInventory
from console.launch.network import NoAddress, address_towards, busy_ports, can_bind, is_loopback, nics
from tests.launch.hosts import TestHost, free_ports


def test_idle_simulated_gpus_hold_nothing() -> None:
    reports = SimulatedGpus(4).read([])
    assert [report["index"] for report in reports] == [0, 1, 2, 3]
    assert all(report["simulated"] and report["holders"] == [] for report in reports)
    assert all((report["memory_used_mib"] or 0) < 100 for report in reports)


def test_a_simulated_server_holds_memory_and_takes_power_by_its_load() -> None:
    idle, light, heavy = (
        SimulatedGpus(1).read([Holder([0], "chat-decode-1", 42, running)])[0] for running in (0, 1, 16)
    )
    assert idle["memory_used_mib"] == light["memory_used_mib"] == heavy["memory_used_mib"]
    assert idle["holders"] == [{"pid": 42, "name": "chat-decode-1", "memory_mib": 73728}]
    powers = [report["power_w"] or 0 for report in (idle, light, heavy)]
    assert powers == sorted(powers)
    assert powers[0] < powers[1] < powers[2] <= 700


def test_a_server_holds_its_own_gpus_only() -> None:
    reports = SimulatedGpus(3).read([Holder([0, 2], "chat-decode-1", 42, 1)])
    assert [len(report["holders"]) for report in reports] == [1, 0, 1]


def test_two_servers_on_one_gpu_share_its_memory() -> None:
    [report] = SimulatedGpus(1).read([Holder([0], "a", 1, 0), Holder([0], "b", 2, 0)])
    assert (report["memory_used_mib"] or 0) <= (report["memory_total_mib"] or 0)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """An NVIDIA driver with one GPU that has no power sensor."""

    def missing(*_: Any) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    answers = {
        "nvmlInit": None,
        "nvmlDeviceGetCount": 1,
        "nvmlDeviceGetHandleByIndex": "gpu",
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=80 << 30, used=10 << 30),
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=37),
        "nvmlDeviceGetUUID": "GPU-1",
        "nvmlDeviceGetName": b"NVIDIA H200",
        "nvmlDeviceGetTemperature": 41,
        "nvmlDeviceGetComputeRunningProcesses": [
            SimpleNamespace(pid=1, usedGpuMemory=9 << 30),
            SimpleNamespace(pid=2**22 + 1, usedGpuMemory=None),
        ],
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", missing)


@pytest.mark.usefixtures("nvml")
def test_a_real_gpu_tells_its_sensors_and_who_holds_it() -> None:
    [report] = NvmlGpus().read([])
    assert (report["model_name"], report["uuid"], report["simulated"]) == ("NVIDIA H200", "GPU-1", False)
    assert (report["memory_total_mib"], report["memory_used_mib"]) == (81920, 10240)
    assert (report["utilization_percent"], report["temperature_c"]) == (37.0, 41)
    assert report["holders"][0]["memory_mib"] == 9216
    assert report["holders"][0]["name"]


@pytest.mark.usefixtures("nvml")
def test_a_sensor_that_is_missing_reads_none() -> None:
    assert NvmlGpus().read([])[0]["power_w"] is None


@pytest.mark.usefixtures("nvml")
def test_a_holder_in_another_container_has_no_name() -> None:
    assert NvmlGpus().read([])[0]["holders"][1] == {"pid": 2**22 + 1, "name": "", "memory_mib": 0}


def test_a_host_without_driver_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", missing)
    assert NvmlGpus().read([]) == []


def test_a_port_that_something_listens_on_is_busy() -> None:
    ports = free_ports()
    with socket.create_server(("127.0.0.1", ports.api)):
        assert busy_ports((ports.api, ports.internal)) == [ports.api]
        assert not can_bind("127.0.0.1", ports.api)
    assert can_bind("127.0.0.1", ports.api)


def test_a_port_can_only_be_had_on_an_own_address() -> None:
    with pytest.raises(NoAddress, match=r"203\.0\.113\.7"):
        can_bind("203.0.113.7", 21000)


def test_loopback_comes_last_among_the_cards() -> None:
    assert "127.0.0.1" in nics()[-1]["addresses"]


@pytest.mark.parametrize(
    ("address", "loopback"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("10.0.0.5", False), ("a", False)],
)
def test_loopback_is_known(address: str, loopback: bool) -> None:
    assert is_loopback(address) is loopback


def test_the_own_address_is_that_of_the_way_to_the_other_side() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert address_towards("127.0.0.1", listener.getsockname()[1]) == "127.0.0.1"


def test_the_inventory_says_what_the_host_is() -> None:
    inventory = HostInventory((21000, 21099), EngineCache(None), SimulatedGpus(1)).read()
    assert inventory["port_range"] == (21000, 21099)
    assert inventory["cpu_count"] >= 1
    assert inventory["memory_total_mib"] > 100
    assert "127.0.0.1" in inventory["addresses"]
    assert inventory["engines"]["vllm"] is None


def test_a_gpu_is_held_while_anything_of_the_server_lives(host: TestHost) -> None:
    inventory = HostInventory((21000, 21099), EngineCache(None), SimulatedGpus(2))
    host.launch(gpu_indexes=(1,))
    assert [len(gpu["holders"]) for gpu in inventory.read_gpus(host.starts.live())] == [0, 1]
    host.starts.stop(7, 1, drain_s=0)
    host.wait(lambda seen: not seen["group_pids"])
    assert [len(gpu["holders"]) for gpu in inventory.read_gpus(host.starts.live())] == [0, 0]
