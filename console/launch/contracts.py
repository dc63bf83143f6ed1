"""What the console and a host's agent say to each other. JSON over the broker; a host needs nothing else.

To the agent, on queue `host.<name>`:

- task `agent.launch(spec: LaunchSpec)`: start one process, once per (server_id, generation); short, idempotent.
- task `agent.stop(server_id, generation, drain_s)`: end the process group by the recipe; returns at once, the agent's
  loop escalates and reports. Unknown servers are reported as gone.
- task `agent.drill(server_id, generation, who)`: kill the engine of a simulated server; nothing for any other.
- task `agent.tail(server_id, generation, max_bytes)` -> LogTail, and `agent.preflight(spec)` -> list[Check]: answered
  through the result backend.

From the agent, published on channel `report:<name>` every few seconds and at every change: a HostReport. The channel
says whose report it is: a host's own login at the broker lets it publish on no other.
"""

from typing import Literal, NotRequired, TypedDict

Phase = Literal[
    "spawned",  # process exists, no line yet
    "imports",  # arguments parsed, engine modules being imported
    "model",  # architecture and context length known
    "weights",  # loading weights
    "kv_cache",  # KV cache sized
    "connector",  # "Creating v1 connector"
    "nixl",  # "Initializing NIXL wrapper" … memory registered
    "warmup",  # "init engine … took"
    "listening",  # "Application startup complete"
]
PHASES: tuple[Phase, ...] = (
    "spawned",
    "imports",
    "model",
    "weights",
    "kv_cache",
    "connector",
    "nixl",
    "warmup",
    "listening",
)
"""In the order of a start. A plain server skips connector and nixl."""


class LaunchSpec(TypedDict):
    """One start of one server, complete: the agent decides nothing but where `argv[0]` lies on its host."""

    server_id: int
    name: str
    deployment: str
    engine: Literal["vllm", "simulated"]
    role: Literal["plain", "prefill", "decode"]
    generation: int
    argv: list[str]
    """`["vllm", "serve", …]` or `["python", "-m", "console.simulator", "serve", …]`; never through a shell."""
    env: dict[str, str]
    """On top of the agent's own environment, which never holds the broker's address."""
    secret_env: dict[str, str]
    """Like `env`, masked wherever it is shown or stored."""
    gpu_indexes: list[int]
    address: str
    api_port: int
    side_channel_port: int


class Cause(TypedDict):
    """Why a start or a server failed: the earliest known cause in its log, else what the process said by ending."""

    code: str
    """`nixl_missing`, `port_in_use`, `side_channel_in_use`, `out_of_memory`, `bad_argument`, `exited`, …"""
    message: str
    instruction: str
    line: NotRequired[str]
    """The log line it was read from."""


class EngineSample(TypedDict):
    """From the server's /metrics, scraped on its host. Counters are since its start."""

    at: float
    running: int
    waiting: int
    kv_usage: float
    """0 to 1."""
    prompt_tokens: float
    generation_tokens: float
    external_kv_tokens: float
    """Prompt tokens whose KV came from another server: the honest measure of a hand-off."""
    local_compute_tokens: float
    transfer_count: float
    transfer_seconds: float
    transfer_bytes: float
    failed_transfers: float
    expired_handoffs: float
    preemptions: float


class ServerObservation(TypedDict):
    """What the agent sees of one start of one server."""

    server_id: int
    generation: int
    pid: int | None
    process_started_at: float | None
    """Unix time by the kernel; with the pid it identifies the process for adoption."""
    alive: bool
    """The main process runs."""
    group_pids: list[int]
    """Everything left in its process group; not empty with `alive` false means orphans."""
    exit_code: int | None
    stop_requested: bool
    phase: Phase
    phase_times: dict[str, float]
    """Phase to the Unix time of its first line."""
    last_line_at: float | None
    engine_id: str
    kv_cache_tokens: int | None
    version: str
    cause: Cause | None
    healthy: bool | None
    """Last /health on its host; None before it listens."""
    sample: EngineSample | None


class GpuReport(TypedDict):
    index: int
    uuid: str
    model_name: str
    simulated: bool
    memory_total_mib: int | None
    memory_used_mib: int | None
    utilization_percent: float | None
    temperature_c: float | None
    power_w: float | None
    holders: list[dict[str, int | str]]


class EngineVersions(TypedDict):
    vllm: str | None
    """None: not found in the environment that the agent launches from."""
    nixl: str | None
    nixl_pinned: str | None
    """What vLLM's own requirements ask for, when they say."""
    path: str


class Nic(TypedDict):
    """A network card that is up."""

    name: str
    addresses: list[str]
    speed_mbps: int | None


class Inventory(TypedDict):
    hostname: str
    cpu_count: int
    memory_total_mib: int
    python: str
    agent_version: str
    engines: EngineVersions
    port_range: tuple[int, int]
    """First and last port that the agent gives to servers."""
    busy_ports: list[int]
    """Ports in that range that something listens on already."""
    addresses: list[str]
    """Every address of `nics`, those that other machines can use first."""
    nics: NotRequired[list[Nic]]


class HostReport(TypedDict):
    host: str
    address: str
    agent_started_at: float
    seq: int
    sent_at: float
    inventory: Inventory
    gpus: list[GpuReport]
    servers: list[ServerObservation]
    """Every start the agent still knows: running, or ended and not yet forgotten."""


class Check(TypedDict):
    """One preflight result."""

    code: str
    title: str
    result: Literal["ok", "warning", "failed"]
    detail: str
    instruction: str


class LogTail(TypedDict):
    path: str
    size_bytes: int
    text: str
    """The last `max_bytes`, cut at a line, carriage returns collapsed, secrets masked."""
    truncated: bool
