"""The host's GPUs: real ones by NVML, or simulated ones that follow the simulated servers on them."""

import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pynvml

from console.launch.contracts import GpuReport

MIB = 1 << 20
SIMULATED_MEMORY_MIB = 81920
_ENGINE_SHARE = 0.9
"""vLLM's default --gpu-memory-utilization: it takes this share at start whatever the load."""
_IDLE_W, _FULL_W = 70.0, 620.0
_STREAMS_AT_FULL_POWER = 16

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Holder:
    """A server of ours on some GPUs, for the simulated ones."""

    gpu_indexes: list[int]
    name: str
    pid: int
    running: int


class GpuReader(Protocol):
    def read(self, holders: Iterable[Holder]) -> list[GpuReport]: ...


class SimulatedGpus:
    """Plausible, not measured: memory is held while a server holds the GPU, power grows with its running requests."""

    def __init__(self, count: int) -> None:
        self.count = count

    def read(self, holders: Iterable[Holder]) -> list[GpuReport]:
        held = list(holders)
        return [self._report(index, [one for one in held if index in one.gpu_indexes]) for index in range(self.count)]

    def _report(self, index: int, holders: list[Holder]) -> GpuReport:
        load = min(1.0, sum(holder.running for holder in holders) / _STREAMS_AT_FULL_POWER)
        # The first request costs most: a step reads all weights however few streams share it.
        busy = 0.4 + 0.6 * load if load else 0.0
        share_mib = int(SIMULATED_MEMORY_MIB * _ENGINE_SHARE / max(1, len(holders)))
        return GpuReport(
            index=index,
            uuid=f"simulated-{index}",
            model_name="Simulated GPU",
            simulated=True,
            memory_total_mib=SIMULATED_MEMORY_MIB,
            memory_used_mib=4 + share_mib * len(holders),
            utilization_percent=round(100 * busy, 1),
            temperature_c=round(34 + 40 * busy, 1),
            power_w=round(_IDLE_W + (_FULL_W - _IDLE_W) * busy, 1),
            holders=[{"pid": one.pid, "name": one.name, "memory_mib": share_mib} for one in holders],
        )


class NvmlGpus:
    """Empty on a host without an NVIDIA driver. A sensor that a GPU does not have reads None."""

    def __init__(self) -> None:
        self._handles: list[Any] = []
        try:
            pynvml.nvmlInit()
            self._handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        except pynvml.NVMLError as error:
            logger.info("no NVIDIA GPUs: %s", error)

    def read(self, holders: Iterable[Holder]) -> list[GpuReport]:
        return [self._report(index, handle) for index, handle in enumerate(self._handles)]

    def _report(self, index: int, handle: Any) -> GpuReport:
        memory = _sensor(pynvml.nvmlDeviceGetMemoryInfo, handle)
        rates = _sensor(pynvml.nvmlDeviceGetUtilizationRates, handle)
        power_mw = _sensor(pynvml.nvmlDeviceGetPowerUsage, handle)
        return GpuReport(
            index=index,
            uuid=_text(_sensor(pynvml.nvmlDeviceGetUUID, handle)),
            model_name=_text(_sensor(pynvml.nvmlDeviceGetName, handle)) or "GPU",
            simulated=False,
            memory_total_mib=memory.total // MIB if memory else None,
            memory_used_mib=memory.used // MIB if memory else None,
            utilization_percent=float(rates.gpu) if rates else None,
            temperature_c=_sensor(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
            power_w=power_mw / 1000 if power_mw is not None else None,
            holders=[_holder(one) for one in _sensor(pynvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()],
        )


def _sensor(read: Any, *arguments: Any) -> Any:
    with suppress(pynvml.NVMLError):
        return read(*arguments)
    return None


def _holder(held: Any) -> dict[str, int | str]:
    used = held.usedGpuMemory
    return {"pid": held.pid, "name": _name_of(held.pid), "memory_mib": used // MIB if used else 0}


def _name_of(pid: int) -> str:
    """Empty when the process lives in another container."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")
