"""What a decode server makes of good, late, used, wrong and impossible hand-offs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.own import free_port
from tests.simulator.harness import SimulatedServer
from tests.waiting import wait_until

PROMPT = "How do trains change the track without anybody touching the rails between them? " * 10
ASKS_FOR_HAND_OFF = {"do_remote_decode": True}


@pytest.fixture(scope="module")
def prefill() -> Iterator[SimulatedServer]:
    with SimulatedServer("prefill") as server:
        yield server


@pytest.fixture(scope="module")
def decode() -> Iterator[SimulatedServer]:
    with SimulatedServer("decode", args=["--enable-prompt-tokens-details"]) as server:
        yield server


@pytest.fixture(scope="module")
def plain() -> Iterator[SimulatedServer]:
    with SimulatedServer("plain") as server:
        yield server


def complete(server: SimulatedServer, prompt: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/completions", json={"prompt": prompt, "max_tokens": 8, **body}, timeout=120)


def text_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["text"]
    return text


def hand_off(server: SimulatedServer, prompt: str) -> dict[str, Any]:
    response = complete(server, prompt, max_tokens=1, kv_transfer_params=ASKS_FOR_HAND_OFF)
    assert response.status_code == 200, response.text
    params: dict[str, Any] = response.json()["kv_transfer_params"]
    return params


def test_split_answer_equals_the_plain_one_and_the_kv_came_from_outside(
    prefill: SimulatedServer, decode: SimulatedServer, plain: SimulatedServer
) -> None:
    prompt = PROMPT + "equal"
    before = decode.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer")
    params = hand_off(prefill, prompt)
    split = complete(decode, prompt, kv_transfer_params=params)
    assert text_of(split) == text_of(complete(plain, prompt))
    assert split.json()["kv_transfer_params"] is None
    after = decode.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer")
    assert after - before == split.json()["usage"]["prompt_tokens"]
    assert decode.metric("vllm:nixl_xfer_time_seconds_count") >= 1


def test_hand_off_parameters_have_the_fields_of_the_real_ones(prefill: SimulatedServer) -> None:
    params = hand_off(prefill, PROMPT + "fields")
    assert set(params) == {
        "do_remote_prefill", "do_remote_decode", "remote_block_ids", "remote_engine_id", "remote_request_id",
        "remote_host", "remote_port", "tp_size", "dcp_size", "pp_size", "remote_num_tokens",
        "remote_blocks_expiry_time", "transfer_mode", "remote_prefill_cached_tokens",
    }  # fmt: skip
    assert params["remote_port"] == prefill.side_port
    assert len(params["remote_block_ids"][0]) == -(-params["remote_num_tokens"] // 16)


def test_blocks_are_freed_when_decode_has_read_them(decode: SimulatedServer) -> None:
    with SimulatedServer("prefill") as prefill:
        params = hand_off(prefill, PROMPT + "freed")
        assert prefill.metric("vllm:kv_cache_usage_perc") > 0
        complete(decode, PROMPT + "freed", kv_transfer_params=params)
        wait_until(lambda: prefill.metric("vllm:kv_cache_usage_perc") == 0, "blocks freed")


def test_streamed_prefill_answers_without_parameters(prefill: SimulatedServer) -> None:
    response = complete(prefill, PROMPT + "s", max_tokens=1, stream=True, kv_transfer_params=ASKS_FOR_HAND_OFF)
    assert "kv_transfer_params" not in response.text


def test_plain_server_ignores_parameters(plain: SimulatedServer, prefill: SimulatedServer) -> None:
    params = hand_off(prefill, PROMPT + "p")
    assert text_of(complete(plain, PROMPT + "p", kv_transfer_params=params))


def test_decode_without_parameters_computes_the_prompt_itself(decode: SimulatedServer, plain: SimulatedServer) -> None:
    assert text_of(complete(decode, "alone " * 40)) == text_of(complete(plain, "alone " * 40))


def test_second_use_is_right_and_leaves_an_error_in_the_prefill_log(
    prefill: SimulatedServer, decode: SimulatedServer, plain: SimulatedServer
) -> None:
    prompt = PROMPT + "twice"
    params = hand_off(prefill, prompt)
    first = text_of(complete(decode, prompt, kv_transfer_params=params))
    assert text_of(complete(decode, prompt, kv_transfer_params=params)) == first == text_of(complete(plain, prompt))
    wait_until(lambda: "Potentially invalid KV blocks for unrecognized request" in prefill.log(), "the ERROR line")


def test_wrong_but_valid_blocks_give_another_text_with_status_200(
    prefill: SimulatedServer, decode: SimulatedServer, plain: SimulatedServer
) -> None:
    other, params = hand_off(prefill, PROMPT + "other"), hand_off(prefill, PROMPT + "wrong")
    params["remote_block_ids"] = other["remote_block_ids"]
    wrong = complete(decode, PROMPT + "wrong", kv_transfer_params=params)
    assert text_of(wrong) != text_of(complete(plain, PROMPT + "wrong"))


def test_expired_lease_with_reused_blocks_gives_wrong_text_with_status_200(plain: SimulatedServer) -> None:
    lease = {"kv_connector_extra_config": {"kv_lease_duration": 0.2}}
    small = {"SIMULATOR_KV_TOKENS": "512"}
    args = ["--max-model-len", "512"]
    with (
        SimulatedServer("prefill", transfer=lease, env=small, args=args) as prefill,
        SimulatedServer("decode") as decode,
    ):
        params = hand_off(prefill, PROMPT)
        wait_until(lambda: prefill.metric("vllm:nixl_num_kv_expired_reqs_total") == 1, "lease over")
        assert text_of(complete(decode, PROMPT, kv_transfer_params=params)) == text_of(complete(plain, PROMPT))
        for number in range(3):
            complete(prefill, f"{number} others came and took the room " * 30, max_tokens=1)
        late = complete(decode, "x" + PROMPT[1:], kv_transfer_params=params)
        assert text_of(late) != text_of(complete(plain, "x" + PROMPT[1:]))
        assert "which were retrieved by 0 remote worker(s) before lease expired." in prefill.log()


def test_block_ids_out_of_range_fail_the_request_and_the_server_survives(
    prefill: SimulatedServer, decode: SimulatedServer
) -> None:
    params = hand_off(prefill, PROMPT + "range")
    params["remote_block_ids"] = [[10_000_000 + i for i in range(len(params["remote_block_ids"][0]))]]
    response = complete(decode, PROMPT + "range", kv_transfer_params=params)
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "InternalServerError"
    assert text_of(complete(decode, "still here"))


def test_unknown_engine_id_at_a_live_port_fails_at_once(prefill: SimulatedServer, decode: SimulatedServer) -> None:
    params = hand_off(prefill, PROMPT + "id") | {"remote_engine_id": "somebody-else"}
    assert complete(decode, PROMPT + "id", kv_transfer_params=params).status_code == 500
    assert "Remote NIXL agent engine ID mismatch" in decode.log()


def test_failed_load_in_a_stream_is_status_200_and_only_done(prefill: SimulatedServer, decode: SimulatedServer) -> None:
    params = hand_off(prefill, PROMPT + "silent") | {"remote_engine_id": "nobody"}
    body = {"stream": True, "kv_transfer_params": params}
    response = complete(decode, PROMPT + "silent", **body)
    assert (response.status_code, response.text) == (200, "data: [DONE]\n\n")
    messages = [{"role": "user", "content": PROMPT}]
    chat = httpx.post(f"{decode.url}/v1/chat/completions", json={"messages": messages, **body})
    role, done = chat.text.strip().split("\n\n")
    assert '"delta":{"role":"assistant","content":""}' in role
    assert done == "data: [DONE]"


@pytest.mark.parametrize("blocks", [None, [], [[]], [1, 2, 3], [[1]]])
def test_impossible_block_ids_end_the_engine_and_the_server_with_exit_code_0(
    prefill: SimulatedServer, blocks: object
) -> None:
    with SimulatedServer("decode") as decode:
        params = hand_off(prefill, PROMPT) | {"remote_block_ids": blocks}
        response = complete(decode, PROMPT, kv_transfer_params=params)
        assert response.status_code == 500
        assert response.json()["error"]["message"].startswith("EngineCore encountered an issue.")
        assert decode.wait_exit() == 0


def test_a_server_whose_engine_ended_is_ill_while_it_lasts(prefill: SimulatedServer) -> None:
    with SimulatedServer("decode", env={"SIMULATOR_WATCHDOG_S": "600"}) as decode:
        params = hand_off(prefill, PROMPT) | {"remote_block_ids": []}
        assert complete(decode, PROMPT, kv_transfer_params=params).status_code == 500
        assert httpx.get(f"{decode.url}/health").status_code == 503


def test_clients_own_do_remote_prefill_ends_the_server() -> None:
    with SimulatedServer("decode") as decode:
        assert complete(decode, "hi", kv_transfer_params={"do_remote_prefill": True}).status_code == 500
        assert decode.wait_exit() == 0


@pytest.mark.parametrize("field", ["remote_host", "remote_port", "remote_request_id", "remote_engine_id"])
def test_missing_field_hangs_the_request_and_the_engine_dies_when_the_client_leaves(
    prefill: SimulatedServer, field: str
) -> None:
    with SimulatedServer("decode") as decode:
        params = hand_off(prefill, PROMPT)
        del params[field]
        with decode.asked("/v1/completions", {"prompt": PROMPT, "kv_transfer_params": params}) as client:
            client.settimeout(0.3)
            with pytest.raises(TimeoutError):
                client.recv(1)
        assert decode.wait_exit() == 0
        assert "KeyError" in decode.log()


def test_dead_prefill_fails_after_the_handshake_timeout_without_contact() -> None:
    with (
        SimulatedServer("prefill") as prefill,
        SimulatedServer("decode", env={"SIMULATOR_HANDSHAKE_TIMEOUT_S": "0.5"}) as decode,
    ):
        params = hand_off(prefill, PROMPT)
        prefill.kill()
        began = time.monotonic()
        assert complete(decode, PROMPT, kv_transfer_params=params).status_code == 500
        assert time.monotonic() - began >= 0.5
        assert decode.metric("vllm:nixl_num_failed_transfers_total") == 1
        assert decode.metric("vllm:request_success_total", finished_reason="error") == 1


def test_dead_prefill_fails_at_once_after_contact() -> None:
    with (
        SimulatedServer("prefill") as prefill,
        SimulatedServer("decode", env={"SIMULATOR_HANDSHAKE_TIMEOUT_S": "30"}) as decode,
    ):
        first, second = hand_off(prefill, PROMPT + "1"), hand_off(prefill, PROMPT + "2")
        text_of(complete(decode, PROMPT + "1", kv_transfer_params=first))
        prefill.kill()
        assert complete(decode, PROMPT + "2", kv_transfer_params=second).status_code == 500


def test_restarted_prefill_has_a_new_engine_id_and_its_old_hand_offs_fail(plain: SimulatedServer) -> None:
    with SimulatedServer("prefill") as prefill, SimulatedServer("decode") as decode:
        old, unused = hand_off(prefill, PROMPT + "1"), hand_off(prefill, PROMPT + "2")
        text_of(complete(decode, PROMPT + "1", kv_transfer_params=old))
        prefill.kill()
        prefill.start()
        prefill.wait_ready()
        assert complete(decode, PROMPT + "2", kv_transfer_params=unused).status_code == 500
        fresh = hand_off(prefill, PROMPT + "3")
        assert fresh["remote_engine_id"] != old["remote_engine_id"]
        assert text_of(complete(decode, PROMPT + "3", kv_transfer_params=fresh)) == text_of(
            complete(plain, PROMPT + "3")
        )


def test_recompute_policy_answers_rightly_without_the_prefill_server(plain: SimulatedServer) -> None:
    policy = {"kv_load_failure_policy": "recompute"}
    env = {"SIMULATOR_HANDSHAKE_TIMEOUT_S": "0.2"}
    with SimulatedServer("decode", transfer=policy, env=env) as decode, SimulatedServer("prefill") as prefill:
        params = hand_off(prefill, PROMPT)
        prefill.kill()
        assert text_of(complete(decode, PROMPT, kv_transfer_params=params)) == text_of(complete(plain, PROMPT))
        assert decode.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer") == 0


def test_other_model_path_fails_every_request(prefill: SimulatedServer) -> None:
    with SimulatedServer("decode", model="simulated/model-copy") as decode:
        params = hand_off(prefill, PROMPT)
        assert complete(decode, PROMPT, kv_transfer_params=params).status_code == 500
        assert "NIXL compatibility hash mismatch" in decode.log()


def test_smaller_block_size_on_decode_fails(prefill: SimulatedServer) -> None:
    with SimulatedServer("decode", args=["--block-size", "8"]) as decode:
        params = hand_off(prefill, PROMPT)
        assert complete(decode, PROMPT, kv_transfer_params=params).status_code == 500
        assert "Local block size 8 is not divisible by remote block size 16" in decode.log()


def test_dropped_kv_is_computed_again_without_a_word(prefill: SimulatedServer, plain: SimulatedServer) -> None:
    with SimulatedServer("decode", faults={"drop_kv": True}) as decode:
        params = hand_off(prefill, PROMPT)
        assert text_of(complete(decode, PROMPT, kv_transfer_params=params)) == text_of(complete(plain, PROMPT))
        assert decode.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer") == 0


def test_heartbeats_keep_the_blocks_while_the_request_queues_in_decode(plain: SimulatedServer) -> None:
    lease = {"kv_connector_extra_config": {"kv_lease_duration": 5}}
    slow = {"SIMULATOR_SPEED": "1"}
    with (
        SimulatedServer("prefill", transfer=lease) as prefill,
        SimulatedServer("decode", transfer=lease, args=["--max-num-seqs", "1"], env=slow) as decode,
    ):
        blocker = threading.Thread(target=complete, args=(decode, "first in line"), kwargs={"max_tokens": 400})
        blocker.start()
        wait_until(lambda: decode.metric("vllm:num_requests_running") == 1, "decode busy")
        params = hand_off(prefill, PROMPT)
        assert text_of(complete(decode, PROMPT, kv_transfer_params=params)) == text_of(complete(plain, PROMPT))
        blocker.join()
        assert prefill.metric("vllm:nixl_num_kv_expired_reqs_total") == 0


def test_refused_request_lets_the_prefill_server_free_its_blocks(decode: SimulatedServer) -> None:
    with SimulatedServer("prefill") as prefill:
        params = hand_off(prefill, PROMPT)
        assert prefill.metric("vllm:kv_cache_usage_perc") > 0
        assert complete(decode, PROMPT, kv_transfer_params=params, temperature=-1).status_code == 400
        wait_until(lambda: prefill.metric("vllm:kv_cache_usage_perc") == 0, "blocks freed")


@pytest.mark.parametrize("kind", ["null", "spent"])
def test_prefill_can_be_told_to_hand_over_nothing_or_spent_blocks(kind: str) -> None:
    with SimulatedServer("prefill", faults={"hand_off": kind}) as prefill:
        response = complete(prefill, PROMPT, max_tokens=1, kv_transfer_params=ASKS_FOR_HAND_OFF)
        params = response.json()["kv_transfer_params"]
        assert (params is None) == (kind == "null")
        assert prefill.metric("vllm:kv_cache_usage_perc") == 0


def test_handshake_with_a_port_that_is_no_side_channel_fails() -> None:
    with (
        SimulatedServer("decode", env={"SIMULATOR_HANDSHAKE_TIMEOUT_S": "0.3"}) as decode,
        SimulatedServer("prefill") as prefill,
    ):
        wrong_port = hand_off(prefill, PROMPT) | {"remote_port": prefill.port}
        assert complete(decode, PROMPT, kv_transfer_params=wrong_port).status_code == 500
        closed = hand_off(prefill, PROMPT) | {"remote_port": str(free_port())}
        assert complete(decode, PROMPT, kv_transfer_params=closed).status_code == 500


def test_requests_without_kv_are_not_held_up_by_a_handshake_that_nobody_answers(prefill: SimulatedServer) -> None:
    def wait_in_vain(server: SimulatedServer, params: dict[str, Any]) -> None:
        with contextlib.suppress(httpx.TransportError):
            complete(server, PROMPT, kv_transfer_params=params)

    with SimulatedServer("decode", env={"SIMULATOR_HANDSHAKE_TIMEOUT_S": "60"}) as decode:
        params = hand_off(prefill, PROMPT) | {"remote_port": free_port()}
        stuck = threading.Thread(target=wait_in_vain, args=(decode, params))
        stuck.start()
        wait_until(lambda: decode.metric("vllm:num_requests_waiting_by_reason", reason="deferred") == 1, "deferred")
        assert text_of(complete(decode, "in the meantime"))
        assert stuck.is_alive()
    stuck.join()


def test_handshakes_with_several_dead_engines_take_turns_and_those_with_one_share_an_attempt() -> None:
    policy = {"kv_load_failure_policy": "recompute"}
    env = {"SIMULATOR_HANDSHAKE_TIMEOUT_S": "1"}
    with SimulatedServer("prefill") as prefill, SimulatedServer("decode", transfer=policy, env=env) as decode:
        params = hand_off(prefill, PROMPT) | {"remote_port": free_port()}

        def seconds(engine_ids: list[str]) -> float:
            threads = [
                threading.Thread(
                    target=complete,
                    args=(decode, PROMPT),
                    kwargs={"kv_transfer_params": params | {"remote_engine_id": engine_id}},
                )
                for engine_id in engine_ids
            ]
            began = time.monotonic()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return time.monotonic() - began

        shared, in_turn = seconds(["a", "a", "a"]), seconds(["b", "c", "d"])
        assert shared >= 1
        assert in_turn >= 3
        assert shared < in_turn


def test_three_choices_of_a_prefill_take_three_leases_of_which_one_is_read(decode: SimulatedServer) -> None:
    with SimulatedServer("prefill") as prefill:
        response = complete(prefill, PROMPT, max_tokens=1, n=3, kv_transfer_params=ASKS_FOR_HAND_OFF)
        held = prefill.metric("vllm:kv_cache_usage_perc")
        complete(decode, PROMPT, kv_transfer_params=response.json()["kv_transfer_params"])
        wait_until(lambda: prefill.metric("vllm:kv_cache_usage_perc") < held, "one lease read")
        assert prefill.metric("vllm:kv_cache_usage_perc") > 0


def test_list_of_prompts_with_one_hand_off_is_wrong_for_the_second_without_an_error(
    prefill: SimulatedServer, decode: SimulatedServer, plain: SimulatedServer
) -> None:
    prompts = [PROMPT + "list", "a short one"]
    body: dict[str, Any] = {"prompt": prompts, "max_tokens": 8}
    asked = {**body, "max_tokens": 1, "kv_transfer_params": ASKS_FOR_HAND_OFF}
    params = httpx.post(f"{prefill.url}/v1/completions", json=asked).json()["kv_transfer_params"]
    split = httpx.post(f"{decode.url}/v1/completions", json={**body, "kv_transfer_params": params}).json()["choices"]
    alone = httpx.post(f"{plain.url}/v1/completions", json=body).json()["choices"]
    assert split[0]["text"] == alone[0]["text"]
    assert split[1]["text"] != alone[1]["text"]


def test_roles_are_not_enforced(prefill: SimulatedServer, decode: SimulatedServer, plain: SimulatedServer) -> None:
    params = hand_off(decode, PROMPT + "roles")
    swapped = text_of(complete(prefill, PROMPT + "roles", kv_transfer_params=params))
    assert swapped == text_of(complete(plain, PROMPT + "roles"))
