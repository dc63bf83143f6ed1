"""What hosts report, for tests: plain functions with defaults."""

import time
from itertools import count
from typing import Any, cast

from console.launch.contracts import EngineSample, HostReport, Inventory, ServerObservation

_sequence = count(1)


def make_sample(**fields: Any) -> EngineSample:
    defaults: dict[str, Any] = dict.fromkeys(EngineSample.__annotations__, 0)
    return cast(EngineSample, {**defaults, "at": time.time(), **fields})


def make_observation(server_id: int = 1, generation: int = 1, **fields: Any) -> ServerObservation:
    """A process that has just been spawned."""
    defaults: dict[str, Any] = {
        "server_id": server_id,
        "generation": generation,
        "pid": 4000 + server_id,
        "process_started_at": 1_800_000_000.0,
        "alive": True,
        "group_pids": [4000 + server_id],
        "exit_code": None,
        "stop_requested": False,
        "phase": "spawned",
        "phase_times": {},
        "last_line_at": None,
        "engine_id": "",
        "kv_cache_tokens": None,
        "version": "",
        "cause": None,
        "healthy": None,
        "sample": None,
    }
    return cast(ServerObservation, {**defaults, **fields})


def make_end(server_id: int = 1, generation: int = 1, **fields: Any) -> ServerObservation:
    """Its process is gone, and its group with it."""
    return make_observation(
        server_id, generation, **{"alive": False, "group_pids": [], "exit_code": 0, "phase": "listening", **fields}
    )


def make_report(host: str, *servers: ServerObservation, **fields: Any) -> HostReport:
    """The newest of its host: each call counts on."""
    defaults: dict[str, Any] = {
        "host": host,
        "address": "127.0.0.1",
        "agent_started_at": 1_800_000_000.0,
        "seq": next(_sequence),
        "sent_at": time.time(),
        "inventory": make_inventory(),
        "gpus": [],
        "servers": list(servers),
    }
    return cast(HostReport, {**defaults, **fields})


def make_inventory() -> Inventory:
    return Inventory(
        hostname="gpu01",
        cpu_count=8,
        memory_total_mib=65536,
        python="3.11.9",
        agent_version="0.1.0",
        engines={"vllm": None, "nixl": None, "nixl_pinned": None, "path": ""},
        port_range=(21000, 21199),
        busy_ports=[],
        addresses=["127.0.0.1"],
    )
