"""Moves of a real server under a light mixed load, of which no request may fail."""

from collections.abc import Iterator

import pytest

from tests.mixed_load import MixedLoad
from tests.real_engine.yard import START_LIMIT_S, Yard, external_tokens, ports_of, taken
from tests.waiting import wait_for

pytestmark = pytest.mark.real_engine

LISTENS_SOON = "the process of its new start runs, and has not come to its side channel"


@pytest.fixture(scope="module")
def load(demo: Yard, third: str) -> Iterator[MixedLoad]:
    with demo.plain_share(40), demo.load().running() as load:
        yield load


@pytest.mark.parametrize("role", ["decode", "prefill", "plain"])
def test_a_real_server_moves_without_a_failed_request(demo: Yard, third: str, load: MixedLoad, role: str) -> None:
    before = demo.make_ready(third)
    move = demo.end_of(demo.move(third, role))
    assert (move["status"], move["error"]) == ("done", "")
    moved = demo.server(third)
    assert (moved["state"], moved["role"], moved["generation"]) == ("ready", role, before["generation"] + 1)
    load.wait_for_answers_through(third, role)
    assert load.problems == []


def test_a_move_whose_start_hangs_fails_with_its_cause_and_is_tried_again(
    demo: Yard, third: str, load: MixedLoad
) -> None:
    """The port for its hand-offs is taken between the check of its host and the engine's own try."""
    demo.make_ready(third)
    asked = demo.move(third, "decode")
    begun = wait_for(lambda: new_start(demo, third), LISTENS_SOON, START_LIMIT_S)
    with taken(begun):
        failed = demo.end_of(asked)
        assert failed["status"] == "failed"
        assert str(begun) in failed["error"]
        assert demo.server(third)["failure"]["code"] == "side_channel_in_use"
        wait_for(lambda: demo.observed(third)["group_pids"] == [], "its host says that nothing of it is left")
        assert failed["ways_out"] == ["retry", "back"]
        retried = demo.post(f"/api/moves/{failed['id']}/retry")
        assert retried.status_code == 202, retried.text
        move = demo.end_of(retried.json())
    assert (move["status"], move["error"]) == ("done", "")
    assert ports_of(demo.server(third))[1] != begun
    load.wait_for_answers_through(third, "decode")
    assert load.problems == []
    assert external_tokens(demo.server(third)["url"]) > 0


def new_start(demo: Yard, name: str) -> int | None:
    """The port of its side channel, once the host has begun to start it as a decode server."""
    server = demo.server(name)
    is_begun = server["role"] == "decode" and server["state"] in ("starting", "loading")
    return ports_of(server)[1] if is_begun else None
