"""vLLM's command line as the simulator reads it."""

from __future__ import annotations

import pytest

from console.simulator.arguments import Arguments, TransferConfigError, parse, parse_transfer


def serve(*arguments: str) -> Arguments:
    return parse(["serve", "org/model", *arguments])


def test_defaults_are_vllms() -> None:
    arguments = serve()
    assert (arguments.port, arguments.block_size, arguments.token_budget) == (8000, 16, 2048)
    assert arguments.names == ("org/model",)
    assert arguments.transfer.connector is None
    assert arguments.shutdown_timeout_s == 0


def test_transfer_defaults_are_vllms() -> None:
    transfer = parse_transfer('{"kv_connector": "NixlConnector", "kv_role": "kv_consumer"}')
    assert (transfer.recompute, transfer.lease_s, transfer.mode) == (False, 30.0, "pull")


def test_unknown_extra_keys_are_accepted_and_unknown_fields_are_not() -> None:
    assert parse_transfer('{"kv_connector_extra_config": {"anything": 1}}').extra == {"anything": 1}
    with pytest.raises(TransferConfigError, match="Unexpected keyword argument"):
        parse_transfer('{"anything": 1}')


@pytest.mark.parametrize(("text", "tokens"), [("8192", 8192), ("8k", 8000), ("8K", 8192)])
def test_lengths_may_be_given_with_a_suffix(text: str, tokens: int) -> None:
    assert serve("--max-model-len", text).max_model_len == tokens


def test_flags_that_users_commonly_pass_are_accepted() -> None:
    serve(
        "--served-model-name", "a", "b",
        "--dtype", "bfloat16",
        "--tensor-parallel-size", "2",
        "--gpu-memory-utilization", "0.9",
        "--enforce-eager",
        "--max-num-seqs", "64",
        "--trust-remote-code",
        "--quantization", "fp8",
        "--kv-cache-dtype", "fp8",
        "--no-enable-prefix-caching",
        "--tool-call-parser", "hermes",
        "--enable-auto-tool-choice",
        "--reasoning-parser", "deepseek_r1",
        "--disable-access-log-for-endpoints", "/health,/metrics",
        "--enable-request-id-headers",
    )  # fmt: skip


def test_given_arguments_show_no_key() -> None:
    assert serve("--api-key", "secret").given["api_key"] == "***"


@pytest.mark.parametrize(
    "arguments", [["--no-such-flag"], ["--port", "many"], ["--dtype", "int3"], ["--max-model-len", "long"]]
)
def test_usage_errors_exit_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        serve(*arguments)
    assert ending.value.code == 2
    assert "vllm: error: " in capsys.readouterr().err


def test_flags_may_not_be_abbreviated() -> None:
    with pytest.raises(SystemExit):
        serve("--max-model", "8")
