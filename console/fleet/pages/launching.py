"""What the forms show about a start before it happens: the GPUs to choose from, and the checks of a host."""

from collections.abc import Callable, Iterable
from typing import Any, TypedDict

from console.fleet.errors import FleetError
from console.fleet.models import Gpu, Host, Server
from console.launch.contracts import Check


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


def checked(ask: Callable[[], list[Check]]) -> Checked:
    try:
        return Checked(results=ask())
    except FleetError as error:
        return Checked(problem=error.message)


def numbers(indexes: Iterable[Any]) -> list[int]:
    """Of what a form gives, those that are numbers."""
    return [int(index) for index in indexes if str(index).isdecimal()]
