"""Hand-offs that do not work: found before traffic by the canary, and on live traffic by the counters."""

import secrets
from typing import Any

import httpx

from console.fleet import actions, cards
from console.fleet.models import Pair, Server
from console.fleet.states import PairState, ServerState
from console.launch import canary, pairs, parity
from tests.factories import OPERATOR
from tests.launch.clients import wait_for_routers
from tests.launch.running import (
    Installation,
    add_server,
    make_deployment,
    running,
    start_pair,
    wait_for_pair,
    wait_for_state,
)
from tests.waiting import wait_for

__all__ = ["running"]
S = ServerState


def set_faults(server: Server, **faults: Any) -> None:
    fresh = Server.objects.with_names().get(pk=server.pk)
    headers = {"Authorization": f"Bearer {fresh.deployment.server_api_key}"}
    httpx.post(f"{fresh.url}/simulator/faults", json=faults, headers=headers, trust_env=False).raise_for_status()


def external_tokens(server: Server) -> float:
    with canary.Engine(pairs.target_of(Server.objects.with_names().get(pk=server.pk))) as engine:
        return engine.sample()["external_kv_tokens"]


def degradations(server: Server) -> dict[str, str]:
    fresh = Server.objects.with_names().get(pk=server.pk)
    return {found["code"]: found["text"] for found in cards.degradations(fresh)}


def complete(running: Installation, server: Server) -> httpx.Response:
    """One request through the router, its prompt never sent before, once the router serves what the rows say now."""
    wait_for_routers()
    words = " ".join(secrets.token_hex(3) for _ in range(80))
    body = {"model": server.deployment.served_model_name, "prompt": words, "max_tokens": 4}
    url = f"http://127.0.0.1:{running.web_port}/v1/completions"
    return httpx.post(url, json=body, timeout=120, trust_env=False)


def test_a_pair_whose_kv_does_not_travel_gets_no_traffic_until_it_does(running: Installation) -> None:
    deployment = make_deployment(SIMULATOR_CONTROL="1", SIMULATOR_FAULTS='{"drop_kv": true}')
    prefill = add_server(deployment, "prefill", running.next_gpu())
    decode = add_server(deployment, "decode", running.next_gpu())
    for server in (prefill, decode):
        actions.start(server.pk, OPERATOR)
    for server in (prefill, decode):
        wait_for_state(server, S.READY)
    failed = wait_for(lambda: Pair.objects.filter(state=PairState.FAILED, decode=decode).first(), "a failed pair")
    assert "took 0 of" in failed.reason
    assert f"No traffic with {prefill.name}" in degradations(decode)["pair_failed"]
    assert complete(running, decode).headers["x-switchyard-route"] != "split"

    set_faults(decode, drop_kv=False)
    wait_for_pair(prefill, decode)
    wait_for(lambda: degradations(decode) == {}, "its card to be clean")
    wait_for(lambda: complete(running, decode).headers["x-switchyard-route"] == "split", "split traffic")


def test_kv_that_stops_travelling_is_noticed_within_twenty_requests(running: Installation) -> None:
    _, decode = start_pair(running, SIMULATOR_CONTROL="1")
    wait_for(lambda: complete(running, decode).status_code == 200, "the router to have heard of it")
    came = external_tokens(decode)
    wait_for(lambda: Server.objects.get(pk=decode.pk).kv_watch.get("external") == came, "the console to know of it")
    set_faults(decode, drop_kv=True)
    for _ in range(20):
        assert complete(running, decode).status_code == 200
    told = wait_for(lambda: degradations(decode).get("kv_not_transferred"), "the card to say so")
    assert "KV not transferred" in told

    set_faults(decode, drop_kv=False)
    complete(running, decode)
    wait_for(lambda: "kv_not_transferred" not in degradations(decode), "the card to be clean again")


def test_a_pair_writes_what_one_server_alone_writes(running: Installation) -> None:
    prefill, decode = start_pair(running)
    found = parity.check(wait_for_pair(prefill, decode).pk, OPERATOR)
    assert found["same"]
    assert (found["split"], found["alone_on"]) == (found["alone"], prefill.name)
    assert found["split"]


def test_a_server_whose_model_card_is_late_joins_by_itself(running: Installation) -> None:
    faults = '{"models": {"status": 503}}'
    deployment = make_deployment(SIMULATOR_CONTROL="1", SIMULATOR_FAULTS=faults)
    server = add_server(deployment, "plain", running.next_gpu())
    actions.start(server.pk, OPERATOR)
    wait_for_state(server, S.VERIFYING)
    wait_for(lambda: "503" in Server.objects.get(pk=server.pk).check_problem, "the reason on its card")
    set_faults(server, models={})
    assert wait_for_state(server, S.READY).check_problem == ""
