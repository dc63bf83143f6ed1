"""Every state against everything that a host can report of its process."""

from typing import Any

import pytest

from console.fleet.states import GRAPH, ServerState
from console.launch.contracts import Phase, ServerObservation
from console.launch.reconcile import SETTLE_S, Decision, ServerFacts, decide
from tests.observations import make_end, make_observation

S = ServerState
UP = [S.STARTING, S.LOADING, S.VERIFYING, S.READY, S.DRAINING]


def facts(state: ServerState, before: str = "", in_state_s: float = 60.0) -> ServerFacts:
    return ServerFacts("chat-1", "gpu01", state, before, in_state_s)


def orphans(**fields: Any) -> ServerObservation:
    return make_end(group_pids=[51, 52], exit_code=-9, **fields)


EVERYTHING: list[ServerObservation | None] = [
    None,
    make_observation(),
    make_observation(phase="weights"),
    make_observation(phase="listening", healthy=True),
    make_observation(phase="listening", healthy=False),
    make_observation(stop_requested=True),
    orphans(),
    orphans(stop_requested=True),
    make_end(),
    make_end(exit_code=None),
    make_end(stop_requested=True, exit_code=-15),
    make_end(pid=None, exit_code=None),
]


@pytest.mark.parametrize("state", list(S))
@pytest.mark.parametrize("seen", EVERYTHING)
def test_it_never_asks_for_a_step_that_the_graph_lacks(state: ServerState, seen: ServerObservation | None) -> None:
    decision = decide(facts(state, before="ready" if state == S.UNREACHABLE else ""), seen)
    assert decision.state is None or decision.state in GRAPH[state]


@pytest.mark.parametrize("state", [S.PENDING, *UP, S.UNREACHABLE])
@pytest.mark.parametrize("seen", EVERYTHING)
def test_a_process_that_somebody_counts_on_is_never_stopped(state: ServerState, seen: ServerObservation | None) -> None:
    assert not decide(facts(state, before="ready" if state == S.UNREACHABLE else ""), seen).stop


@pytest.mark.parametrize(
    ("state", "phase", "becomes"),
    [
        (S.PENDING, "spawned", S.STARTING),
        (S.PENDING, "weights", S.LOADING),
        (S.PENDING, "listening", S.VERIFYING),
        (S.STARTING, "imports", None),
        (S.STARTING, "model", S.LOADING),
        (S.LOADING, "nixl", None),
        (S.LOADING, "listening", S.VERIFYING),
        (S.VERIFYING, "listening", None),
        (S.READY, "listening", None),
        (S.DRAINING, "listening", None),
        (S.LOADING, "spawned", None),
    ],
)
def test_phases_lead_a_start_upwards_and_never_back(
    state: ServerState, phase: Phase, becomes: ServerState | None
) -> None:
    assert decide(facts(state), make_observation(phase=phase)).state == becomes


def test_a_server_whose_health_answers_is_verified_even_if_its_log_says_little() -> None:
    assert decide(facts(S.STARTING), make_observation(phase="spawned", healthy=True)).state == S.VERIFYING


@pytest.mark.parametrize("state", [S.PENDING, *UP, S.UNREACHABLE])
def test_a_process_that_ended_unasked_has_failed_even_with_exit_code_0(state: ServerState) -> None:
    decision = decide(facts(state, before="ready" if state == S.UNREACHABLE else ""), make_end(exit_code=0))
    assert decision.state == S.FAILED
    assert "exit code 0" in decision.fields["failure"]["message"]


def test_the_known_cause_is_named() -> None:
    cause = {"code": "nixl_missing", "message": "NIXL is not available.", "instruction": "Install it."}
    decision = decide(facts(S.LOADING), make_end(exit_code=1, cause=cause))
    assert decision.fields["failure"] == cause


def test_a_signal_is_named() -> None:
    assert "signal 9" in decide(facts(S.READY), make_end(exit_code=-9)).fields["failure"]["message"]


@pytest.mark.parametrize("state", [S.PENDING, *UP])
def test_a_main_process_that_is_gone_has_failed_whatever_outlives_it(state: ServerState) -> None:
    decision = decide(facts(state), orphans())
    assert decision.state == S.FAILED
    assert "51" not in decision.fields["failure"]["message"]


def test_orphans_of_a_failed_server_wait_for_a_person() -> None:
    assert decide(facts(S.FAILED), orphans()) == Decision()


def test_a_stopping_server_is_stopped_only_when_its_group_is_empty() -> None:
    assert decide(facts(S.STOPPING), orphans(stop_requested=True)) == Decision()
    assert decide(facts(S.STOPPING), make_end(stop_requested=True, exit_code=-15)).state == S.STOPPED


@pytest.mark.parametrize("seen", [make_observation(), orphans()])
def test_a_stop_that_its_host_did_not_hear_is_sent_again(seen: ServerObservation) -> None:
    assert decide(facts(S.STOPPING), seen).stop
    assert not decide(facts(S.STOPPING), {**seen, "stop_requested": True}).stop


@pytest.mark.parametrize("state", [S.STOPPED, S.FAILED])
def test_a_process_that_nobody_counts_on_any_more_is_ended(state: ServerState) -> None:
    assert decide(facts(state), make_observation()).stop


@pytest.mark.parametrize(
    ("before", "phase", "becomes"),
    [
        ("ready", "listening", S.READY),
        ("draining", "listening", S.DRAINING),
        ("verifying", "listening", S.VERIFYING),
        ("loading", "weights", S.LOADING),
        ("loading", "listening", S.VERIFYING),
        ("starting", "weights", S.LOADING),
    ],
)
def test_a_returned_server_takes_up_where_it_was(before: str, phase: Phase, becomes: ServerState) -> None:
    decision = decide(facts(S.UNREACHABLE, before), make_observation(phase=phase))
    assert (decision.state, decision.stop) == (becomes, False)


def test_a_host_that_does_not_know_the_process_is_believed_only_after_a_while() -> None:
    assert decide(facts(S.READY, in_state_s=SETTLE_S / 2), None) == Decision()
    assert decide(facts(S.READY), None).state == S.FAILED
    assert decide(facts(S.STOPPING, in_state_s=SETTLE_S / 2), None) == Decision()
    assert decide(facts(S.STOPPING), None).state == S.STOPPED


@pytest.mark.parametrize("state", [S.PENDING, S.STOPPED, S.FAILED])
def test_nothing_is_concluded_when_no_process_is_expected(state: ServerState) -> None:
    assert decide(facts(state), None) == Decision()


def test_a_launch_that_is_still_being_worked_on_is_waited_for() -> None:
    assert decide(facts(S.PENDING), make_end(pid=None, exit_code=None)) == Decision()
