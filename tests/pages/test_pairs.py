"""The matrix of prefill and decode servers."""

import pytest
from django.test import Client

from console.fleet.models import Pair, Server
from console.fleet.pages import pairs
from console.fleet.pages.pairs import matrix_of, standing_of
from console.fleet.states import PairState, ServerRole, ServerState
from console.launch import parity
from console.launch.parity import Parity
from tests.factories import make_server
from tests.pages.conftest import Fleet


def make_pair(fleet: Fleet, **fields: object) -> Pair:
    defaults: dict[str, object] = {
        "prefill_generation": 1,
        "decode_generation": 1,
        "state": PairState.VERIFIED,
        "transfer_ms": 10.0,
        "transfer_bytes": 5_000_000,
        "canary_tokens": 512,
    }
    return Pair.objects.create(prefill=fleet.prefill, decode=fleet.decode, **{**defaults, **fields})


def test_a_verified_pair_tells_its_transfer(fleet: Fleet, viewer: Client) -> None:
    make_pair(fleet)
    page = viewer.get("/deployments/chat/pairs/").text
    for words in ("chat-1", "chat-2", "Verified", "4k prompt ≈ 80 ms", "500 MB/s"):
        assert words in page


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({}, PairState.VERIFIED),
        ({"state": PairState.FAILED}, PairState.FAILED),
        ({"prefill_generation": 0}, PairState.UNVERIFIED),
        ({"decode_generation": 0}, PairState.UNVERIFIED),
    ],
)
def test_a_cell_speaks_of_the_present_starts(fields: dict[str, object], state: PairState, fleet: Fleet) -> None:
    make_pair(fleet, **fields)
    assert matrix_of(fleet.deployment).rows[0].cells[0].state == state


@pytest.mark.parametrize("state", [ServerState.DRAINING, ServerState.STOPPING, ServerState.VERIFYING])
def test_a_verified_pair_that_gets_no_traffic_says_why(state: ServerState, fleet: Fleet, operator: Client) -> None:
    make_pair(fleet)
    Server.objects.filter(pk=fleet.decode.pk).update(state=state)
    page = operator.get("/deployments/chat/pairs/").text
    assert f"No traffic: chat-2 is {state}" in page
    assert ">Verified</span>" not in page
    assert ">Compare</button>" not in page


def test_a_pair_goes_on_while_the_host_of_one_is_silent(fleet: Fleet, viewer: Client) -> None:
    make_pair(fleet)
    silent = {"state": ServerState.UNREACHABLE, "state_before_unreachable": ServerState.READY}
    Server.objects.filter(pk=fleet.decode.pk).update(**silent)
    assert "Verified, chat-2 unreachable" in viewer.get("/deployments/chat/pairs/").text


def test_a_pair_with_a_server_that_routers_avoid_says_so(fleet: Fleet) -> None:
    pair = make_pair(fleet)
    told = standing_of(fleet.prefill, fleet.decode, pair, {fleet.prefill.pk: "connection refused"})
    assert told.words == "No traffic: routers avoid chat-1"
    assert "connection refused" in told.more


def test_a_pair_without_a_canary_is_not_verified(fleet: Fleet) -> None:
    assert matrix_of(fleet.deployment).rows[0].cells[0].state == PairState.UNVERIFIED


def test_every_prefill_server_meets_every_decode_server(fleet: Fleet) -> None:
    for role in (ServerRole.PREFILL, ServerRole.DECODE, ServerRole.DECODE):
        make_server(role, ServerState.READY, fleet.deployment, fleet.host)
    matrix = matrix_of(fleet.deployment)
    assert [len(row.cells) for row in matrix.rows] == [3, 3]


def test_without_running_servers_of_both_sides_there_is_no_pair(fleet: Fleet, viewer: Client) -> None:
    fleet.decode.delete()
    assert "No pair: it takes a running prefill and a running decode server." in viewer.get("/deployments/chat/").text


def parity_says(same: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Parity(
        same=same, prompt="Count: one two", split="three", alone="three" if same else "tree", alone_on="chat-1"
    )
    monkeypatch.setattr(parity, "check", lambda pair_id, actor: told)


@pytest.mark.parametrize(("same", "words"), [(True, "wrote the same as chat-1"), (False, "wrote something else than")])
def test_a_comparison_is_told_in_words(
    same: bool, words: str, fleet: Fleet, operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    parity_says(same, monkeypatch)
    pair = make_pair(fleet)
    assert words in operator.post(f"/pairs/{pair.pk}/compare/").text
    region = operator.post(f"/pairs/{pair.pk}/compare/", headers={"HX-Request": "true"}).text
    assert words in region
    assert "<main" not in region


def test_a_pair_that_is_not_ready_cannot_be_compared(fleet: Fleet, operator: Client) -> None:
    pair = make_pair(fleet, prefill_generation=0)
    answer = operator.post(f"/pairs/{pair.pk}/compare/")
    assert answer.status_code == 409
    assert "Both servers of a pair must be ready." in answer.text


def test_a_viewer_cannot_compare(fleet: Fleet, viewer: Client) -> None:
    pair = make_pair(fleet)
    assert "Compare" not in viewer.get("/deployments/chat/pairs/").text
    assert viewer.post(f"/pairs/{pair.pk}/compare/").status_code == 403


def test_a_large_fleet_shows_how_many_pairs_there_are_beside_its_yard(
    fleet: Fleet, viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs, "CELLS_BESIDE_THE_YARD", 0)
    make_pair(fleet)
    assert "1 of 1 pairs of ready servers are verified" in viewer.get("/deployments/chat/").text
    address = "/deployments/chat/pairs/"
    assert "1 of 1 pairs" in viewer.get(address, headers={"HX-Request": "true"}).text
    assert "From prefill, to decode" in viewer.get(address).text
