"""What a card says in words."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from console.fleet import cards
from console.fleet.models import Deployment, Pair, Server
from console.fleet.states import PairState, ServerRole, ServerState
from console.gateway.loads import RouterLoad
from tests.factories import make_deployment, make_host, make_server
from tests.observations import make_observation, make_sample

pytestmark = pytest.mark.django_db
S, R = ServerState, ServerRole


def make_seen(state: ServerState, **observed: Any) -> Server:
    return make_server(state=state, observed={**make_observation(), **observed})


def codes(server: Server) -> list[str]:
    return [found["code"] for found in cards.degradations(server)]


@pytest.mark.parametrize("state", list(S))
def test_every_state_has_words(state: ServerState) -> None:
    assert cards.server_card(make_server(state=state))["state_text"].startswith(state.label)


def test_loading_names_the_phase() -> None:
    assert cards.server_card(make_seen(S.LOADING, phase="weights"))["state_text"] == "Loading: loading weights"


def test_draining_counts_what_is_left() -> None:
    card = cards.server_card(make_server(state=S.DRAINING), RouterLoad(inflight=3, handoffs=1))
    assert card["state_text"] == "Draining: 3 requests left, 1 hand-off left"
    assert (card["inflight"], card["handoffs"]) == (3, 1)


def test_verifying_says_what_it_waits_for() -> None:
    server = make_server(state=S.VERIFYING, check_problem="chat-1 answers /v1/models with 503: busy")
    assert "answers /v1/models with 503" in cards.server_card(server)["state_text"]


def test_stopping_on_a_silent_host_says_how_to_give_it_up() -> None:
    host = make_host(last_seen_at=timezone.now() - timedelta(minutes=5))
    assert "Force the stop" in cards.server_card(make_server(state=S.STOPPING, host=host))["state_text"]


def test_processes_that_do_not_end_are_named() -> None:
    server = make_seen(S.STOPPING, cause={"code": "stuck", "message": "The kernel holds them.", "instruction": ""})
    assert "The kernel holds them." in cards.server_card(server)["state_text"]


def test_numbers_come_from_the_last_sample() -> None:
    server = make_seen(S.READY, sample=make_sample(running=4, waiting=2, kv_usage=0.5), tokens_per_s=80.0)
    card = cards.server_card(server)
    assert (card["running"], card["waiting"], card["kv_usage"], card["tokens_per_s"]) == (4, 2, 0.5, 80.0)


def test_a_card_without_a_sample_knows_nothing() -> None:
    card = cards.server_card(make_server(state=S.STARTING))
    assert (card["running"], card["kv_usage"]) == (None, None)


def test_a_log_that_is_silent_for_minutes_is_a_warning() -> None:
    assert codes(make_seen(S.LOADING, log_silent_s=200.0)) == ["silent_log"]
    assert codes(make_seen(S.LOADING, log_silent_s=20.0)) == []
    assert codes(make_seen(S.READY, log_silent_s=2000.0)) == []


def test_a_ready_server_whose_health_fails_stays_ready_with_a_warning() -> None:
    assert codes(make_seen(S.READY, healthy=False)) == ["unhealthy"]


@pytest.mark.parametrize(
    ("state", "start", "stop"),
    [
        (S.STOPPED, True, False),
        (S.FAILED, True, False),
        (S.PENDING, False, True),
        (S.LOADING, False, True),
        (S.READY, False, True),
        (S.DRAINING, False, False),
        (S.STOPPING, False, False),
        (S.UNREACHABLE, False, True),
    ],
)
def test_buttons_follow_the_state(state: ServerState, start: bool, stop: bool) -> None:
    card = cards.server_card(make_server(state=state))
    assert (card["may_start"], card["may_stop"]) == (start, stop)


def test_leftovers_can_be_stopped_and_not_started_over() -> None:
    server = make_seen(S.FAILED, alive=False, group_pids=[7])
    card = cards.server_card(server)
    assert (card["may_start"], card["may_stop"]) == (False, True)


def test_leftovers_are_named_with_what_clears_them_while_they_are_there() -> None:
    (note,) = cards.server_card(make_seen(S.FAILED, alive=False, group_pids=[51, 52]))["degradations"]
    assert note["code"] == "left_behind"
    assert "(pid 51, 52)" in note["text"]
    assert "press Stop" in note["text"]
    assert cards.server_card(make_seen(S.FAILED, alive=False, group_pids=[]))["degradations"] == []


def test_only_a_ready_server_can_be_moved() -> None:
    assert cards.server_card(make_server(R.PREFILL, S.READY))["can_move_to"] == ["plain", "decode"]
    assert cards.server_card(make_server(R.PREFILL, S.LOADING))["can_move_to"] == []


def make_pair(state: PairState, **fields: Any) -> Pair:
    deployment, host = make_deployment(), make_host()
    prefill, decode = (make_server(role, S.READY, deployment, host) for role in (R.PREFILL, R.DECODE))
    return Pair.objects.create(
        **{
            "prefill": prefill,
            "decode": decode,
            "state": state,
            "prefill_generation": 1,
            "decode_generation": 1,
            **fields,
        }
    )


def test_a_failed_pair_shows_on_both_cards_with_its_reason() -> None:
    pair = make_pair(PairState.FAILED, reason="no blocks came.")
    assert codes(pair.prefill) == codes(pair.decode) == ["pair_failed"]
    assert "no blocks came." in cards.degradations(pair.decode)[0]["text"]


def make_pair_at_revisions(prefill: int, decode: int, deployment: int) -> Pair:
    pair = make_pair(PairState.FAILED, reason="their context length differs (32768 and 16384).")
    Server.objects.filter(pk=pair.prefill_id).update(revision=prefill)
    Server.objects.filter(pk=pair.decode_id).update(revision=decode)
    Deployment.objects.update(revision=deployment)
    return Pair.objects.get(pk=pair.pk)


def pair_text(server: Server) -> str:
    return next(note["text"] for note in cards.degradations(server) if note["code"] == "pair_failed")


def test_a_refused_pair_names_the_server_that_runs_on_older_settings_on_both_cards() -> None:
    pair = make_pair_at_revisions(prefill=1, decode=2, deployment=2)
    advice = f"{pair.prefill.name} runs on older settings: stop it and start it again."
    assert pair_text(pair.prefill).endswith(advice)
    assert pair_text(pair.decode).endswith(advice)


def test_a_refused_pair_names_both_when_both_run_on_older_settings() -> None:
    pair = make_pair_at_revisions(prefill=1, decode=2, deployment=3)
    assert f"{pair.prefill.name} and {pair.decode.name} run on older settings" in pair_text(pair.prefill)


def test_a_refused_pair_of_present_settings_may_be_helped_by_a_restart_of_the_other() -> None:
    pair = make_pair_at_revisions(prefill=2, decode=2, deployment=2)
    assert f"restarting {pair.decode.name} may help" in pair_text(pair.prefill)


def test_a_server_on_older_settings_than_its_deployment_says_so() -> None:
    server = make_server(state=S.READY, deployment=make_deployment(revision=3), revision=2)
    [note] = cards.degradations(server)
    assert note["code"] == "older_settings"
    assert "revision 2; the deployment is at 3" in note["text"]
    assert codes(make_server(state=S.READY, deployment=make_deployment(revision=3), revision=3)) == []


def test_a_verified_pair_of_earlier_starts_counts_as_unverified() -> None:
    assert codes(make_pair(PairState.VERIFIED).decode) == []
    assert codes(make_pair(PairState.VERIFIED, prefill_generation=0).decode) == ["pair_unverified"]


def test_cards_of_many_servers_cost_no_query_each(django_assert_num_queries: Any) -> None:
    for _ in range(3):
        make_pair(PairState.FAILED)
    with django_assert_num_queries(2):
        assert len([cards.server_card(server) for server in Server.objects.with_names().with_pairs()]) == 6


def test_a_pair_of_a_server_that_was_moved_since_is_not_spoken_of() -> None:
    pair = make_pair(PairState.UNVERIFIED)
    Server.objects.filter(pk=pair.prefill_id).update(role=ServerRole.DECODE)
    assert codes(Server.objects.get(pk=pair.decode_id)) == []
    assert codes(Server.objects.get(pk=pair.prefill_id)) == []


def test_a_card_says_that_routers_leave_its_server_alone_and_why() -> None:
    card = cards.server_card(make_server(state=S.READY), RouterLoad(avoided="connection refused"))
    [found] = [note for note in card["degradations"] if note["code"] == "circuit_open"]
    assert "connection refused" in found["text"]


def test_a_card_says_that_its_server_brings_no_answers_though_it_is_asked() -> None:
    server = make_server(state=S.READY)
    for is_silent in (True, False):
        card = cards.server_card(server, RouterLoad(2, 0, is_silent=is_silent))
        assert ("no_answers" in {note["code"] for note in card["degradations"]}) is is_silent
