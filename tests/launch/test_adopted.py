"""Watching adopted servers: gone, ill, back again, another process."""

from dataclasses import replace

import pytest

from console.fleet import actions
from console.fleet.models import Deployment, Server
from console.fleet.states import ServerState
from console.gateway import table
from console.launch import adopted
from console.launch.adopted import STAY, decide
from console.launch.probe import SILENT, Probe
from tests.factories import OPERATOR, make_deployment
from tests.observations import make_sample
from tests.sent import Sent
from tests.simulator.harness import NAME, SimulatedServer
from tests.waiting import wait_until

S = ServerState
WELL = Probe(listens=True, healthy=True, sample=None)
ILL = Probe(listens=True, healthy=False, sample=None)
URL = "http://10.0.0.5:8000"


def step_of(state: ServerState, seen: Probe, before: str = "", anew: bool = False, silent_s: float = 60.0) -> object:
    return decide(state, before, seen, is_other_process=anew, silent_s=silent_s, url=URL)


@pytest.mark.parametrize("state", [S.VERIFYING, S.READY, S.DRAINING])
def test_one_that_answers_stays_as_it_is(state: ServerState) -> None:
    assert step_of(state, WELL) == STAY


@pytest.mark.parametrize("seen", [SILENT, ILL])
def test_one_bad_look_changes_nothing(seen: Probe) -> None:
    assert step_of(S.READY, seen, silent_s=1.0) == STAY


def test_a_process_that_is_gone_leaves_routing() -> None:
    step = decide(S.READY, "", SILENT, is_other_process=False, silent_s=6.0, url=URL)
    assert step.states == (S.UNREACHABLE,)
    assert step.fields["state_before_unreachable"] == S.VERIFYING
    assert URL in step.fields["failure"]["message"]


def test_silence_may_be_ours_so_routing_stays() -> None:
    step = decide(S.READY, "", ILL, is_other_process=False, silent_s=6.0, url=URL)
    assert (step.states, step.fields) == ((S.UNREACHABLE,), {"state_before_unreachable": S.READY})


def test_one_that_was_only_silent_is_ready_again_at_once() -> None:
    step = decide(S.UNREACHABLE, S.READY, WELL, is_other_process=False, silent_s=0, url=URL)
    assert (step.states, step.anew) == ((S.READY,), False)


@pytest.mark.parametrize(("before", "anew"), [(S.READY, True), (S.VERIFYING, False), (S.VERIFYING, True)])
def test_one_that_was_gone_is_tried_out_again(before: str, anew: bool) -> None:
    step = decide(S.UNREACHABLE, before, WELL, is_other_process=anew, silent_s=0, url=URL)
    assert (step.states, step.anew) == ((S.VERIFYING,), True)


def test_another_process_at_the_same_address_is_tried_out_again() -> None:
    step = decide(S.READY, "", WELL, is_other_process=True, silent_s=0, url=URL)
    assert (step.states[-1], step.anew) == (S.VERIFYING, True)


def test_one_that_ends_while_it_drains_is_removed() -> None:
    assert decide(S.DRAINING, "", SILENT, is_other_process=False, silent_s=6.0, url=URL).remove
    assert step_of(S.DRAINING, ILL) == STAY


# On rows


def make_adopted(deployment: Deployment | None = None, **fields: object) -> Server:
    made = Server(
        deployment=deployment or make_deployment(), host=None, name="theirs", role="plain", generation=1, state=S.READY
    )
    for name, value in {"adopted_url": URL, **fields}.items():
        setattr(made, name, value)
    made.save()
    return Server.objects.with_names().get(pk=made.pk)


def look(server: Server, seen: Probe, at: float) -> Server:
    adopted.note(Server.objects.with_names().get(pk=server.pk), seen, at)
    return Server.objects.with_names().get(pk=server.pk)


def started(seconds: float) -> Probe:
    sample = make_sample(running=2, generation_tokens=10 * seconds, at=seconds)
    return replace(WELL, sample=sample, metrics=f"process_start_time_seconds {seconds}\n")


@pytest.mark.django_db(transaction=True)
def test_its_figures_are_kept_like_those_of_ours(sent: Sent) -> None:
    fresh = look(make_adopted(), started(100.0), 1000.0)
    assert (fresh.observed["healthy"], fresh.observed["sample"]["running"]) == (True, 2)
    again = replace(started(100.0), sample=make_sample(at=102.0, generation_tokens=1200))
    assert look(fresh, again, 1002.0).observed["tokens_per_s"] == 100.0


@pytest.mark.django_db(transaction=True)
def test_gone_and_back(sent: Sent) -> None:
    server = look(make_adopted(), started(100.0), 1000.0)
    server = look(server, SILENT, 1002.0)
    assert server.state == S.READY
    server = look(server, SILENT, 1008.0)
    assert (server.state, server.failure["code"]) == (S.UNREACHABLE, "gone")
    assert table.build().deployments[server.deployment.served_model_name].servers == ()
    server = look(server, started(200.0), 1010.0)
    assert (server.state, server.generation, server.failure) == (S.VERIFYING, 2, {})
    assert ("console.verify", [server.pk, 2], "checks") in sent


@pytest.mark.django_db(transaction=True)
def test_one_taken_back_while_it_was_looked_at_is_not_removed(sent: Sent) -> None:
    server = make_adopted(state=S.DRAINING, observed={"silent_since": 900.0})
    stale = Server.objects.with_names().get(pk=server.pk)
    actions.cancel_stop(server.pk, OPERATOR)
    adopted.note(stale, SILENT, 1000.0)
    assert Server.objects.get(pk=server.pk).state == S.READY


@pytest.mark.django_db(transaction=True)
def test_a_round_looks_at_all_of_them(sent: Sent) -> None:
    with SimulatedServer("plain") as engine:
        deployment = make_deployment(served_model_name=NAME)
        server = make_adopted(deployment, adopted_url=engine.url)

        def is_seen_well() -> bool:
            """A busy machine may be too slow for one look."""
            adopted.look_at_all()
            observed = Server.objects.get(pk=server.pk).observed
            return bool(observed["healthy"] and observed["process_started_at"] and observed["kv_cache_tokens"])

        wait_until(is_seen_well, "a look that finds it well")
