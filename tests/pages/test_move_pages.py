"""Moving a server from the browser: what it would mean, beginning it, taking it back, and the ways out."""

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from console.accounts.models import AuditEntry
from console.fleet.models import Host, Move, Server
from console.fleet.states import ServerRole, ServerState
from tests.factories import make_move, make_server
from tests.pages.conftest import Fleet

REGION = {"HX-Request": "true"}


def move_address(server: Server) -> str:
    return f"/servers/{server.pk}/move/"


@pytest.fixture
def spare(fleet: Fleet) -> Server:
    """A second prefill server, so that moving one away needs no confirmation."""
    return make_server(
        ServerRole.PREFILL, ServerState.READY, fleet.deployment, fleet.host, name="chat-4", gpu_indexes=[3]
    )


def test_the_preview_tells_capacity_load_and_time(fleet: Fleet, spare: Server, operator: Client) -> None:
    page = operator.get(move_address(spare), {"role": "decode"}).text
    assert "0 in flight" in page
    assert "Out of service for about" in page
    assert "Pairs afterwards: chat-1 → chat-2, chat-1 → chat-4." in page


def test_the_dialog_gets_the_form_without_the_page(fleet: Fleet, spare: Server, operator: Client) -> None:
    region = operator.get(move_address(spare), {"role": "decode"}, headers=REGION).text
    assert "<main" not in region
    assert 'hx-post="' in region


def test_the_page_works_without_script(fleet: Fleet, spare: Server, operator: Client) -> None:
    assert 'hx-post="' not in operator.get(move_address(spare), {"role": "decode"}).text
    answer = operator.post(move_address(spare), {"role": "decode", "reason": "too little decode"}, follow=True)
    assert answer.redirect_chain[-1][0] == "/deployments/chat/"
    assert "chat-4 moves to decode" in answer.text


def test_a_move_begins_with_its_reason_in_the_audit_trail(fleet: Fleet, spare: Server, operator: Client) -> None:
    operator.post(move_address(spare), {"role": "decode", "reason": "too little decode"})
    assert Server.objects.get(pk=spare.pk).state == ServerState.DRAINING
    assert AuditEntry.objects.get(action="server.move").reason == "too little decode"


def test_the_dialog_hears_that_the_move_began_and_stays_on_the_page(
    fleet: Fleet, spare: Server, operator: Client
) -> None:
    answer = operator.post(move_address(spare), {"role": "decode"}, headers=REGION)
    assert answer.status_code == 204
    assert "close-ask" in answer.headers["HX-Trigger"]


def test_the_last_prefill_server_moves_only_with_its_consequence_read(fleet: Fleet, operator: Client) -> None:
    page = operator.get(move_address(fleet.prefill), {"role": "decode"}).text
    assert "It is the last ready prefill server" in page
    assert 'name="confirmed" required' in page
    answer = operator.post(move_address(fleet.prefill), {"role": "decode"})
    assert answer.status_code == 409
    assert "Confirm it to go ahead." in answer.text
    assert operator.post(move_address(fleet.prefill), {"role": "decode", "confirmed": "on"}).status_code == 302


def test_what_is_refused_says_why_and_offers_no_button(fleet: Fleet, operator: Client) -> None:
    page = operator.get(move_address(fleet.stopped), {"role": "decode"}).text
    assert "Only a ready server can be moved" in page
    assert "Move it to" not in page


def test_a_second_click_on_the_same_button_begins_no_second_move(fleet: Fleet, spare: Server, operator: Client) -> None:
    operator.post(move_address(spare), {"role": "decode"})
    assert operator.post(move_address(spare), {"role": "decode"}).status_code == 409
    assert Move.objects.filter(server=spare).count() == 1


def test_a_second_server_is_told_which_move_it_waits_for(fleet: Fleet, spare: Server, operator: Client) -> None:
    operator.post(move_address(spare), {"role": "decode"})
    told = "chat-4 is being moved to decode. One at a time: wait for it to end."
    page = operator.get(move_address(fleet.decode), {"role": "plain"}).text
    assert told in page
    assert "Move it to" not in page
    answer = operator.post(move_address(fleet.decode), {"role": "plain", "confirmed": "on"})
    assert answer.status_code == 409
    assert told in answer.text
    assert Server.objects.get(pk=fleet.decode.pk).state == ServerState.READY


@pytest.mark.parametrize("role", ["", "both"])
def test_a_word_that_is_no_role_is_refused(role: str, fleet: Fleet, spare: Server, operator: Client) -> None:
    answer = operator.post(move_address(spare), {"role": role})
    assert answer.status_code == 400
    assert Server.objects.get(pk=spare.pk).state == ServerState.READY


def test_a_silent_host_is_a_reason_not_to_move(fleet: Fleet, spare: Server, operator: Client) -> None:
    Host.objects.update(last_seen_at=timezone.now() - timedelta(minutes=1))
    assert "does not report. Look at its agent first." in operator.get(move_address(spare)).text


def test_a_move_is_taken_back_from_the_browser(fleet: Fleet, spare: Server, operator: Client) -> None:
    operator.post(move_address(spare), {"role": "decode"})
    move = Move.objects.get(server=spare)
    page = operator.get(f"/moves/{move.pk}/").text
    assert "Cancel the move" in page
    answer = operator.post(f"/moves/{move.pk}/cancel/", follow=True)
    assert "chat-4 stays a prefill server and takes traffic again." in answer.text
    assert Server.objects.get(pk=spare.pk).state == ServerState.READY


def test_a_move_that_is_over_cannot_be_cancelled(fleet: Fleet, operator: Client) -> None:
    answer = operator.post(f"/moves/{fleet.move.pk}/cancel/", headers=REGION)
    assert answer.status_code == 409
    assert "toast" in answer.headers["HX-Trigger"]


def test_waiting_can_be_cut_short(fleet: Fleet, spare: Server, operator: Client) -> None:
    operator.post(move_address(spare), {"role": "decode"})
    operator.post(f"/moves/{Move.objects.get(server=spare).pk}/force/")
    assert Server.objects.get(pk=spare.pk).state == ServerState.STOPPING


def test_a_finished_move_tells_its_time_and_the_traffic_on_both_sides(fleet: Fleet, viewer: Client) -> None:
    side = {"requests": 80, "outcomes": {"ok": 80}, "ttft_p50_ms": 91.0, "gap_max_ms": 420.0}
    Move.objects.update(before=side, after={**side, "gap_max_ms": 61.0})
    page = viewer.get(f"/moves/{fleet.move.pk}/").text
    for words in ("12 s", "91 ms", "420 ms", "61 ms"):
        assert words in page


def test_the_minute_after_is_said_to_be_on_its_way(fleet: Fleet, viewer: Client) -> None:
    Move.objects.update(before={"requests": 80, "outcomes": {"ok": 80}})
    assert "The minute after is measured once it has passed." in viewer.get(f"/moves/{fleet.move.pk}/").text


@pytest.fixture
def failed(fleet: Fleet) -> Move:
    server = make_server(
        ServerRole.DECODE, ServerState.FAILED, fleet.deployment, fleet.host, name="chat-5", gpu_indexes=[3]
    )
    error = "NIXL is not available."
    return make_move(server, from_role=ServerRole.PREFILL, error=error, finished_at=timezone.now())


def test_a_failed_move_says_what_stands_and_offers_three_ways(failed: Move, operator: Client) -> None:
    page = operator.get(f"/moves/{failed.pk}/").text
    assert "NIXL is not available." in page
    assert "chat-5 is failed now." in page
    for way in ("Try again as decode", "Back to prefill", "Start it as plain"):
        assert way in page


def test_a_failed_move_tells_what_to_do_as_its_server_does(failed: Move, operator: Client) -> None:
    Server.objects.filter(pk=failed.server_id).update(failure={"message": "…", "instruction": "Install NIXL there."})
    assert "Install NIXL there." in operator.get(f"/moves/{failed.pk}/").text


def test_a_page_on_which_nothing_will_change_asks_no_more(failed: Move, fleet: Fleet, viewer: Client) -> None:
    """Its buttons stay in place under the mouse."""
    assert "data-poll" not in viewer.get(f"/moves/{failed.pk}/").text
    assert viewer.get(f"/moves/{failed.pk}/", headers=REGION).status_code == 286


def test_a_page_that_waits_for_the_minute_after_asks_on(fleet: Fleet, viewer: Client) -> None:
    Move.objects.filter(pk=fleet.move.pk).update(finished_at=timezone.now(), after={})
    assert "data-poll" in viewer.get(f"/moves/{fleet.move.pk}/").text
    assert viewer.get(f"/moves/{fleet.move.pk}/", headers=REGION).status_code == 200
    Move.objects.filter(pk=fleet.move.pk).update(after={"requests": 3})
    assert viewer.get(f"/moves/{fleet.move.pk}/", headers=REGION).status_code == 286


def test_a_viewer_is_offered_no_way_out(failed: Move, viewer: Client) -> None:
    assert "Try again" not in viewer.get(f"/moves/{failed.pk}/").text


@pytest.mark.parametrize(("way", "role"), [("retry", "decode"), ("back", "prefill"), ("plain", "plain")])
def test_each_way_starts_the_server_in_its_role(way: str, role: str, failed: Move, operator: Client) -> None:
    operator.post(f"/moves/{failed.pk}/again/", {"way": way})
    server = Server.objects.get(pk=failed.server_id)
    assert (server.state, server.role) == (ServerState.PENDING, role)


def test_a_way_that_does_not_exist_changes_nothing(failed: Move, operator: Client) -> None:
    answer = operator.post(f"/moves/{failed.pk}/again/", {"way": "sideways"}, follow=True)
    assert "Choose one of the ways that the page offers." in answer.text
    assert Server.objects.get(pk=failed.server_id).state == ServerState.FAILED
