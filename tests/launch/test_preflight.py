"""Checks before a launch: each has a result, and a bad one says what to do."""

import socket
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from console.launch import preflight
from console.launch.contracts import Check, EngineVersions, GpuReport, LaunchSpec
from console.launch.engines import NixlImport
from console.launch.gpus import Holder, SimulatedGpus
from console.launch.preflight import HostView
from tests.launch.hosts import TestHost, free_ports


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def view(tmp_path: Path, **fields: Any) -> HostView:
    defaults: dict[str, Any] = {
        "vllm": tmp_path / "vllm",
        "gpus": SimulatedGpus(2).read([]),
        "our_servers": {},
        "leftovers": [],
        "state_dir": tmp_path,
    }
    return HostView(**{**defaults, **fields})


def one(checks: list[Check], code: str) -> Check:
    [found] = [check for check in checks if check["code"] == code]
    return found


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> EngineVersions:
    """vLLM and NIXL as they should be; a test changes what it is about."""
    found = EngineVersions(vllm="0.31.0", nixl="1.4.1", nixl_pinned="==1.4.1", path="/env/bin/vllm")
    monkeypatch.setattr(preflight, "read_versions", lambda _: found)
    monkeypatch.setattr(preflight, "import_nixl", lambda _: NixlImport(True))
    return found


def split(host: TestHost, **fields: Any) -> LaunchSpec:
    return host.spec(role="prefill", gpu_indexes=(0,), **fields)


@pytest.mark.usefixtures("versions")
def test_a_host_that_is_ready_fails_no_check(host: TestHost, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").touch()
    checks = preflight.run(split(host, model=str(tmp_path / "model")), view(tmp_path))
    assert {check["code"] for check in checks} == {
        "engine", "nixl", "model", "ports", "address", "gpus", "leftovers", "disk"
    }  # fmt: skip
    assert [check for check in checks if check["result"] == "failed"] == []


def test_every_bad_result_says_what_to_do(host: TestHost, tmp_path: Path) -> None:
    spec = split(host, address="203.0.113.7", model="/no/model")
    checks = preflight.run(spec, view(tmp_path, vllm=None, gpus=[], leftovers=[4242]))
    bad = {check["code"]: check for check in checks if check["result"] != "ok"}
    assert {"engine", "model", "ports", "gpus", "leftovers"} <= set(bad)
    assert all(check["instruction"] for check in bad.values())


@pytest.mark.usefixtures("versions")
def test_for_no_model_in_particular_none_is_looked_for(host: TestHost, tmp_path: Path) -> None:
    assert "model" not in {check["code"] for check in preflight.run(split(host, model=""), view(tmp_path))}


def test_vllm_is_missing(host: TestHost, tmp_path: Path) -> None:
    found = one(preflight.run(split(host), view(tmp_path, vllm=None)), "engine")
    assert (found["result"], "--vllm" in found["instruction"]) == ("failed", True)


def test_the_simulated_engine_needs_no_vllm(host: TestHost, tmp_path: Path) -> None:
    checks = preflight.run(split(host, engine="simulated"), view(tmp_path, vllm=None))
    assert one(checks, "engine")["result"] == "ok"


def test_nixl_is_missing(host: TestHost, tmp_path: Path, versions: EngineVersions) -> None:
    versions["nixl"] = None
    found = one(preflight.run(split(host), view(tmp_path)), "nixl")
    assert (found["result"], "pip install nixl" in found["instruction"]) == ("failed", True)


@pytest.mark.usefixtures("versions")
def test_nixl_does_not_load(host: TestHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "import_nixl", lambda _: NixlImport(False, "ImportError: libucp.so"))
    found = one(preflight.run(split(host), view(tmp_path)), "nixl")
    assert (found["result"], "libucp.so" in found["detail"]) == ("failed", True)


@pytest.mark.usefixtures("versions")
def test_a_host_too_busy_to_load_nixl_is_no_failure(
    host: TestHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "import_nixl", lambda _: NixlImport(None, "it took longer than 10 s"))
    assert one(preflight.run(split(host), view(tmp_path)), "nixl")["result"] == "warning"


def test_nixl_is_of_another_version_than_vllm_asks_for(
    host: TestHost, tmp_path: Path, versions: EngineVersions
) -> None:
    versions["nixl"] = "1.3.0"
    found = one(preflight.run(split(host), view(tmp_path)), "nixl")
    assert (found["result"], "==1.4.1" in found["detail"]) == ("warning", True)


@pytest.mark.usefixtures("versions")
def test_a_plain_server_needs_no_nixl(host: TestHost, tmp_path: Path) -> None:
    checks = preflight.run(host.spec(role="plain"), view(tmp_path))
    assert "nixl" not in {check["code"] for check in checks}


@pytest.mark.parametrize(
    ("version", "specifiers", "satisfied"),
    [("1.4.1", "==1.4.1", True), ("1.4.1", ">=1.4,<2", True), ("2.0", ">=1.4,<2", False), ("odd", "==1", True)],
)
def test_versions_are_compared(version: str, specifiers: str, satisfied: bool) -> None:
    assert preflight.satisfies(version, specifiers) is satisfied


@pytest.mark.usefixtures("versions")
class TestModel:
    def result(self, host: TestHost, tmp_path: Path, model: str) -> str:
        return one(preflight.run(split(host, model=model), view(tmp_path)), "model")["result"]

    def test_a_path_that_is_not_there_fails(self, host: TestHost, tmp_path: Path) -> None:
        assert self.result(host, tmp_path, "/no/model") == "failed"

    def test_a_folder_without_config_is_suspicious(self, host: TestHost, tmp_path: Path) -> None:
        assert self.result(host, tmp_path, str(tmp_path)) == "warning"

    def test_a_repository_name_is_not_looked_up(self, host: TestHost, tmp_path: Path) -> None:
        assert self.result(host, tmp_path, "org/model") == "ok"


@pytest.mark.usefixtures("versions")
def test_taken_ports_are_named(host: TestHost, tmp_path: Path) -> None:
    ports = free_ports()
    with socket.create_server(("127.0.0.1", ports.side_channel)):
        found = one(preflight.run(split(host, ports=ports), view(tmp_path)), "ports")
    assert (found["result"], found["detail"]) == ("failed", f"Taken: {ports.side_channel}.")


@pytest.mark.usefixtures("versions")
def test_loopback_is_warned_of(host: TestHost, tmp_path: Path) -> None:
    assert one(preflight.run(split(host), view(tmp_path)), "address")["result"] == "warning"


def held(pid: int, held_mib: int) -> GpuReport:
    [report] = SimulatedGpus(1).read([Holder([0], "train.py", pid, 0)])
    return {
        **report,
        "simulated": False,
        "memory_used_mib": held_mib,
        "holders": [{"pid": pid, "name": "train.py", "memory_mib": held_mib}],
    }


@pytest.mark.usefixtures("versions")
class TestGpus:
    def test_a_stranger_on_the_gpu_is_named(self, host: TestHost, tmp_path: Path) -> None:
        found = one(preflight.run(split(host), view(tmp_path, gpus=[held(4242, 40 * 1024)])), "gpus")
        assert found["result"] == "failed"
        assert found["detail"] == "GPU 0 is held by process 4242 train.py with 40.0 GiB."

    def test_our_own_server_on_the_gpu_is_named_as_such(self, host: TestHost, tmp_path: Path) -> None:
        ours = view(tmp_path, gpus=[held(4242, 40 * 1024)], our_servers={4242: "chat-decode-1"})
        found = one(preflight.run(split(host), ours), "gpus")
        assert (found["result"], "chat-decode-1" in found["detail"]) == ("warning", True)

    def test_a_gpu_that_does_not_exist_fails(self, host: TestHost, tmp_path: Path) -> None:
        found = one(preflight.run(split(host), view(tmp_path, gpus=[])), "gpus")
        assert (found["result"], found["detail"]) == ("failed", "This host has no GPU 0.")

    def test_a_free_gpu_says_how_much_is_free(self, host: TestHost, tmp_path: Path) -> None:
        assert "80.0 GiB" in one(preflight.run(split(host), view(tmp_path)), "gpus")["detail"]


@pytest.mark.usefixtures("versions")
@pytest.mark.parametrize(("free_mib", "result"), [(10, "failed"), (1000, "warning"), (5000, "ok")])
def test_the_disk_is_looked_at(
    host: TestHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_mib: int, result: str
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(0, 0, free_mib << 20))
    assert one(preflight.run(split(host), view(tmp_path)), "disk")["result"] == result


@pytest.mark.usefixtures("versions")
def test_processes_of_an_earlier_start_are_named(host: TestHost, tmp_path: Path) -> None:
    found = one(preflight.run(split(host), view(tmp_path, leftovers=[4242])), "leftovers")
    assert (found["result"], "4242" in found["detail"]) == ("failed", True)
