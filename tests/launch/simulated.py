"""Launch specs of simulated servers that are quick to start and to stop."""

from itertools import count
from typing import Any

from console.launch import command
from console.launch.contracts import LaunchSpec
from tests.launch.hosts import free_ports
from tests.launch.inputs import launch_inputs

QUICK = {"SIMULATOR_START_S": "0.3", "SIMULATOR_STOP_S": "0.02", "SIMULATOR_SPEED": "10"}
_ids = count(1)


def simulated(generation: int = 1, **fields: Any) -> LaunchSpec:
    """Of a server that no other test of this process has."""
    server_id = next(_ids)
    defaults: dict[str, Any] = {
        "server_id": server_id,
        "name": f"chat-prefill-{server_id}",
        "engine": "simulated",
        "model": "simulated/model",
        "address": "127.0.0.1",
        "ports": free_ports(),
        "role": "prefill",
        "gpu_indexes": (0,),
        "engine_env": QUICK,
        "engine_id": "engine-of-this-start",
    }
    return command.build(launch_inputs(generation=generation, **{**defaults, **fields}))


def is_up(server: Any) -> bool:
    return bool(server["healthy"])
