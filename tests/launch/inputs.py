"""Launch inputs for tests, with defaults."""

from typing import Any

from console.launch.command import LaunchInputs
from console.launch.ports import PortBlock


def launch_inputs(**fields: Any) -> LaunchInputs:
    defaults: dict[str, Any] = {
        "server_id": 7,
        "name": "chat-prefill-1",
        "deployment": "chat",
        "engine": "vllm",
        "role": "prefill",
        "generation": 3,
        "model": "/models/tiny",
        "served_model_name": "tiny",
        "address": "10.0.0.5",
        "ports": PortBlock(21000),
        "engine_id": "engine-1",
        "gpu_indexes": (0, 1),
    }
    return LaunchInputs(**{**defaults, **fields})
