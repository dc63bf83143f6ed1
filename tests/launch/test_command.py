"""The exact command line and environment of a start."""

import json
import shlex
import subprocess

import pytest

from console.launch import command
from console.launch.command import BadArguments
from console.launch.ports import PortBlock
from tests.launch.inputs import launch_inputs

COMMON = [
    "vllm",
    "serve",
    "/models/tiny",
    "--served-model-name",
    "tiny",
    "--host",
    "10.0.0.5",
    "--port",
    "21000",
    "--shutdown-timeout",
    "35",
    "--enable-prompt-tokens-details",
    "--disable-access-log-for-endpoints",
    "/health,/metrics",
]
TRANSFER = '{"kv_connector":"NixlConnector","kv_role":"%s","engine_id":"engine-1","kv_load_failure_policy":"recompute"}'
PLAIN_ENVIRONMENT = {
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "CUDA_VISIBLE_DEVICES": "0,1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_PORT": "21002",
}
SPLIT_ENVIRONMENT = {
    **PLAIN_ENVIRONMENT,
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "10.0.0.5",
    "VLLM_NIXL_SIDE_CHANNEL_PORT": "21001",
}


def test_a_prefill_server_produces_kv() -> None:
    spec = command.build(launch_inputs(role="prefill"))
    assert spec["argv"] == [*COMMON, "--kv-transfer-config", TRANSFER % "kv_producer"]
    assert spec["env"] == SPLIT_ENVIRONMENT


def test_a_decode_server_consumes_kv() -> None:
    spec = command.build(launch_inputs(role="decode"))
    assert spec["argv"] == [*COMMON, "--kv-transfer-config", TRANSFER % "kv_consumer"]
    assert spec["env"] == SPLIT_ENVIRONMENT


def test_a_plain_server_has_no_connector_and_no_side_channel() -> None:
    spec = command.build(launch_inputs(role="plain"))
    assert spec["argv"] == COMMON
    assert spec["env"] == PLAIN_ENVIRONMENT


def test_the_simulated_engine_gets_the_same_arguments() -> None:
    real, simulated = (command.build(launch_inputs(engine=engine))["argv"] for engine in ("vllm", "simulated"))
    assert simulated == ["python", "-m", "console.simulator", *real[1:]]


def test_the_spec_names_the_start() -> None:
    spec = command.build(launch_inputs())
    assert (spec["server_id"], spec["generation"], spec["api_port"], spec["side_channel_port"]) == (7, 3, 21000, 21001)
    assert (spec["address"], spec["gpu_indexes"]) == ("10.0.0.5", [0, 1])


def test_deployment_arguments_come_last() -> None:
    spec = command.build(launch_inputs(engine_args=["--max-model-len", "8192", "-tp", "2"]))
    assert spec["argv"][-4:] == ["--max-model-len", "8192", "-tp", "2"]


def test_deployment_environment_is_added_and_wins_where_it_may() -> None:
    env = command.build(launch_inputs(engine_env={"UCX_TLS": "tcp", "VLLM_NO_USAGE_STATS": "0"}))["env"]
    assert (env["UCX_TLS"], env["VLLM_NO_USAGE_STATS"]) == ("tcp", "0")


def test_a_server_without_gpus_sees_none() -> None:
    assert command.build(launch_inputs(gpu_indexes=()))["env"]["CUDA_VISIBLE_DEVICES"] == ""


def test_failure_policy_and_connector_settings_reach_the_engine() -> None:
    spec = command.build(launch_inputs(kv_load_failure_policy="fail", connector_extra={"kv_lease_duration": 60}))
    config = json.loads(spec["argv"][-1])
    assert config["kv_load_failure_policy"] == "fail"
    assert config["kv_connector_extra_config"] == {"kv_lease_duration": 60}


def test_the_api_key_is_in_the_secret_environment_only() -> None:
    spec = command.build(launch_inputs(api_key="sk-very-secret"))
    assert spec["secret_env"] == {"VLLM_API_KEY": "sk-very-secret"}
    assert "sk-very-secret" not in json.dumps([spec["argv"], spec["env"]])


def test_environment_that_sounds_secret_is_treated_as_secret() -> None:
    spec = command.build(launch_inputs(engine_env={"HF_TOKEN": "hf_abc", "HF_HUB_OFFLINE": "1"}))
    assert spec["secret_env"] == {"HF_TOKEN": "hf_abc"}
    assert "HF_TOKEN" not in spec["env"]


def test_masking_leaves_the_original_alone() -> None:
    spec = command.build(launch_inputs(api_key="sk-very-secret"))
    assert command.masked(spec)["secret_env"] == {"VLLM_API_KEY": "***"}
    assert spec["secret_env"] == {"VLLM_API_KEY": "sk-very-secret"}


@pytest.mark.parametrize(
    "argument",
    [
        "--port",
        "--port=1",
        "--por=1",
        "--served_model_name=x",
        "--kv-transfer-config.kv_role=kv_both",
        "--kv_transfer_config",
        "--api-key=k",
        "--no-enable-prompt-tokens-details",
        "--config=x.yaml",
        "--root-path=/x",
        "--",
    ],
)
def test_arguments_that_the_console_sets_are_refused(argument: str) -> None:
    with pytest.raises(BadArguments, match=argument[:3]):
        command.build(launch_inputs(engine_args=[argument, "1"]))


def test_every_collision_is_named_at_once() -> None:
    with pytest.raises(BadArguments) as caught:
        command.check_arguments(["--port=1", "--host=0.0.0.0"])
    assert "--port" in str(caught.value)
    assert "--host" in str(caught.value)


@pytest.mark.parametrize("argument", ["--config-format=auto", "--model-impl=auto", "--api-server-count=2", "-O3"])
def test_arguments_with_a_similar_name_are_allowed(argument: str) -> None:
    assert command.build(launch_inputs(engine_args=[argument]))["argv"][-1] == argument


def test_extra_arguments_begin_with_a_flag() -> None:
    with pytest.raises(BadArguments, match="begin with a flag"):
        command.check_arguments(["other-model"])


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "VLLM_NIXL_SIDE_CHANNEL_PORT", "VLLM_API_KEY", "VLLM_PORT"])
def test_environment_that_the_console_sets_is_refused(name: str) -> None:
    with pytest.raises(BadArguments, match=name):
        command.build(launch_inputs(engine_env={name: "1"}))


@pytest.mark.parametrize("environment", [{"A=B": "1"}, {"": "1"}, {"1A": "x"}, {"A": "x\0y"}])
def test_environment_that_no_process_can_have_is_refused(environment: dict[str, str]) -> None:
    with pytest.raises(BadArguments):
        command.check_environment(environment)


@pytest.mark.parametrize(
    ("arguments", "size"),
    [
        ([], 1),
        (["--data-parallel-size", "4"], 4),
        (["--data-parallel-size=2"], 2),
        (["--data_parallel_size", "3"], 3),
        (["-dp", "8"], 8),
        (["--data-parallel-size-local", "4"], 1),
    ],
)
def test_data_parallel_size_is_read_from_the_arguments(arguments: list[str], size: int) -> None:
    assert command.data_parallel_size(arguments) == size


@pytest.mark.parametrize("arguments", [["-dp"], ["-dp", "many"], ["--data-parallel-size=0"]])
def test_a_data_parallel_size_that_is_no_count_is_refused(arguments: list[str]) -> None:
    with pytest.raises(BadArguments, match="whole number"):
        command.data_parallel_size(arguments)


def test_each_rank_has_room_for_its_side_channel() -> None:
    spec = command.build(launch_inputs(ports=PortBlock(21000, data_parallel=4), engine_args=["-dp", "4"]))
    assert (spec["side_channel_port"], spec["env"]["VLLM_PORT"]) == (21001, "21005")


def test_the_shell_text_runs_the_same_command() -> None:
    spec = command.build(launch_inputs(role="decode", engine_args=["--chat-template", "it's {a} $HOME"]))
    spec["argv"][0] = "printf"
    spec["argv"][1] = "%s\\n"
    printed = subprocess.run(["sh", "-c", command.shell_text(spec)], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == spec["argv"][2:]


def test_the_shell_text_begins_with_the_environment_and_masks_what_is_masked() -> None:
    text = command.shell_text(command.masked(command.build(launch_inputs(api_key="sk-very-secret"))))
    words = shlex.split(text.replace("\\\n", " "))
    shown = [f"{name}={value}" for name, value in SPLIT_ENVIRONMENT.items()]
    assert words[: words.index("vllm")] == sorted([*shown, "VLLM_API_KEY=***"])
    assert "sk-very-secret" not in text
