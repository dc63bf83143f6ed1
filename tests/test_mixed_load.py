"""The load of the tests of moves tells a whole answer from one that failed or was cut."""

from typing import Any

import pytest

from tests.mixed_load import MixedLoad
from tests.simulator.harness import NAME, SimulatedServer
from tests.waiting import wait_until

EVERY_KIND = 16


@pytest.mark.parametrize(
    "fault",
    [
        {"reset_after_chunks": 0},
        {"reset_after_chunks": 3},
        {"done_after_chunks": 3},
        {"error_after_chunks": 3},
        {"answer": {"status": 503, "body": "busy"}},
        {"usage": {"completion_tokens": 2}},
    ],
)
def test_one_answer_that_is_not_whole_is_a_problem(fault: dict[str, Any]) -> None:
    with SimulatedServer() as server, MixedLoad(server.url, NAME).running() as load:
        wait_until(lambda: len(load.answers) > EVERY_KIND, "every kind of request")
        assert load.problems == []
        server.faults(**fault)
        wait_until(lambda: bool(load.problems), f"a problem with {fault}")
