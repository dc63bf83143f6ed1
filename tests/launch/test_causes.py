"""Every known way in which a start fails is named, with what to do, from the line that vLLM writes."""

import pytest

from console.launch.causes import known_cause, of_end

# ruff: noqa: E501
KNOWN = [
    ("bad_argument", "vllm: error: unrecognized arguments: --no-such-flag 3"),
    ("bad_argument", "vllm serve: error: argument --max-num-seqs: invalid int value: 'many'"),
    ("bad_kv_transfer_config", "vllm: error: argument --kv-transfer-config: 1 validation error for KVTransferConfig"),
    ("bad_kv_transfer_config", "  Input should be 'kv_producer', 'kv_both' or 'kv_consumer' [type=literal_error]"),
    ("bad_kv_transfer_config", "ValueError: Please specify kv_role when kv_connector is set, supported roles are ('a')"),
    ("unknown_connector", "ValueError: Unsupported connector type: FancyConnector"),
    ("port_in_use", "OSError: [Errno 98] Address already in use"),
    ("port_in_use", "[Errno 98] error while attempting to bind on address ('127.0.0.1', 8000): address already in use"),
    ("model_not_found", "OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/models/none'."),
    ("model_not_downloaded", "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot"),
    ("model_restricted", "huggingface_hub.errors.GatedRepoError: 401 Client Error."),
    ("context_too_long", "User-specified max_model_len (99999) is greater than the derived max_model_len (max_position_"),
    ("nixl_missing", "RuntimeError: NIXL is not available"),
    ("kv_cache_too_small", "ValueError: To serve at least one request with the model's max seq len (8192), (0.5 GiB KV "),
    ("out_of_memory", "ValueError: Available memory on node 0 (8.04/14.09 GiB) on kv cache allocation is less than requested memory for kv (200.0 GiB)."),
    ("out_of_memory", "ValueError: Free memory on device cuda:0 (3.1/79.1 GiB) on startup is less than desired GPU memory"),
    ("out_of_memory", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
    ("no_gpu", "RuntimeError: No CUDA GPUs are available"),
    ("bad_number", "ValueError: invalid literal for int() with base 10: 'abc'"),
    ("side_channel_in_use", "zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:5600')"),
    ("transport_missing", "UCX ERROR no active messages transport to <no debug data>"),
    ("disk_full", "OSError: [Errno 28] No space left on device"),
    ("package_missing", "ModuleNotFoundError: No module named 'flashinfer'"),
    ("package_missing", "importlib.metadata.PackageNotFoundError: No package metadata was found for vllm"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "line"), KNOWN)
def test_the_line_is_known(code: str, line: str) -> None:
    cause = known_cause(line)
    assert cause is not None
    assert cause["code"] == code
    assert cause["line"] == line
    assert len(cause["instruction"]) > 20
    assert "{" not in cause["message"]


@pytest.mark.parametrize(
    ("line", "detail"),
    [
        ("vllm: error: unrecognized arguments: --no-such-flag 3", "--no-such-flag 3"),
        ("ValueError: Unsupported connector type: FancyConnector", "FancyConnector"),
        ("OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/models/none'.", "/models/none"),
        ("zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:5600')", "tcp://127.0.0.1:5600"),
        ("ValueError: Free memory on device cuda:0 (3.1/79.1 GiB) on startup is less than desired", "3.1/79.1 GiB"),
        ("ModuleNotFoundError: No module named 'flashinfer'", "flashinfer"),
    ],
)
def test_the_message_names_what_it_is_about(line: str, detail: str) -> None:
    cause = known_cause(line)
    assert cause is not None
    assert detail in cause["message"]


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
        "Traceback (most recent call last):",
        "NIXL is not available",
        "",
    ],
)
def test_what_only_follows_from_a_cause_is_none(line: str) -> None:
    assert known_cause(line) is None


def test_a_long_line_is_cut() -> None:
    cause = known_cause("RuntimeError: NIXL is not available" + "x" * 5000)
    assert cause is not None
    assert len(cause["line"]) == 500


@pytest.mark.parametrize(
    ("exit_code", "was_listening", "code", "words"),
    [
        (None, False, "ended", "not known"),
        (-9, False, "killed", "signal 9"),
        (-15, True, "killed", "signal 15"),
        (0, True, "engine_died", "its engine died"),
        (0, False, "engine_died", "gave up while starting"),
        (1, False, "exited", "exit code 1"),
    ],
)
def test_without_a_known_line_the_end_itself_is_told(
    exit_code: int | None, was_listening: bool, code: str, words: str
) -> None:
    cause = of_end(exit_code, was_listening, "", "the last line")
    assert (cause["code"], cause["line"]) == (code, "the last line")
    assert words in cause["message"]


def test_the_first_error_is_better_evidence_than_the_last_line() -> None:
    assert of_end(1, False, "the root", "Engine core initialization failed")["line"] == "the root"
