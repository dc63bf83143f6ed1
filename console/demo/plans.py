"""What the demo deploys: simulated engines on four simulated GPUs, or real vLLM on this machine's CPU."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from console import env
from console.demo.supervise import CannotRun
from console.fleet.deployments import DeploymentData
from console.fleet.models import Engine
from console.fleet.states import ServerRole

CPU_ENGINE_ENV = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
"""What a small machine without a GPU needs. One thread for each server leaves cores for the others."""
CPU_ENGINE_ARGS = ["--max-model-len", "8192", "--enforce-eager", "--dtype", "float32"]
"""float32, because CPUs without AVX512-BF16 compute bfloat16 several times slower."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`servers` holds a role and the GPU indexes of each."""

    deployment: DeploymentData
    servers: tuple[tuple[ServerRole, tuple[int, ...]], ...]
    simulated_gpus: int
    ready_limit_s: float


def simulated() -> Plan:
    prefill, decode = ServerRole.PREFILL, ServerRole.DECODE
    return Plan(
        deployment={
            "name": "demo",
            "model": "simulated-8b",
            "served_model_name": "demo",
            "engine": Engine.SIMULATED,
            "engine_args": ["--max-model-len", "32768"],
            "ttft_limit_ms": 2000,
            "gap_limit_ms": 100,
        },
        servers=((prefill, (0,)), (prefill, (1,)), (decode, (2,)), (decode, (3,))),
        simulated_gpus=4,
        ready_limit_s=120,
    )


def vllm() -> Plan:
    """Real engines. Raises CannotRun when they are not installed."""
    home = real_engine_home()
    if not (home / "bin" / "vllm").exists():
        raise CannotRun(f"There is no real engine in {home}. Run `make real-engine` first, or set REAL_ENGINE_HOME.")
    return Plan(
        deployment={
            "name": "demo-vllm",
            "model": env.text("ENGINE_MODEL", str(home / "tiny-model")),
            "served_model_name": "tiny",
            "engine": Engine.VLLM,
            "engine_args": [*CPU_ENGINE_ARGS, *shlex.split(env.text("ENGINE_ARGS"))],
            "engine_env": CPU_ENGINE_ENV,
            "ttft_limit_ms": 10_000,
            "gap_limit_ms": 200,
        },
        servers=((ServerRole.PREFILL, ()), (ServerRole.DECODE, ())),
        simulated_gpus=0,
        ready_limit_s=600,
    )


def real_engine_home() -> Path:
    """Where `make real-engine` installs."""
    return env.folder("REAL_ENGINE_HOME", Path.home() / ".cache" / "real-engine")


def from_environment() -> Plan:
    """By ENGINE. Raises env.BadSetting, CannotRun."""
    engine = env.text("ENGINE", Engine.SIMULATED)
    if engine == Engine.SIMULATED:
        return simulated()
    if engine == Engine.VLLM:
        return vllm()
    raise env.BadSetting(f"ENGINE={engine!r}: expected simulated or vllm")


def agent_environment(plan: Plan, given: Mapping[str, str]) -> dict[str, str]:
    """The agent looks for `vllm` on its PATH."""
    if plan.deployment["engine"] != Engine.VLLM:
        return dict(given)
    return {**given, "PATH": f"{real_engine_home() / 'bin'}:{given.get('PATH', '')}"}
