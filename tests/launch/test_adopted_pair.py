"""A split pair that others started: adopted, routed, lost and found, with real processes."""

import httpx

from console.fleet import actions
from console.fleet.models import Pair, Server
from console.fleet.states import PairState, ServerState
from console.launch.probe import probe
from tests.factories import ADMIN, OPERATOR
from tests.launch.running import Installation, running, wait_for_pair, wait_for_state
from tests.simulator.harness import MODEL, NAME, SimulatedServer
from tests.waiting import LIMIT_S, wait_for

__all__ = ["running"]
S = ServerState


def test_a_split_pair_that_others_started_is_routed_lost_and_found(running: Installation) -> None:
    deployment = actions.create_deployment(
        ADMIN,
        {
            "name": "theirs",
            "model": MODEL,
            "served_model_name": NAME,
            "engine": "simulated",
            "require_key": False,
        },
    )
    with SimulatedServer("prefill") as p, SimulatedServer("decode") as d:
        prefill = actions.adopt(OPERATOR, deployment.pk, p.url, "prefill")
        decode = actions.adopt(OPERATOR, deployment.pk, d.url, "decode")
        wait_for_state(prefill, S.READY)
        wait_for_state(decode, S.READY)
        wait_for_pair(prefill, decode)
        wait_for(lambda: route_of_an_answer(running) == "split", "a split answer")
        wait_for(lambda: Server.objects.get(pk=decode.pk).observed.get("sample"), "its figures")
        p.kill_group()
        wait_for_state(prefill, S.UNREACHABLE)
        with SimulatedServer("prefill", port=p.port) as reborn:
            wait_for_state(prefill, S.READY)
            pair = wait_for_pair(prefill, decode)
            assert (pair.state, pair.prefill_generation) == (PairState.VERIFIED, 2)
            wait_for(lambda: route_of_an_answer(running) == "split", "a split answer again")
            for server in (prefill, decode):
                actions.let_go(server.pk, OPERATOR)
            wait_for(lambda: not Server.objects.filter(deployment=deployment).exists(), "both to be let go")
            assert probe("127.0.0.1", reborn.port, LIMIT_S).healthy
            assert not Pair.objects.exists()


def route_of_an_answer(running: Installation) -> str:
    """Empty while the router does not listen yet."""
    url = f"http://127.0.0.1:{running.web_port}/v1/completions"
    body = {"model": NAME, "prompt": "word " * 60, "max_tokens": 4}
    try:
        answer = httpx.post(url, json=body, timeout=120, trust_env=False)
    except httpx.ConnectError:
        return ""
    return str(answer.headers.get("x-switchyard-route", ""))
