"""vLLM's command line, as far as its users commonly pass it. Anything else is a usage error with exit code 2."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from .adapters import Adapter, parse_adapter
from .cors import Cors

ROLES = ("kv_producer", "kv_both", "kv_consumer")
CONNECTORS = ("NixlConnector", "NixlPullConnector", "NixlPushConnector")
_TRANSFER_FIELDS = {
    "kv_connector": str,
    "kv_role": str,
    "engine_id": str,
    "kv_load_failure_policy": str,
    "kv_buffer_device": str,
    "kv_buffer_size": float,
    "kv_rank": int,
    "kv_parallel_size": int,
    "kv_ip": str,
    "kv_port": int,
    "kv_connector_extra_config": dict,
    "kv_connector_module_path": str,
    "enable_permute_local_kv": bool,
}


@dataclass(frozen=True)
class KvTransfer:
    """`--kv-transfer-config`, checked. `connector` None: nothing is handed off."""

    connector: str | None = None
    role: str | None = None
    engine_id: str | None = None
    recompute: bool = False
    extra: dict[str, object] = field(default_factory=dict)

    @property
    def lease_s(self) -> float:
        value = self.extra.get("kv_lease_duration", 30)
        return float(value) if isinstance(value, int | float) else 30.0

    @property
    def mode(self) -> str:
        return "push" if self.connector == "NixlPushConnector" else "pull"


class TransferConfigError(ValueError):
    """The message is what vLLM says about it."""


def parse_transfer(text: str) -> KvTransfer:
    """Raises TransferConfigError."""
    values = _transfer_fields(text)
    role, connector = values.get("kv_role"), values.get("kv_connector")
    if role is not None and role not in ROLES:
        raise _invalid("kv_role", "Input should be 'kv_producer', 'kv_both' or 'kv_consumer'", "literal_error", role)
    if connector is not None and role is None:
        raise TransferConfigError(
            f"1 validation error for KVTransferConfig\n  Value error, Please specify kv_role when kv_connector "
            f"is set, supported roles are {ROLES}"
        )
    policy = values.get("kv_load_failure_policy", "fail")
    if policy not in ("recompute", "fail"):
        raise _invalid("kv_load_failure_policy", "Input should be 'recompute' or 'fail'", "literal_error", policy)
    extra = values.get("kv_connector_extra_config")
    return KvTransfer(
        connector=_text(connector),
        role=_text(role),
        engine_id=_text(values.get("engine_id")),
        recompute=policy == "recompute",
        extra=extra if isinstance(extra, dict) else {},
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _transfer_fields(text: str) -> dict[str, object]:
    try:
        values = json.loads(text)
    except ValueError as error:
        raise TransferConfigError(
            f"1 validation error for KVTransferConfig\n  Invalid JSON: {error} "
            f"[type=json_invalid, input_value={text!r}]"
        ) from error
    if not isinstance(values, dict):
        raise _invalid("", "Input should be an object", "dataclass_type", values)
    for name, value in values.items():
        expected = _TRANSFER_FIELDS.get(name)
        if expected is None:
            raise _invalid(name, "Unexpected keyword argument", "unexpected_keyword_argument", value)
        if value is not None and not isinstance(value, (int, float) if expected is float else expected):
            raise _invalid(name, f"Input should be a valid {expected.__name__}", f"{expected.__name__}_type", value)
    return values


def _invalid(name: str, sentence: str, kind: str, value: object) -> TransferConfigError:
    return TransferConfigError(
        f"1 validation error for KVTransferConfig\n{name}\n  {sentence} [type={kind}, input_value={value!r}, "
        f"input_type={type(value).__name__}]"
    )


@dataclass(frozen=True)
class Arguments:
    """What the simulator uses of the command line; `given` holds all that was given, for the log."""

    model: str
    host: str
    port: int
    names: tuple[str, ...]
    adapters: tuple[Adapter, ...]
    max_model_len: int | None
    block_size: int
    token_budget: int
    max_sequences: int
    max_logprobs: int
    """-1: as many as there are tokens."""
    tensor_parallel: int
    dtype: str
    transfer: KvTransfer
    api_keys: tuple[str, ...]
    root_path: str
    cors: Cors
    shutdown_timeout_s: float
    prompt_tokens_details: bool
    request_id_headers: bool
    server_load: bool
    force_usage: bool
    excludes_tools: bool
    auto_tools: bool
    tool_parser: str | None
    reasoning_parser: str | None
    pooling: bool
    scale_out: bool
    blocks_override: int | None
    access_log: bool
    quiet_paths: frozenset[str]
    prefix_caching: bool
    comment_interval_s: float
    given: dict[str, object]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(2, f"vllm: error: {message}\n")


def _transfer_argument(text: str) -> KvTransfer:
    try:
        return parse_transfer(text)
    except TransferConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _length(text: str) -> int:
    """`8192`, `8k` (thousand) or `8K` (1024), as vLLM reads lengths."""
    factor = {"k": 1000, "K": 1024, "m": 1_000_000, "M": 1 << 20}.get(text[-1:], 1)
    return int(float(text[:-1]) * factor) if factor > 1 else int(text)


def _comma_separated(text: str) -> frozenset[str]:
    return frozenset(part for part in text.split(",") if part)


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="vllm serve", allow_abbrev=False, usage="vllm serve [model_tag] [options]")
    parser.add_argument("model_tag", nargs="?")
    _add_server_flags(parser)
    _add_engine_flags(parser)
    _add_ignored_flags(parser)
    return parser


def _add_server_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--host", default="0.0.0.0")
    add("--port", type=int, default=8000)
    add("--served-model-name", nargs="+", default=[])
    add("--lora-modules", nargs="+", type=parse_adapter, default=[])
    add("--api-key", nargs="+", default=[])
    add("--root-path", default="")
    for name in ("--allowed-origins", "--allowed-methods", "--allowed-headers"):
        add(name, type=json.loads, default=["*"])
    add("--allow-credentials", action=argparse.BooleanOptionalAction, default=False)
    add("--shutdown-timeout", type=float, default=0.0)
    add("--enable-prompt-tokens-details", action=argparse.BooleanOptionalAction, default=False)
    add("--enable-request-id-headers", action=argparse.BooleanOptionalAction, default=False)
    add("--enable-server-load-tracking", action=argparse.BooleanOptionalAction, default=False)
    add("--enable-force-include-usage", action=argparse.BooleanOptionalAction, default=False)
    add("--sse-keep-alive-interval", type=float, default=0.0)
    add("--enable-auto-tool-choice", action=argparse.BooleanOptionalAction, default=False)
    add("--tool-call-parser")
    add("--exclude-tools-when-tool-choice-none", action=argparse.BooleanOptionalAction, default=False)
    add("--reasoning-parser")
    add("--enable-scale-out", action=argparse.BooleanOptionalAction, default=False)
    add("--disable-uvicorn-access-log", action=argparse.BooleanOptionalAction, default=False)
    add("--disable-access-log-for-endpoints", type=_comma_separated, default=frozenset())
    add("--disable-log-stats", action=argparse.BooleanOptionalAction, default=False)


def _add_engine_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model")
    add("--kv-transfer-config", type=_transfer_argument, default=KvTransfer())
    add("--max-model-len", type=_length)
    add("--max-num-batched-tokens", type=_length, default=2048)
    add("--max-num-seqs", type=int, default=256)
    add("--block-size", type=int, default=16)
    add("--num-gpu-blocks-override", type=int)
    add("--max-logprobs", type=int, default=20)
    add("--dtype", choices=["auto", "bfloat16", "float", "float16", "float32", "half"], default="auto")
    add("--tensor-parallel-size", "-tp", type=int, default=1)
    add("--runner", choices=["auto", "draft", "generate", "pooling"], default="auto")
    add("--enable-prefix-caching", action=argparse.BooleanOptionalAction, default=True)


def _add_ignored_flags(parser: argparse.ArgumentParser) -> None:
    """Flags that change nothing that the simulator shows; they appear among the arguments in the log."""
    for name in ("--enforce-eager", "--trust-remote-code", "--enable-log-requests", "--enable-chunked-prefill",
                 "--async-scheduling", "--enable-lora", "--enable-sleep-mode", "--enable-expert-parallel"):  # fmt: skip
        parser.add_argument(name, action=argparse.BooleanOptionalAction, default=None)
    for name in ("--gpu-memory-utilization", "--swap-space", "--cpu-offload-gb"):
        parser.add_argument(name, type=float)
    for name in ("--pipeline-parallel-size", "--data-parallel-size", "--seed", "--api-server-count",
                 "--kv-cache-memory-bytes"):  # fmt: skip
        parser.add_argument(name, type=_length)
    for name in ("--tokenizer", "--tokenizer-mode", "--revision", "--quantization", "--kv-cache-dtype", "--load-format",
                 "--download-dir", "--chat-template", "--uvicorn-log-level", "--middleware",
                 "--compilation-config", "--speculative-config", "--structured-outputs-config", "--hf-overrides",
                 "--generation-config", "--override-generation-config", "--distributed-executor-backend",
                 "--attention-backend", "--limit-mm-per-prompt", "--default-chat-template-kwargs",
                 "--ssl-keyfile", "--ssl-certfile"):  # fmt: skip
        parser.add_argument(name)


def parse(argv: Sequence[str]) -> Arguments:
    """`argv` begins with `serve`. Ends the process with code 2 on a usage error, as vLLM does."""
    parser = build_parser()
    if not argv or argv[0] != "serve":
        parser.error(f"argument subparser: invalid choice: {argv[0] if argv else ''!r} (choose from serve)")
    found = parser.parse_args(list(argv[1:]))
    model = found.model_tag or found.model
    if not model:
        parser.error("the following arguments are required: model_tag")
    if found.enable_auto_tool_choice and not found.tool_call_parser:
        raise TypeError("Error: --enable-auto-tool-choice requires --tool-call-parser")
    return _arguments(parser, found, model)


def _arguments(parser: argparse.ArgumentParser, found: argparse.Namespace, model: str) -> Arguments:
    return Arguments(
        model=model,
        host=found.host,
        port=found.port,
        names=tuple(found.served_model_name) or (model,),
        adapters=tuple(found.lora_modules),
        max_model_len=found.max_model_len,
        block_size=found.block_size,
        token_budget=found.max_num_batched_tokens,
        max_sequences=found.max_num_seqs,
        max_logprobs=found.max_logprobs,
        tensor_parallel=found.tensor_parallel_size,
        dtype={"auto": "bfloat16", "half": "float16", "float": "float32"}.get(found.dtype, found.dtype),
        transfer=found.kv_transfer_config,
        api_keys=tuple(found.api_key),
        root_path=found.root_path.rstrip("/"),
        cors=Cors(
            tuple(found.allowed_origins),
            tuple(found.allowed_methods),
            tuple(found.allowed_headers),
            found.allow_credentials,
        ),
        shutdown_timeout_s=found.shutdown_timeout,
        prompt_tokens_details=found.enable_prompt_tokens_details,
        request_id_headers=found.enable_request_id_headers,
        server_load=found.enable_server_load_tracking,
        force_usage=found.enable_force_include_usage,
        excludes_tools=found.exclude_tools_when_tool_choice_none,
        auto_tools=found.enable_auto_tool_choice,
        tool_parser=found.tool_call_parser,
        reasoning_parser=found.reasoning_parser,
        pooling=found.runner == "pooling",
        scale_out=found.enable_scale_out,
        blocks_override=found.num_gpu_blocks_override,
        access_log=not found.disable_uvicorn_access_log,
        quiet_paths=found.disable_access_log_for_endpoints,
        prefix_caching=found.enable_prefix_caching,
        comment_interval_s=found.sse_keep_alive_interval,
        given=_given(parser, found, model),
    )


def _given(parser: argparse.ArgumentParser, found: argparse.Namespace, model: str) -> dict[str, object]:
    """The arguments that differ from their defaults; the API key is masked as in vLLM's log."""
    given: dict[str, object] = {"model_tag": found.model_tag, "model": model}
    for name, value in vars(found).items():
        if name not in given and value != parser.get_default(name):
            given[name] = "***" if name == "api_key" else value
    return given
