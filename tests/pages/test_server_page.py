"""One server: what it tells, starting and stopping it, and its log."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from console.fleet.errors import Unavailable
from console.fleet.models import Pair, Server
from console.fleet.states import PairState, ServerRole, ServerState
from console.launch import remote
from console.launch.contracts import LogTail
from tests.factories import make_server
from tests.pages.conftest import Fleet

REGION = {"HX-Request": "true"}


def address(server: Server, deed: str = "") -> str:
    return f"/servers/{server.pk}/{deed}"


def test_it_tells_how_the_start_went(fleet: Fleet, viewer: Client) -> None:
    asked = timezone.now().timestamp() - 60
    times = {"spawned": asked + 0.2, "weights": asked + 3.0, "listening": asked + 21.0}
    fleet.prefill.started_at = timezone.now() - timedelta(seconds=60)
    fleet.prefill.observed = {"phase": "listening", "phase_times": times}
    fleet.prefill.save(update_fields=["started_at", "observed"])
    page = viewer.get(address(fleet.prefill)).text
    assert "Loading weights" in page
    assert "took 18 s" in page


def test_it_shows_the_exact_command_of_the_start(fleet: Fleet, operator: Client) -> None:
    assert "It was never started." in operator.get(address(fleet.stopped)).text
    operator.post(address(fleet.stopped, "start/"))
    page = operator.get(address(fleet.stopped)).text
    assert "python -m console.simulator serve /models/tiny" in page
    assert "CUDA_VISIBLE_DEVICES=2" in page


def test_a_failure_stands_there_with_its_instruction_and_line(fleet: Fleet, viewer: Client) -> None:
    failure = {"code": "x", "message": "NIXL is not available.", "instruction": "Install it.", "line": "ImportError"}
    failed = make_server(ServerRole.PLAIN, ServerState.FAILED, fleet.deployment, fleet.host, failure=failure)
    page = viewer.get(address(failed)).text
    for words in failure.values():
        assert words == "x" or page.count(words) == 1


def make_verified(fleet: Fleet, *, prefill_generation: int = 1, **measured: float) -> None:
    Pair.objects.create(
        prefill=fleet.prefill,
        decode=fleet.decode,
        prefill_generation=prefill_generation,
        decode_generation=1,
        state=PairState.VERIFIED,
        **measured,
    )


def test_pairs_tell_their_transfer(fleet: Fleet, viewer: Client) -> None:
    make_verified(fleet, transfer_ms=10.0, transfer_bytes=5_000_000, canary_tokens=512)
    page = viewer.get(address(fleet.decode)).text
    assert "500 MB/s" in page
    assert "80 ms" in page  # 4096 tokens at the canary's pace


def test_a_pair_of_an_earlier_start_is_not_called_verified(fleet: Fleet, viewer: Client) -> None:
    make_verified(fleet, prefill_generation=0)
    page = viewer.get(address(fleet.decode)).text
    assert "Not verified since its start" in page


@pytest.mark.parametrize("state", [ServerState.STOPPED, ServerState.FAILED, ServerState.DRAINING])
def test_pairs_of_a_server_out_of_traffic_are_not_called_verified(
    state: ServerState, fleet: Fleet, viewer: Client
) -> None:
    make_verified(fleet)
    Server.objects.filter(pk=fleet.prefill.pk).update(state=state)
    own, of_peer = (viewer.get(address(server)).text for server in (fleet.prefill, fleet.decode))
    for page in (own, of_peer):
        assert f"No traffic: chat-1 is {state}" in page
        assert ">Verified</span>" not in page
    assert f"none of them gets traffic while it is {state}" in own
    assert "only verified pairs get traffic" in of_peer


def test_a_verified_pair_of_ready_servers_is_called_so(fleet: Fleet, viewer: Client) -> None:
    make_verified(fleet)
    assert ">Verified</span>" in viewer.get(address(fleet.prefill)).text


def test_the_region_asks_for_the_whole_page_after_a_new_start(fleet: Fleet, viewer: Client) -> None:
    same = viewer.get(address(fleet.prefill), {"generation": "1"}, headers=REGION)
    other = viewer.get(address(fleet.prefill), {"generation": "0"}, headers=REGION)
    assert "HX-Refresh" not in same.headers
    assert other.headers["HX-Refresh"] == "true"


def test_starting_twice_starts_once_and_says_so(fleet: Fleet, operator: Client) -> None:
    first = operator.post(address(fleet.stopped, "start/"), headers=REGION)
    second = operator.post(address(fleet.stopped, "start/"), headers=REGION)
    assert (first.status_code, second.status_code) == (204, 409)
    assert "on its way up already" in second.headers["HX-Trigger"]
    assert Server.objects.get(pk=fleet.stopped.pk).generation == 1


def test_a_stop_is_asked_about_first(fleet: Fleet, operator: Client) -> None:
    page = operator.get(address(fleet.prefill, "stop/")).text
    assert "finishes the 0 in flight" in page
    assert "It is the last ready prefill server: no request can be split." in page
    assert "Requests are then served without splitting" in page
    assert "I have read this, stop it all the same" in page
    assert Server.objects.get(pk=fleet.prefill.pk).state == ServerState.READY


def test_the_last_server_of_its_kind_is_stopped_only_when_that_was_acknowledged(fleet: Fleet, operator: Client) -> None:
    answer = operator.post(address(fleet.prefill, "stop/"), {"reason": "night"}, headers=REGION)
    assert answer.status_code == 409
    assert "Confirm it to go ahead." in answer.text
    assert 'value="night"' in answer.text
    assert Server.objects.get(pk=fleet.prefill.pk).state == ServerState.READY


def test_a_server_that_is_not_the_last_is_stopped_without_an_acknowledgement(fleet: Fleet, operator: Client) -> None:
    make_server(ServerRole.PREFILL, ServerState.READY, fleet.deployment, fleet.host)
    assert "I have read this" not in operator.get(address(fleet.prefill, "stop/")).text
    operator.post(address(fleet.prefill, "stop/"))
    assert Server.objects.get(pk=fleet.prefill.pk).state == ServerState.DRAINING


def test_the_only_ready_server_is_said_to_be_that(fleet: Fleet, operator: Client) -> None:
    Server.objects.filter(pk=fleet.decode.pk).update(state=ServerState.STOPPED)
    assert "every request fails until a server is ready again" in operator.get(address(fleet.prefill, "stop/")).text


def test_a_stopped_server_drains_and_can_be_taken_back(fleet: Fleet, operator: Client) -> None:
    operator.post(address(fleet.prefill, "stop/"), {"reason": "night", "confirmed": "on"})
    assert Server.objects.get(pk=fleet.prefill.pk).state == ServerState.DRAINING
    assert "Take it back into traffic" in operator.get(address(fleet.prefill)).text
    operator.post(address(fleet.prefill, "stop/cancel/"))
    assert Server.objects.get(pk=fleet.prefill.pk).state == ServerState.READY


def test_force_does_not_wait(fleet: Fleet, operator: Client) -> None:
    operator.post(address(fleet.prefill, "stop/"), {"force": "on", "confirmed": "on"})
    assert Server.objects.get(pk=fleet.prefill.pk).state == ServerState.STOPPING


def test_stopping_what_does_not_run_says_so(fleet: Fleet, operator: Client) -> None:
    answer = operator.post(address(fleet.stopped, "stop/"), headers=REGION)
    assert answer.status_code == 409
    assert "nothing of it runs" in answer.text


def test_a_server_at_rest_can_be_deleted_and_a_running_one_not(fleet: Fleet, operator: Client) -> None:
    answer = operator.post(address(fleet.prefill, "delete/"), follow=True)
    assert "Stop it, then delete it." in answer.text
    operator.post(address(fleet.stopped, "delete/"))
    assert set(Server.objects.values_list("name", flat=True)) == {"chat-1", "chat-2"}


def a_tail(server: Server, max_bytes: int) -> LogTail:
    text = "INFO starting\nINFO <b>ready</b>\n"
    return {"path": "/var/log/1.log", "size_bytes": 2_000_000, "text": text, "truncated": True}


def test_the_log_is_shown_as_text(fleet: Fleet, viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "tail", a_tail)
    region = viewer.get(address(fleet.prefill, "log/"), headers=REGION).text
    assert "INFO &lt;b&gt;ready&lt;/b&gt;" in region
    assert "2.0 MB" in region


def test_the_log_can_be_downloaded(fleet: Fleet, viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "tail", a_tail)
    answer = viewer.get(address(fleet.prefill, "log/download/"))
    assert answer.headers["Content-Disposition"] == 'attachment; filename="chat-1-1.log"'
    assert answer.text.startswith("INFO starting")


def test_a_host_that_does_not_answer_is_said_in_place_of_the_log(
    fleet: Fleet, viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: Any) -> LogTail:
        raise Unavailable("Host gpu01 did not answer within 5 s.")

    monkeypatch.setattr(remote, "tail", silent)
    assert "Host gpu01 did not answer" in viewer.get(address(fleet.prefill, "log/"), headers=REGION).text
    assert viewer.get(address(fleet.prefill, "log/download/")).status_code == 503


def test_a_server_that_was_never_started_has_no_log(fleet: Fleet, viewer: Client) -> None:
    assert "it was never started" in viewer.get(address(fleet.stopped, "log/")).text


def test_it_says_whose_count_is_shown_and_how_old_the_engines_is(fleet: Fleet, viewer: Client) -> None:
    sample = {"at": timezone.now().timestamp() - 300, "running": 3, "waiting": 0, "kv_usage": 0.5}
    fleet.prefill.observed = {"sample": sample}
    fleet.prefill.save(update_fields=["observed"])
    page = viewer.get(address(fleet.prefill)).text
    assert "counted by all routers now" in page
    assert re.search(r"as its engine said 5 min \d+ s ago", page)
    assert re.search(r"It said so 5 min \d+ s ago\.", viewer.get("/deployments/chat/").text)
