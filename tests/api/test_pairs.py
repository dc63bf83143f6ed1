"""Pairs through the API: what the canary showed, of the present starts only."""

import pytest

from console.accounts.models import Role
from console.fleet.models import Pair, Server
from console.fleet.states import PairState, ServerRole, ServerState
from tests.api.calls import Api
from tests.factories import make_deployment, make_server

pytestmark = pytest.mark.django_db


@pytest.fixture
def pair() -> Pair:
    deployment = make_deployment("chat")
    prefill = make_server(ServerRole.PREFILL, ServerState.READY, deployment, name="p1")
    decode = make_server(ServerRole.DECODE, ServerState.READY, deployment, name="d1")
    return Pair.objects.create(
        prefill=prefill,
        decode=decode,
        prefill_generation=1,
        decode_generation=1,
        state=PairState.VERIFIED,
        transfer_ms=12.5,
    )


def test_a_verified_pair_names_both_sides(pair: Pair) -> None:
    (found,) = Api(Role.VIEWER).get("/pairs").body["items"]
    assert (found["deployment"], found["prefill"]["name"], found["decode"]["name"]) == ("chat", "p1", "d1")
    assert (found["state"], found["transfer_ms"]) == ("verified", 12.5)


def test_a_pair_is_in_use_while_both_of_it_are_ready(pair: Pair) -> None:
    api = Api(Role.VIEWER)
    assert api.get("/pairs").body["items"][0]["in_use"] is True
    Server.objects.filter(name="d1").update(state=ServerState.DRAINING)
    found = api.get("/pairs").body["items"][0]
    assert (found["state"], found["in_use"]) == ("verified", False)


def test_a_pair_stays_in_use_while_a_host_is_silent_for_routers_go_on(pair: Pair) -> None:
    Server.objects.filter(name="d1").update(state=ServerState.UNREACHABLE, state_before_unreachable=ServerState.READY)
    assert Api(Role.VIEWER).get("/pairs").body["items"][0]["in_use"] is True


def test_after_a_restart_a_pair_is_unverified(pair: Pair) -> None:
    Server.objects.filter(name="d1").update(generation=2)
    api = Api(Role.VIEWER)
    assert api.get("/pairs").body["items"][0]["state"] == "unverified"
    assert api.get("/pairs", state="verified").body["count"] == 0
    assert api.get("/pairs", state="unverified").body["count"] == 1


@pytest.mark.parametrize(
    ("filters", "count"),
    [({"state": "verified"}, 1), ({"state": "failed"}, 0), ({"state": "unverified"}, 0), ({"deployment": "chat"}, 1)],
)
def test_pairs_are_filtered(pair: Pair, filters: dict[str, str], count: int) -> None:
    assert Api(Role.VIEWER).get("/pairs", **filters).body["count"] == count


@pytest.mark.parametrize(("name", "value"), [("deployment", "nothing"), ("state", "married")])
def test_an_unknown_filter_value_is_refused(name: str, value: str) -> None:
    assert Api(Role.VIEWER).get("/pairs", **{name: value}).error["field"] == name


def test_parity_is_checked_only_while_both_are_ready(pair: Pair) -> None:
    Server.objects.filter(name="d1").update(state=ServerState.LOADING)
    answer = Api(Role.OPERATOR).post(f"/pairs/{pair.pk}/parity", {})
    assert (answer.status, answer.error["code"]) == (409, "conflict")


def test_parity_that_cannot_be_checked_says_why(pair: Pair) -> None:
    Server.objects.update(api_port=1)
    answer = Api(Role.OPERATOR).post(f"/pairs/{pair.pk}/parity", {})
    assert answer.status == 503
    assert "does not answer" in answer.error["message"]


def test_a_viewer_checks_no_parity(pair: Pair) -> None:
    assert Api(Role.VIEWER).post(f"/pairs/{pair.pk}/parity", {}).status == 403
