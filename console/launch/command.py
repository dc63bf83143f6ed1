"""What a server is started with: argument list and environment from a deployment, a role, GPUs and ports. Pure."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from console.launch.contracts import LaunchSpec
from console.launch.ports import PortBlock

Role = Literal["plain", "prefill", "decode"]
EngineName = Literal["vllm", "simulated"]

ENGINE_COMMAND: Mapping[EngineName, tuple[str, ...]] = {
    "vllm": ("vllm", "serve"),
    "simulated": ("python", "-m", "console.simulator", "serve"),
}
KV_ROLES: Mapping[Role, str] = {"prefill": "kv_producer", "decode": "kv_consumer"}
SHUTDOWN_TIMEOUT_S = 35
"""Longer than the 30 s for which a prefill server keeps blocks that nobody has fetched yet."""
QUIET_PATHS = "/health,/metrics"
"""Asked every two seconds by the agent: in the access log they would bury everything else."""
MASK = "***"

OWNED_FLAGS: Mapping[str, str] = {
    "--host": "the address comes from the host",
    "--port": "the port comes from the host's port range",
    "--uds": "the router reaches servers by address and port",
    "--model": "the model is a field of the deployment",
    "--model-tag": "the model is a field of the deployment",
    "--served-model-name": "the served name is a field of the deployment",
    "--api-key": "the key is passed by environment, where the process list does not show it",
    "--hf-token": "the process list would show it: set HF_TOKEN in the deployment's environment",
    "--kv-transfer-config": "role, connector and failure policy make it",
    "--shutdown-timeout": "stopping a server relies on it",
    "--enable-prompt-tokens-details": "verification relies on it",
    "--no-enable-prompt-tokens-details": "verification relies on it",
    "--root-path": "the router calls the paths as they are",
    "--ssl-keyfile": "the router reaches servers without TLS",
    "--ssl-certfile": "the router reaches servers without TLS",
    "--config": "a file could change anything that is set here",
    "--headless": "a server without its API cannot be routed",
    "--grpc": "the router speaks HTTP",
}
OWNED_ENVIRONMENT = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "VLLM_API_KEY",
        "VLLM_NIXL_SIDE_CHANNEL_HOST",
        "VLLM_NIXL_SIDE_CHANNEL_PORT",
        "VLLM_PORT",
    }
)
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|CREDENTIAL", re.IGNORECASE)
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class BadArguments(ValueError):
    """Extra arguments or environment that collide with what is set here; the message names each and says why."""


@dataclass(frozen=True)
class LaunchInputs:
    server_id: int
    name: str
    deployment: str
    engine: EngineName
    role: Role
    generation: int
    model: str
    served_model_name: str
    address: str
    """Where routers and the other hosts reach this host."""
    ports: PortBlock
    engine_id: str
    """New at every start: a peer must never take this start for an earlier one."""
    gpu_indexes: Sequence[int] = ()
    engine_args: Sequence[str] = ()
    engine_env: Mapping[str, str] = field(default_factory=dict)
    api_key: str = ""
    connector: str = "NixlConnector"
    connector_extra: Mapping[str, object] = field(default_factory=dict)
    kv_load_failure_policy: str = "recompute"


def build(inputs: LaunchInputs) -> LaunchSpec:
    """Raises BadArguments."""
    for word in (inputs.model, inputs.served_model_name):
        if word.startswith("-"):
            raise BadArguments(f"{word!r} cannot be a model's name: the engine would read it as an option")
    check_arguments(inputs.engine_args)
    check_environment(inputs.engine_env)
    env, secret_env = _environment(inputs)
    return LaunchSpec(
        server_id=inputs.server_id,
        name=inputs.name,
        deployment=inputs.deployment,
        engine=inputs.engine,
        role=inputs.role,
        generation=inputs.generation,
        argv=_arguments(inputs),
        env=env,
        secret_env=secret_env,
        gpu_indexes=list(inputs.gpu_indexes),
        address=inputs.address,
        api_port=inputs.ports.api,
        side_channel_port=inputs.ports.side_channel,
    )


def _arguments(inputs: LaunchInputs) -> list[str]:
    argv = [*ENGINE_COMMAND[inputs.engine], inputs.model]
    argv += ["--served-model-name", inputs.served_model_name]
    argv += ["--host", inputs.address, "--port", str(inputs.ports.api)]
    argv += ["--shutdown-timeout", str(SHUTDOWN_TIMEOUT_S), "--enable-prompt-tokens-details"]
    # Before the deployment's own arguments: of a flag given twice the last one counts.
    argv += ["--disable-access-log-for-endpoints", QUIET_PATHS]
    if inputs.role in KV_ROLES:
        argv += ["--kv-transfer-config", _transfer_config(inputs)]
    return [*argv, *inputs.engine_args]


def _transfer_config(inputs: LaunchInputs) -> str:
    config: dict[str, object] = {
        "kv_connector": inputs.connector,
        "kv_role": KV_ROLES[inputs.role],
        "engine_id": inputs.engine_id,
        "kv_load_failure_policy": inputs.kv_load_failure_policy,
    }
    if inputs.connector_extra:
        config["kv_connector_extra_config"] = dict(inputs.connector_extra)
    return json.dumps(config, separators=(",", ":"))


def _environment(inputs: LaunchInputs) -> tuple[dict[str, str], dict[str, str]]:
    """(shown, secret). What the deployment sets under a name like HF_TOKEN counts as secret."""
    env = {
        # By the order of the bus, as the inventory numbers them; CUDA's own order puts the fastest first.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, inputs.gpu_indexes)),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_PORT": str(inputs.ports.internal),
    }
    if inputs.role in KV_ROLES:
        env["VLLM_NIXL_SIDE_CHANNEL_HOST"] = inputs.address
        env["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(inputs.ports.side_channel)
    secret_env = {"VLLM_API_KEY": inputs.api_key} if inputs.api_key else {}
    for name, value in inputs.engine_env.items():
        (secret_env if is_secret(name) else env)[name] = value
    return env, secret_env


def is_secret(name: str) -> bool:
    """Whether an environment variable's value is masked wherever it is shown, judged by its name: HF_TOKEN, …"""
    return _SECRET_NAME.search(name) is not None


def check_arguments(arguments: Sequence[str]) -> None:
    """Raises BadArguments naming every argument that cannot be used."""
    problems = [problem for argument in arguments if (problem := _argument_problem(argument))]
    if arguments and not arguments[0].startswith("-"):
        problems.insert(0, f"{arguments[0]!r}: extra arguments begin with a flag, such as --max-model-len")
    if problems:
        raise BadArguments("; ".join(problems))


def _argument_problem(argument: str) -> str | None:
    if "\0" in argument:
        return f"{argument!r}: holds a zero byte"
    if argument == "--":
        return "'--': the engine takes no arguments after it"
    if not argument.startswith("--"):
        return None
    # vLLM reads `--served_model_name`, `--port=1`, `--kv-transfer-config.kv_role x` and unique beginnings of flags.
    name = argument.split("=", 1)[0].split(".", 1)[0].replace("_", "-")
    for flag, reason in OWNED_FLAGS.items():
        if flag == name:
            return f"{name} is set by the console: {reason}"
    for flag, reason in OWNED_FLAGS.items():
        if flag.startswith(name):
            return f"{name} can be read as {flag}, which is set by the console: {reason}"
    return None


def check_environment(environment: Mapping[str, str]) -> None:
    """Raises BadArguments naming every variable that cannot be used."""
    problems = []
    for name, value in environment.items():
        if name in OWNED_ENVIRONMENT:
            problems.append(f"{name} is set by the console for each server")
        elif not _ENVIRONMENT_NAME.fullmatch(name):
            problems.append(f"{name!r}: use letters, digits and underscores, not beginning with a digit")
        elif "\0" in value:
            problems.append(f"{name}: its value holds a zero byte")
    if problems:
        raise BadArguments("; ".join(problems))


def data_parallel_size(arguments: Sequence[str]) -> int:
    """How many side channels a server opens. Raises BadArguments when it is no positive whole number."""
    size = 1
    for position, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name.replace("_", "-") not in ("--data-parallel-size", "-dp"):
            continue
        given = value if equals else next(iter(arguments[position + 1 : position + 2]), "")
        if not given.isdecimal() or int(given) < 1:
            raise BadArguments(f"{name} {given}: expected a whole number of at least 1")
        size = int(given)
    return size


def masked(spec: LaunchSpec) -> LaunchSpec:
    """The same with every secret value replaced, fit to be stored and shown."""
    return {**spec, "secret_env": dict.fromkeys(spec["secret_env"], MASK)}


def shell_text(spec: LaunchSpec) -> str:
    """What to paste into a shell to start the same by hand: environment first, one setting or flag a line."""
    settings = [f"{name}={shlex.quote(value)}" for name, value in sorted({**spec["env"], **spec["secret_env"]}.items())]
    return " \\\n".join([*settings, *_command_lines(spec["argv"])])


def _command_lines(argv: Sequence[str]) -> list[str]:
    """The command with its model, then each flag with its values."""
    lines: list[list[str]] = [[]]
    for word in argv:
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(shlex.quote(word))
    return ["  " * (number > 0) + " ".join(words) for number, words in enumerate(lines)]
