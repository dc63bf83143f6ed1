"""Processes of real servers that are killed, and stops that the engine does not heed."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest

from tests.own import is_free
from tests.real_engine.yard import STOP_LIMIT_S, Yard, ports_of, wait_until_gone
from tests.running import is_running
from tests.waiting import wait_for

pytestmark = pytest.mark.real_engine

NOTICE_LIMIT_S = 180.0


def test_a_killed_prefill_engine_is_shown_and_costs_no_request(demo: Yard, third: str) -> None:
    prefill = demo.make_ready(demo.in_role("prefill")["name"])
    group = demo.observed(prefill["name"])["group_pids"]
    with demo.load().running() as load:
        load.wait_for_answers_through(prefill["name"], "prefill")
        demo.engine_core(prefill["name"]).kill()
        failed = demo.wait_for_state(prefill["name"], "failed", NOTICE_LIMIT_S)
        load.wait_for_answers(lambda answer: answer.route != "split", "that were not split")
    assert load.problems == []
    assert failed["failure"]["code"] == "engine_died"
    wait_until_gone(group)
    wait_for(lambda: all(map(is_free, ports_of(prefill))), what="its ports are free")
    wait_for(lambda: demo.server(prefill["name"])["degradations"] == [], what="nothing is said to be left of it")
    demo.start(prefill["name"])  # it comes up while others are killed


def test_an_engine_that_outlives_its_killed_api_server_is_found_and_ended_by_stop(demo: Yard, third: str) -> None:
    demo.make_ready(third)
    seen = demo.observed(third)
    psutil.Process(seen["pid"]).kill()
    failed = demo.wait_for_state(third, "failed", NOTICE_LIMIT_S)
    left = demo.observed(third)["group_pids"]
    assert left
    assert all(map(is_running, left))
    told = next(note["text"] for note in failed["degradations"] if note["code"] == "left_behind")
    assert all(str(pid) in told for pid in left)
    refused = demo.post(f"/api/servers/{failed['id']}/start", {})
    assert refused.status_code == 409
    assert "Press Stop to end them" in refused.json()["error"]["message"]
    demo.stop_server(third)
    assert not any(map(is_running, seen["group_pids"]))


def test_a_stop_that_the_engine_does_not_heed_while_it_loads_is_enforced(demo: Yard, third: str) -> None:
    """SIGTERM at that time is lost, or hangs for ever."""
    if demo.server(third)["state"] == "ready":
        demo.stop_server(third)
    demo.start(third)
    demo.wait_for_state(third, "loading")
    group = wait_for(lambda: len(pids := demo.observed(third)["group_pids"]) > 2 and pids, what="its engine core runs")
    demo.stop_server(third)
    assert not any(map(is_running, group))
    wait_for(lambda: demo.observed(third)["group_pids"] == [], "its host says so", STOP_LIMIT_S)


def test_a_prefill_server_whose_engine_was_killed_starts_again_and_hands_over(demo: Yard) -> None:
    prefill = demo.make_ready(demo.in_role("prefill")["name"])
    with demo.load().running() as load:
        load.wait_for_answers_through(prefill["name"], "prefill")
    assert load.problems == []


def test_an_engine_core_that_hangs_is_said_to_bring_no_answers_and_is_used_when_it_goes_on(
    demo: Yard, third: str
) -> None:
    """Its API server answers /health and begins streams all the while."""
    if demo.server(third)["state"] == "ready":
        demo.stop_server(third)  # It would do what one server does alone.
    name = demo.make_ready(demo.in_role("decode")["name"])["name"]
    core = demo.engine_core(name)
    core.suspend()
    try:
        with ThreadPoolExecutor() as pool:
            asked = [pool.submit(two_prompts, demo) for _ in range(2)]
            wait_for(lambda: notes_on(demo, name) == {"no_answers"}, "its card says so", NOTICE_LIMIT_S)
            assert demo.server(name)["state"] == "ready"
            core.resume()
            assert [answer.result() for answer in asked] == [200, 200]
    finally:
        core.resume()
    wait_for(lambda: not notes_on(demo, name), "its card says no more of it")


def two_prompts(demo: Yard) -> int:
    """The status of an answer that one server gives, as soon as there is one."""
    body = {"model": demo.demo["model"], "prompt": ["one", "two"], "max_tokens": 4, "stream": True}
    key = {"Authorization": f"Bearer {demo.demo['inference_key']}"}
    return httpx.post(f"{demo.url}/v1/completions", json=body, headers=key, timeout=NOTICE_LIMIT_S).status_code


def notes_on(demo: Yard, name: str) -> set[str]:
    return {note["code"] for note in demo.server(name)["degradations"]}


def test_stopping_a_real_server_leaves_nothing_of_it(demo: Yard) -> None:
    name = demo.make_ready(demo.in_role("decode")["name"])["name"]
    group = demo.observed(name)["group_pids"]
    assert len(group) > 1
    demo.stop_server(name)
    assert not any(map(is_running, group))
