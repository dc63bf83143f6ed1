"""The deployment page as the server renders it: it works before any script has arrived."""

import re

import pytest
from django.conf import settings
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from console.fleet.models import Deployment, Pair, Server, WhenNoPair
from console.fleet.pages.overview import MODE_TEXT, MODE_WHY
from console.fleet.states import MoveStatus, PairState, ServerRole, ServerState
from tests.factories import make_deployment, make_move, make_server
from tests.pages.conftest import Fleet

YARD = "/deployments/chat/"
REGION = {"HX-Request": "true"}


def verify_pair(fleet: Fleet, *, decode_generation: int = 1) -> None:
    Pair.objects.create(
        prefill=fleet.prefill,
        decode=fleet.decode,
        prefill_generation=1,
        decode_generation=decode_generation,
        state=PairState.VERIFIED,
    )


def columns(page: str) -> dict[str, list[str]]:
    """Server names by column, without the template that the script copies."""
    tracks = re.findall(r'<section class="track" data-role="(\w+)".*?</section>', page, re.DOTALL)
    parts = re.findall(r'<section class="track".*?</section>', page, re.DOTALL)
    names = [re.findall(r'data-f="name"[^>]*>([^<]*)<', part) for part in parts]
    return dict(zip(tracks, names, strict=True))


def test_each_server_stands_in_the_column_of_its_role(fleet: Fleet, viewer: Client) -> None:
    assert columns(viewer.get(YARD).text) == {"prefill": ["chat-1"], "decode": ["chat-2"], "plain": ["chat-3"]}


def test_without_a_ready_prefill_server_the_badge_says_how_requests_are_served(fleet: Fleet, viewer: Client) -> None:
    verify_pair(fleet)
    assert 'id="mode" data-mode="split">Split<' in viewer.get(YARD).text
    Server.objects.filter(pk=fleet.prefill.pk).update(state=ServerState.STOPPED)
    page = viewer.get(YARD).text
    assert 'id="mode" data-mode="fallback">Fallback<' in page
    assert "by a plain server, else by a decode server" in page
    assert "by a plain server, else by a decode server" in viewer.get("/").text


def test_ready_servers_of_which_no_pair_is_verified_split_nothing(fleet: Fleet, viewer: Client) -> None:
    verify_pair(fleet, decode_generation=0)
    for page in (viewer.get(YARD).text, viewer.get("/").text):
        assert 'data-mode="fallback"' in page
        assert 'data-mode="split"' not in page


def test_the_pairs_that_are_asked_for_again_and_again_bring_the_mode(fleet: Fleet, viewer: Client) -> None:
    verify_pair(fleet)
    assert 'data-told-mode="split"' in viewer.get(f"{YARD}pairs/", headers=REGION).text
    Deployment.objects.update(when_no_pair=WhenNoPair.REFUSE)
    Pair.objects.update(state=PairState.FAILED)
    assert 'data-told-mode="refusing"' in viewer.get(f"{YARD}pairs/", headers=REGION).text


def test_without_a_ready_pair_the_badge_says_that_requests_are_refused(fleet: Fleet, viewer: Client) -> None:
    Server.objects.filter(pk=fleet.prefill.pk).update(state=ServerState.STOPPED)
    Deployment.objects.filter(pk=fleet.deployment.pk).update(when_no_pair=WhenNoPair.REFUSE)
    page = viewer.get(YARD).text
    assert 'data-mode="refusing">Refusing<' in page


def test_the_scripts_words_for_a_mode_are_those_of_the_server() -> None:
    script = (settings.BASE_DIR / "static" / "js" / "yard.js").read_text()
    for words in (*MODE_TEXT.values(), *MODE_WHY.values()):
        assert f'"{words}"' in script


def test_the_latest_requests_do_not_call_a_plain_server_a_decode_server(fleet: Fleet, viewer: Client) -> None:
    assert "<th>Decode or plain</th>" in viewer.get(YARD).text
    assert "<th>Decode or plain</th>" in viewer.get("/requests/").text


def test_an_operator_can_move_a_ready_server_and_start_a_stopped_one(fleet: Fleet, operator: Client) -> None:
    page = operator.get(YARD).text
    assert f'href="/servers/{fleet.prefill.pk}/move/?role=decode" >' in page
    assert f'action="/servers/{fleet.stopped.pk}/start/"' in page


def test_a_viewer_sees_the_servers_and_no_button(fleet: Fleet, viewer: Client) -> None:
    page = viewer.get(YARD).text
    assert "chat-1" in page
    for word in ("Move to", "Start</button>", "Add a server", "data-act", "server-grip"):
        assert word not in page


def test_an_empty_column_says_how_to_fill_it(fleet: Fleet, operator: Client) -> None:
    fleet.stopped.delete()
    assert "No plain server." in operator.get(YARD).text


def test_a_failed_server_shows_its_instruction(fleet: Fleet, viewer: Client) -> None:
    failure = {"code": "x", "message": "NIXL is not available.", "instruction": "Install it next to vLLM."}
    make_server(ServerRole.PLAIN, ServerState.FAILED, fleet.deployment, fleet.host, failure=failure)
    page = viewer.get(YARD).text
    assert "Install it next to vLLM." in page
    assert re.sub("<[^>]*>", "", page).count("NIXL is not available.") == 1


def test_a_degradation_stands_beside_the_state(fleet: Fleet, viewer: Client) -> None:
    Pair.objects.create(
        prefill=fleet.prefill,
        decode=fleet.decode,
        prefill_generation=1,
        decode_generation=1,
        state=PairState.UNVERIFIED,
    )
    page = viewer.get(YARD).text
    assert "Not yet verified with chat-2." in page
    assert 'data-state="ready"' in page


def test_an_open_move_shows_its_step_and_can_be_cancelled(fleet: Fleet, operator: Client) -> None:
    move = make_move(fleet.prefill, MoveStatus.DRAINING)
    page = operator.get(YARD).text
    assert "chat-1: prefill → decode" in page
    assert f'action="/moves/{move.pk}/cancel/"' in page


def test_the_latest_requests_are_there_before_the_script(fleet: Fleet, viewer: Client) -> None:
    page = viewer.get(YARD).text
    assert 'href="/requests/req-1/"' in page
    assert "150 ms" in page


def test_it_shows_how_to_send_a_request_to_this_very_address(fleet: Fleet, viewer: Client) -> None:
    page = viewer.get(YARD, headers={"host": "localhost:8123"}).text
    assert "curl -N http://localhost:8123/v1/chat/completions" in page
    assert '"model": "chat"' in page
    assert "$SWITCHYARD_KEY" in page


def test_the_command_names_no_key_where_none_is_needed(fleet: Fleet, viewer: Client) -> None:
    fleet.deployment.require_key = False
    fleet.deployment.save(update_fields=["require_key"])
    assert "SWITCHYARD_KEY" not in viewer.get(YARD).text


def test_more_servers_cost_no_more_queries(fleet: Fleet, viewer: Client) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as seen:
            viewer.get(YARD)
        return len(seen)

    few = queries()
    for role in ServerRole:
        make_server(role, ServerState.READY, fleet.deployment, fleet.host)
    assert queries() == few


@pytest.mark.parametrize("path", ["/", YARD, "/login/", "/hosts/", "/requests/"])
def test_no_page_holds_a_script_or_a_handler_of_its_own(path: str, fleet: Fleet, admin: Client) -> None:
    answer = admin.get(path, follow=True)
    assert "script-src 'self'" in answer.headers["Content-Security-Policy"]
    assert re.findall(r"<script(?![^>]*\bsrc=)", answer.text) == []
    assert re.findall(r"\son\w+=", answer.text) == []


def test_a_deployment_without_servers_is_new_and_not_down(fleet: Fleet, operator: Client) -> None:
    make_deployment("fresh")
    for page in (operator.get("/deployments/fresh/").text, operator.get("/").text):
        assert 'data-mode="empty"' in page
        assert ">No server yet<" in page
        assert ">Down<" not in page
