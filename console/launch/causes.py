"""Why a start failed, from a log line that vLLM is known to write, or from how the process ended. Pure.

The last error in a log is hardly ever the cause: worker, engine and API server each report the one before. The first
line that matches here is.
"""

import re
import signal
from dataclasses import dataclass

from console.launch.contracts import Cause

LINE_LIMIT = 500
"""Characters of a log line that are kept as evidence."""
SIDE_CHANNEL_IN_USE = "side_channel_in_use"


@dataclass(frozen=True)
class _Known:
    code: str
    pattern: re.Pattern[str]
    message: str
    """`{0}`, `{1}` stand for the pattern's groups."""
    instruction: str

    def read(self, text: str) -> Cause | None:
        found = self.pattern.search(text)
        if found is None:
            return None
        message = self.message.format(*(group or "" for group in found.groups()))
        return Cause(code=self.code, message=message, instruction=self.instruction, line=text[:LINE_LIMIT])


def _known(code: str, pattern: str, message: str, instruction: str) -> _Known:
    return _Known(code, re.compile(pattern), message, instruction)


_TABLE = (
    _known(
        SIDE_CHANNEL_IN_USE,
        r"ZMQError: Address already in use(?: \(addr='([^']*)'\))?",
        "The port for the KV hand-off is taken by another process ({0}); the engine hangs and never listens.",
        "Start the server again: it gets other ports. If this repeats, look for a process that listens there: ss -ltnp",
    ),
    _known(
        "port_in_use",
        r"\[Errno 98\] (?:Address already in use|error while attempting to bind)",
        "The API port is taken by another process.",
        "Start the server again: it gets another port. If this repeats, see who listens there: ss -ltnp",
    ),
    _known(
        "nixl_missing",
        r"(?:RuntimeError|ImportError): NIXL is not available",
        "NIXL is not available to this vLLM, so it cannot hand KV over.",
        "Install it in the same environment as vLLM on the host (pip install nixl), then start again.",
    ),
    _known(
        "bad_kv_transfer_config",
        r"error: argument --kv-transfer-config: ?(.*)",
        "vLLM does not accept the KV transfer settings: {0}",
        "Correct connector and failure policy of the deployment; the vLLM on this host may be too old for them.",
    ),
    _known(
        "bad_kv_transfer_config",
        r"Input should be 'kv_producer'.*",
        "vLLM does not accept the role in the KV transfer settings.",
        "The vLLM on this host may be too old for split serving: check its version on the host's page.",
    ),
    _known(
        "bad_kv_transfer_config",
        r"Please specify kv_role when kv_connector is set",
        "The KV transfer settings name a connector and no role.",
        "Remove KV transfer settings from the deployment's extra arguments: the console sets them by role.",
    ),
    _known(
        "unknown_connector",
        r"Unsupported connector type: (\S+)",
        "This vLLM does not know the connector {0}.",
        "Choose NixlConnector in the deployment, or install a vLLM on the host that has this connector.",
    ),
    _known(
        "bad_argument",
        r"error: unrecognized arguments: (.+)",
        "vLLM does not know these arguments: {0}",
        "Correct the deployment's extra arguments; the vLLM on this host may be of another version.",
    ),
    _known(
        "bad_argument",
        r"error: argument (\S+?):? (.+)",
        "vLLM does not accept the argument {0}: {1}",
        "Correct the deployment's extra arguments.",
    ),
    _known(
        "model_not_found",
        r"Repo id must be in the form 'repo_name' or 'namespace/repo_name': '([^']*)'",
        "There is no model at {0} on this host.",
        "Copy the model there, or correct the path in the deployment; it must be the same on every host.",
    ),
    _known(
        "model_not_found",
        r"(?:is not a local folder and is not a valid model identifier|does not appear to have a file named config)",
        "The model is neither a folder on this host nor a model that can be downloaded.",
        "Correct the model of the deployment, or copy the model to the host.",
    ),
    _known(
        "model_not_downloaded",
        r"LocalEntryNotFoundError|outgoing traffic has been disabled",
        "The model is not on this host and cannot be downloaded from here.",
        "Download it on the host first, or give the deployment the path of a local copy.",
    ),
    _known(
        "model_restricted",
        r"GatedRepoError|Access to model \S+ is restricted",
        "The model may only be downloaded by accounts that were granted access.",
        "Set HF_TOKEN in the deployment's environment to a token of such an account.",
    ),
    _known(
        "context_too_long",
        r"User-specified max_model_len \((\d+)\) is greater than the derived max_model_len",
        "--max-model-len {0} is more than the model can do.",
        "Lower --max-model-len in the deployment's extra arguments.",
    ),
    _known(
        "kv_cache_too_small",
        r"To serve at least one request with the model's max seq len \((\d+)\)",
        "The memory left for the KV cache does not hold one request of {0} tokens.",
        "Lower --max-model-len, raise --gpu-memory-utilization, or give the server more GPUs.",
    ),
    _known(
        "out_of_memory",
        r"Available memory on node \S+ \(([^)]*)\).* is less than (?:requested|desired)",
        "The host has too little memory for the KV cache (free/total: {0}).",
        "Lower VLLM_CPU_KVCACHE_SPACE in the deployment's environment, or stop what else uses the memory.",
    ),
    _known(
        "out_of_memory",
        r"Free memory on device \S* ?\(([^)]*)\) on startup is less than desired",
        "Something else holds memory on the GPU (free/total: {0}).",
        "See on the host's page which process holds it and end that, or lower --gpu-memory-utilization.",
    ),
    _known(
        "out_of_memory",
        r"(?:OutOfMemoryError|CUDA out of memory|No available memory for the cache blocks)",
        "The GPU's memory is not enough for this model with these settings.",
        "Lower --max-model-len or --max-num-seqs, give the server more GPUs, or end what else holds the GPU.",
    ),
    _known(
        "no_gpu",
        r"(?:No CUDA GPUs are available|NVIDIA driver on your system is too old|libcuda\.so|CUDA driver version)",
        "The engine cannot use the GPU of this host.",
        "Run nvidia-smi on the host; install or update the driver, then start again.",
    ),
    _known(
        "transport_missing",
        r"no active messages transport",
        "NIXL's transport (UCX) finds no way to reach other servers with these settings.",
        "Remove UCX_TLS from the environment of the deployment and of the agent, or add tcp to it.",
    ),
    _known(
        "disk_full",
        r"No space left on device",
        "The host's disk is full.",
        "Free space on the host, then start again.",
    ),
    _known(
        "package_missing",
        r"(?:No module named '([^']+)'|PackageNotFoundError: No package metadata was found for (\S+))",
        "The engine's environment lacks a package: {0}{1}",
        "Install it in the same environment as vLLM on the host, then start again.",
    ),
    _known(
        "bad_number",
        r"ValueError: invalid literal for int\(\)[^:]*: (.*)",
        "A setting that must be a whole number is {0}.",
        "Check the numbers in the deployment's environment and extra arguments.",
    ),
)


def known_cause(text: str) -> Cause | None:
    """What this line of the log says, without its prefix; None when it is not a known reason."""
    return next((cause for known in _TABLE if (cause := known.read(text))), None)


def of_end(exit_code: int | None, was_listening: bool, first_error: str, last_line: str) -> Cause:
    """Why a process that nobody asked to stop has ended, when its log gave no known reason."""
    evidence = (first_error or last_line)[:LINE_LIMIT]
    code, message, instruction = _end(exit_code, was_listening)
    return Cause(code=code, message=message, instruction=instruction, line=evidence)


_READ_THE_LOG = "Read the end of its log, then start it again."


def _end(exit_code: int | None, was_listening: bool) -> tuple[str, str, str]:
    if exit_code is None:
        message = "The process has ended; its exit code is not known, for an earlier agent had started it."
        return "ended", message, _READ_THE_LOG
    if exit_code == -signal.SIGKILL:
        return (
            "killed",
            "The process was killed (signal 9).",
            "If nobody did that, the kernel did for lack of memory: see dmesg on the host. Then start it again.",
        )
    if exit_code < 0:
        return "killed", f"The process was ended by signal {-exit_code}.", _READ_THE_LOG
    if exit_code == 0:
        # The API server ends with 0 when its engine has died.
        what = "its engine died" if was_listening else "it gave up while starting"
        return "engine_died", f"The process ended by itself though nobody stopped it: {what}.", _READ_THE_LOG
    return "exited", f"The process ended with exit code {exit_code}.", _READ_THE_LOG
