"""What the forms show about a start before it happens: the GPUs to choose from, and the checks of a host."""

from collections.abc import Callable, Iterable
from typing import Any, TypedDict

from console.fleet import starting
from console.fleet.errors import FleetError
from console.fleet.models import Deployment, Engine, Gpu, Host, Server
from console.launch.contracts import Check

MOST_NAMED = 3


class GpuChoice(TypedDict):
    gpu: Gpu
    chosen: bool
    servers: list[Server]
    is_free: bool


class Checked(TypedDict, total=False):
    """`problem` in place of `results` when nobody could be asked."""

    results: list[Check]
    problem: str


def gpu_choices(host: Host | None, chosen: Iterable[str]) -> list[GpuChoice]:
    """`chosen`: indexes as a form gives them."""
    if host is None:
        return []
    servers, ticked = list(host.servers.all()), set(chosen)
    return [_gpu_choice(gpu, servers, str(gpu.index) in ticked) for gpu in host.gpus.all()]


def _gpu_choice(gpu: Gpu, servers: list[Server], chosen: bool) -> GpuChoice:
    on_it = [server for server in servers if gpu.index in server.gpu_indexes]
    return GpuChoice(gpu=gpu, chosen=chosen, servers=on_it, is_free=not on_it and not gpu.holders)


def a_free_gpu(host: Host | None) -> list[str]:
    """The first one, as a form gives it, so that a form opens with what could be started; empty when all are taken."""
    return [str(item["gpu"].index) for item in gpu_choices(host, []) if item["is_free"]][:1]


def why_none_is_chosen(host: Host | None, gpus: list[GpuChoice]) -> str:
    """Who has all GPUs of a host, and what to do about it; empty where one is free or chosen."""
    if host is None or not gpus or any(item["chosen"] or item["is_free"] for item in gpus):
        return ""
    resting = [item for item in gpus if not _who_holds(item)]
    if resting:
        index, names = resting[0]["gpu"].index, " and ".join(server.name for server in resting[0]["servers"])
        return (
            f"None is chosen for you: each belongs to a server already. Nothing runs on GPU {index} now, so a server "
            f"can start there; {names} can start again only once that one is stopped."
        )
    holders = ", ".join(dict.fromkeys(name for item in gpus for name in _who_holds(item)))
    return (
        f"None is chosen for you: all are held, by {holders}. Stop one of them and choose its GPU{_elsewhere(host)}. "
        "With “Add, start later” you can choose a held one now."
    )


def _who_holds(item: GpuChoice) -> list[str]:
    servers = [server.name for server in item["servers"] if server.holds_gpu]
    return servers or [f"{holder['name'] or 'a process'} ({holder['pid']})" for holder in item["gpu"].holders]


def _elsewhere(host: Host) -> str:
    others = Host.objects.exclude(pk=host.pk).prefetch_related("gpus", "servers").order_by("name")
    room = [each.name for each in others if each.is_reachable and not each.maintenance and a_free_gpu(each)]
    return f", or choose another host: {', '.join(room[:MOST_NAMED])}" if room else ", or add a host"


def best_host(deployment: Deployment) -> Host | None:
    """The first by name of those that a server could start on now; else the one that lacks the least."""
    hosts = Host.objects.prefetch_related("gpus", "servers").order_by("name")
    return min(hosts, key=lambda host: _what_it_lacks(host, deployment), default=None)


def _what_it_lacks(host: Host, deployment: Deployment) -> tuple[bool, ...]:
    """The gravest first; all False for a host that lacks nothing."""
    reported = host.last_seen_at is not None
    fits = deployment.engine == Engine.SIMULATED or bool(host.inventory.get("engines", {}).get("vllm"))
    return not reported, not host.is_reachable, host.maintenance, not fits, not a_free_gpu(host)


def taken(host: Host, gpu_indexes: Iterable[int]) -> list[str]:
    """What a start on these GPUs would meet, one sentence each. A server may be added for them all the same."""
    wanted = set(gpu_indexes)
    held = starting.holder_of(host, sorted(wanted))
    if held is not None:
        index, server = held
        return [
            f"GPU {index} is held by {server.name}, which is {server.state}. “Add and start” will be refused until "
            f"{server.name} is stopped; “Add, start later” works."
        ]
    return [
        f"GPU {gpu.index} is held by {holder['name'] or 'a process'} ({holder['pid']}). A start fails unless enough of "
        "its memory is free; end that process first, or choose another GPU."
        for gpu in host.gpus.all()
        if gpu.index in wanted and not gpu.simulated
        for holder in gpu.holders
    ]


def checked(ask: Callable[[], list[Check]]) -> Checked:
    try:
        return Checked(results=ask())
    except FleetError as error:
        return Checked(problem=error.message)


def numbers(indexes: Iterable[Any]) -> list[int]:
    """Of what a form gives, those that are numbers."""
    return [int(index) for index in indexes if str(index).isdecimal()]
