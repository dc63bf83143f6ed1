"""Checks before a launch, each with what to do about it. Looks only; nothing is started or changed."""

import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from console.launch import obstacles
from console.launch.contracts import Check, EngineVersions, GpuReport, LaunchSpec
from console.launch.engines import import_nixl, read_versions
from console.launch.network import NoAddress, can_bind, is_loopback

DISK_WARNING_MIB, DISK_FAILED_MIB = 2048, 64
_MIB = 1 << 20


@dataclass(frozen=True)
class HostView:
    """What the checks look at."""

    vllm: Path | None
    gpus: list[GpuReport]
    our_servers: dict[int, str]
    """Pid of each process of our live servers to the server's name."""
    leftovers: list[int]
    state_dir: Path


def run(spec: LaunchSpec, host: HostView) -> list[Check]:
    """Takes a second or two when NIXL must be loaded to see that it works."""
    return [
        *_engine(spec, host.vllm),
        *_model(spec),
        _ports(spec),
        _address(spec),
        *_gpus(spec, host),
        _leftovers(spec, host.leftovers),
        _disk(host.state_dir),
    ]


def check(
    code: str, title: str, result: Literal["ok", "warning", "failed"], detail: str, instruction: str = ""
) -> Check:
    return Check(code=code, title=title, result=result, detail=detail, instruction=instruction)


def _engine(spec: LaunchSpec, vllm: Path | None) -> Iterator[Check]:
    if spec["engine"] == "simulated":
        yield check("engine", "Engine", "ok", "The simulated engine is part of this product.")
        return
    versions = read_versions(vllm)
    if versions["vllm"] is None or vllm is None:
        detail = f"No vLLM was found at {vllm}." if vllm else "There is no vllm command on the agent's PATH."
        instruction = "Install vLLM on the host and restart the agent, with --vllm PATH if it is not on its PATH."
        yield check("engine", "Engine", "failed", detail, instruction)
        return
    yield check("engine", "Engine", "ok", f"vLLM {versions['vllm']} at {vllm}")
    if spec["role"] != "plain":
        yield _nixl(vllm, versions)


def _nixl(vllm: Path, versions: EngineVersions) -> Check:
    install = f"Install it in the same environment as vLLM: {vllm.parent}/pip install nixl"
    if versions["nixl"] is None:
        return check("nixl", "NIXL", "failed", "NIXL is not installed in vLLM's environment.", install)
    loaded = import_nixl(vllm)
    if loaded.works is None:
        detail = f"NIXL {versions['nixl']} is installed; whether it loads was not seen: {loaded.error}."
        return check("nixl", "NIXL", "warning", detail, "Check again when the host is less busy.")
    if not loaded.works:
        return check("nixl", "NIXL", "failed", f"NIXL {versions['nixl']} does not load: {loaded.error}", install)
    pinned = versions["nixl_pinned"]
    if pinned and not satisfies(versions["nixl"], pinned):
        detail = f"NIXL is {versions['nixl']}, but this vLLM asks for {pinned}."
        return check("nixl", "NIXL", "warning", detail, f"{install}{pinned}")
    wanted = f", as this vLLM asks ({pinned})" if pinned else "; this vLLM asks for no particular version"
    return check("nixl", "NIXL", "ok", f"NIXL {versions['nixl']}{wanted}")


def satisfies(version: str, specifiers: str) -> bool:
    """`1.4.1` for `==1.4.1` or `>=1.4,<2`; True for what cannot be compared."""
    try:
        return SpecifierSet(specifiers).contains(Version(version), prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return True


def _model(spec: LaunchSpec) -> Iterator[Check]:
    """Nothing when the host is looked at for no deployment in particular."""
    if model := spec["argv"][spec["argv"].index("serve") + 1]:
        yield _model_there(spec, model)


def _model_there(spec: LaunchSpec, model: str) -> Check:
    if not model.startswith(("/", "./", "../", "~")):
        return check("model", "Model", "ok", f"{model} is a repository name; the engine looks it up itself.")
    if not Path(model).is_dir() and not Path(model).is_file():
        instruction = "Copy the model there. The path must be the same string on every host of the deployment."
        return check("model", "Model", "failed", f"There is no {model} on this host.", instruction)
    if spec["engine"] == "vllm" and Path(model).is_dir() and not Path(model, "config.json").exists():
        instruction = "Check that the copy is complete."
        return check("model", "Model", "warning", f"{model} holds no config.json.", instruction)
    return check("model", "Model", "ok", f"{model} is there.")


def _ports(spec: LaunchSpec) -> Check:
    ports = obstacles.needed_ports(spec)
    try:
        taken = [port for port in ports if not can_bind(spec["address"], port)]
    except NoAddress as error:
        instruction = "Start the agent with --address and the address by which routers reach this host."
        return check("ports", "Ports", "failed", str(error), instruction)
    if taken:
        instruction = "A launch chooses other ports. To see who listens there: ss -ltnp"
        return check("ports", "Ports", "failed", f"Taken: {', '.join(map(str, taken))}.", instruction)
    return check("ports", "Ports", "ok", f"Free: {', '.join(map(str, ports))}.")


def _address(spec: LaunchSpec) -> Check:
    address = spec["address"]
    if is_loopback(address):
        instruction = "Fine while this is the only host. With others, start the agent with --address and a LAN address."
        detail = f"{address} can be reached from this host only."
        return check("address", "Address", "warning", detail, instruction)
    return check("address", "Address", "ok", f"Others reach this host at {address}.")


def _gpus(spec: LaunchSpec, host: HostView) -> Iterator[Check]:
    if cause := obstacles.missing_gpus(spec, host.gpus):
        yield check("gpus", "GPUs", "failed", cause["message"], cause["instruction"])
        return
    if not spec["gpu_indexes"]:
        yield check("gpus", "GPUs", "ok", "The server uses no GPU.")
        return
    for gpu in host.gpus:
        if gpu["index"] in spec["gpu_indexes"]:
            yield _gpu(spec, gpu, host.our_servers)


def _gpu(spec: LaunchSpec, gpu: GpuReport, ours: dict[int, str]) -> Check:
    title = f"GPU {gpu['index']}"
    if cause := obstacles.held_gpus(spec, [gpu], ours):
        return check("gpus", title, "failed", cause["message"], cause["instruction"])
    servers = sorted({ours[pid] for holder in gpu["holders"] if (pid := int(holder["pid"])) in ours})
    if servers:
        instruction = "Both fit only if their --gpu-memory-utilization add up to less than 1."
        return check("gpus", title, "warning", f"Our server {', '.join(servers)} is on it.", instruction)
    return check("gpus", title, "ok", f"{gpu['model_name']}, free{_free(gpu)}")


def _free(gpu: GpuReport) -> str:
    if gpu["memory_total_mib"] is None or gpu["memory_used_mib"] is None:
        return ""
    return f": {(gpu['memory_total_mib'] - gpu['memory_used_mib']) / 1024:.1f} GiB"


def _leftovers(spec: LaunchSpec, pids: Iterable[int]) -> Check:
    if cause := obstacles.leftovers(spec["name"], pids):
        return check("leftovers", "Earlier starts", "failed", cause["message"], cause["instruction"])
    return check("leftovers", "Earlier starts", "ok", "No process of an earlier start is left.")


def _disk(state_dir: Path) -> Check:
    free_mib = shutil.disk_usage(_existing(state_dir)).free // _MIB
    detail = f"{free_mib / 1024:.1f} GiB free for logs at {state_dir}."
    if free_mib < DISK_FAILED_MIB:
        return check("disk", "Disk", "failed", detail, "Free space on the host.")
    if free_mib < DISK_WARNING_MIB:
        return check("disk", "Disk", "warning", detail, "Free space on the host soon; logs grow.")
    return check("disk", "Disk", "ok", detail)


def _existing(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path if os.access(path, os.R_OK) else Path("/")
