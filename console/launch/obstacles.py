"""Why a launch cannot be done on this host now, found by looking: leftovers, ports, GPUs held by strangers."""

import time
from collections.abc import Callable, Iterable

from console.launch.command import BadArguments, data_parallel_size
from console.launch.contracts import Cause, GpuReport, LaunchSpec
from console.launch.network import NoAddress, can_bind

GPU_WAIT_S = 5.0
"""The driver gives memory back a moment after a process has ended."""
ENGINE_SHARE = 0.9
ON_OTHERS = "A server keeps its GPUs: to use others, delete it and add one on those."


def needed_ports(spec: LaunchSpec) -> list[int]:
    """The API port and, for a server that hands KV over, a side channel for each data-parallel rank."""
    if spec["role"] == "plain":
        return [spec["api_port"]]
    first = spec["side_channel_port"]
    try:
        ranks = data_parallel_size(spec["argv"])
    except BadArguments:
        ranks = 1
    return [spec["api_port"], *range(first, first + ranks)]


def leftovers(name: str, pids: Iterable[int]) -> Cause | None:
    left = sorted(pids)
    if not left:
        return None
    return Cause(
        code="orphans_left",
        message=f"Processes of an earlier start of {name} are still there: {', '.join(map(str, left))}.",
        instruction="Press Stop on the server to end them, then start it again.",
    )


def taken_ports(spec: LaunchSpec) -> Cause | None:
    try:
        taken = [port for port in needed_ports(spec) if not can_bind(spec["address"], port)]
    except NoAddress as error:
        return Cause(
            code="address_not_here",
            message=str(error),
            instruction="Start the agent with --address and the address by which routers reach this host.",
        )
    if not taken:
        return None
    return Cause(
        code="port_in_use" if spec["api_port"] in taken else "side_channel_in_use",
        message=f"Taken by another process on the host: port {', '.join(map(str, taken))}.",
        instruction="Start the server again: it gets other ports. To see who listens there: ss -ltnp",
    )


def missing_gpus(spec: LaunchSpec, gpus: Iterable[GpuReport]) -> Cause | None:
    missing = sorted(set(spec["gpu_indexes"]) - {gpu["index"] for gpu in gpus})
    if not missing:
        return None
    return Cause(
        code="gpu_missing",
        message=f"This host has no GPU {', '.join(map(str, missing))}.",
        instruction=f"nvidia-smi on the host lists those that work. {ON_OTHERS}",
    )


def held_gpus(spec: LaunchSpec, gpus: Iterable[GpuReport], ours: Iterable[int]) -> Cause | None:
    """A GPU whose memory others hold so much of that an engine would not start. `ours`: pids of our servers."""
    known = set(ours)
    for gpu in gpus:
        if gpu["index"] not in spec["gpu_indexes"] or gpu["simulated"]:
            continue
        strangers = [holder for holder in gpu["holders"] if holder["pid"] not in known]
        if foreign_mib(gpu, known) > (gpu["memory_total_mib"] or 0) * (1 - memory_share(spec)):
            return Cause(
                code="gpu_held",
                message=f"GPU {gpu['index']} is held by {describe(strangers, foreign_mib(gpu, known))}.",
                instruction=f"End that process on the host, or use another GPU. {ON_OTHERS}",
            )
    return None


def foreign_mib(gpu: GpuReport, ours: Iterable[int]) -> int:
    """Memory in use that is not our servers': of processes we see, and of those in other containers or just ended."""
    known = set(ours)
    ours_mib = sum(int(holder["memory_mib"]) for holder in gpu["holders"] if holder["pid"] in known)
    return max(0, (gpu["memory_used_mib"] or 0) - ours_mib)


def wait_for_gpus(check: Callable[[], Cause | None], wait_s: float = GPU_WAIT_S) -> Cause | None:
    """The first answer that says nothing is in the way, else the last one."""
    deadline = time.monotonic() + wait_s
    while (cause := check()) and time.monotonic() < deadline:
        time.sleep(0.25)
    return cause


def describe(holders: Iterable[dict[str, int | str]], in_use_mib: int) -> str:
    seen = "; ".join(
        f"process {one['pid']} {one['name'] or '(in another container)'} with {int(one['memory_mib']) / 1024:.1f} GiB"
        for one in holders
    )
    return seen or f"processes that cannot be seen from here, with {in_use_mib / 1024:.1f} GiB"


def memory_share(spec: LaunchSpec) -> float:
    """--gpu-memory-utilization, else the engine's default."""
    argv = spec["argv"]
    for position, argument in enumerate(argv):
        name, equals, value = argument.partition("=")
        if name.replace("_", "-") == "--gpu-memory-utilization":
            given = value if equals else next(iter(argv[position + 1 : position + 2]), "")
            try:
                return min(1.0, max(0.0, float(given)))
            except ValueError:
                return ENGINE_SHARE
    return ENGINE_SHARE
