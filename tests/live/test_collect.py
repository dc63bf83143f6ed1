"""The one loop that reads the live stream."""

from typing import Any

import orjson
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from console.database import DatabaseThread
from console.fleet.models import Deployment, Pair, Server
from console.fleet.states import PairState, ServerRole, ServerState
from console.gateway.loads import RouterLoad
from console.live import bus
from console.live.collect import Collector, snapshot
from console.live.snapshot import mode, mode_of, yard
from tests.factories import make_deployment, make_host, make_server
from tests.traffic.requests import store

P, D, PLAIN = ServerRole.PREFILL, ServerRole.DECODE, ServerRole.PLAIN


@pytest.fixture
def collector() -> Collector:
    return Collector(DatabaseThread("unused"))


def entry(number: int | None = None, source: str = "router-a") -> dict[bytes, bytes]:
    """As Valkey returns it; with a batch number when a router sent it."""
    fields: dict[Any, Any] = bus.entry(7, [{"type": "server_removed", "id": number or 0}])
    if number is not None:
        fields |= {"s": source, "n": number}
    return {
        str(key).encode(): value if isinstance(value, bytes) else str(value).encode() for key, value in fields.items()
    }


def pending(collector: Collector) -> list[int]:
    return [event["id"] for event in collector.channel(7)._pending]  # type: ignore[typeddict-item]


def test_a_batch_that_was_sent_twice_counts_once(collector: Collector) -> None:
    for number in (1, 2, 2, 1, 3):
        collector._take(entry(number))
    assert pending(collector) == [1, 2, 3]


def test_every_router_numbers_its_own_batches(collector: Collector) -> None:
    collector._take(entry(1, "router-a"))
    collector._take(entry(1, "router-b"))
    assert pending(collector) == [1, 1]


def test_events_of_the_domain_carry_no_number(collector: Collector) -> None:
    collector._take(entry())
    collector._take(entry())
    assert len(pending(collector)) == 2


def test_an_event_for_everybody_reaches_the_channels_there_are(collector: Collector) -> None:
    collector.channel(7)
    collector._take({b"d": b"", b"e": orjson.dumps([{"type": "server_removed", "id": 5}])})
    assert pending(collector) == [5]


def test_it_is_not_fresh_before_it_has_read(collector: Collector) -> None:
    assert not collector.is_fresh


@pytest.mark.django_db
def test_the_first_drawing_of_a_page_has_the_yard_and_the_latest_requests() -> None:
    deployment = make_deployment(gap_limit_ms=80)
    server = make_server(state=ServerState.READY, deployment=deployment)
    for after_s in (1, 2):
        store(deployment.pk, after_s=after_s, request_id=f"r-{after_s}")
    found = snapshot(deployment)
    assert [card["id"] for card in found["servers"]] == [server.pk]
    assert [row["request_id"] for row in found["requests"]] == ["r-1", "r-2"]
    assert (found["deployment"], found["gap_limit_ms"]) == (deployment.name, 80)


@pytest.mark.django_db
def test_the_yard_of_a_deleted_deployment_is_none() -> None:
    assert yard(12345, {}) is None


def queries_of_yard(pairs: int) -> int:
    deployment = make_deployment()
    for _ in range(pairs):
        prefill = make_server(P, ServerState.READY, deployment, make_host())
        decode = make_server(D, ServerState.READY, deployment, make_host())
        Pair.objects.create(prefill=prefill, decode=decode, prefill_generation=1, decode_generation=1)
    with CaptureQueriesContext(connection) as queries:
        assert yard(deployment.pk, {})
    return len(queries)


@pytest.mark.django_db
def test_a_yards_queries_do_not_grow_with_its_servers() -> None:
    assert queries_of_yard(pairs=1) == queries_of_yard(pairs=4)


@pytest.mark.django_db
def test_the_mode_costs_two_queries_however_many_servers_there_are() -> None:
    deployment = make_deployment()
    for number in range(5):
        make_server(ServerRole.PLAIN, ServerState.READY, deployment, make_host(address=f"10.0.0.{number}"), api_port=80)
    with CaptureQueriesContext(connection) as queries:
        assert mode_of(deployment) == "plain"
    assert len(queries) == 2


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("ready", "expected"),
    [
        ([], "down"),
        ([P], "down"),
        ([D], "fallback"),
        ([PLAIN], "plain"),
        ([P, D], "fallback"),
        ([P, D, PLAIN], "fallback"),
        ([P, PLAIN], "fallback"),
        ([D, PLAIN], "fallback"),
    ],
)
def test_without_a_pair_the_mode_says_how_the_ready_servers_answer(ready: list[ServerRole], expected: str) -> None:
    deployment = make_deployment()
    servers = [make_server(role, ServerState.READY, deployment) for role in ready]
    servers += [make_server(role, ServerState.LOADING, deployment) for role in ServerRole]
    assert mode(servers, "fallback", has_pair=False) == expected


@pytest.mark.django_db
@pytest.mark.parametrize(("ready", "expected"), [([P, D], "split"), ([P, D, PLAIN], "split and plain")])
def test_with_a_pair_requests_are_split(ready: list[ServerRole], expected: str) -> None:
    deployment = make_deployment()
    servers = [make_server(role, ServerState.READY, deployment) for role in ready]
    assert mode(servers, "refuse", has_pair=True) == expected


@pytest.mark.django_db
def test_a_draining_server_is_routed_still_so_that_a_deployment_which_refuses_does_so() -> None:
    deployment = make_deployment()
    servers = [make_server(D, ServerState.DRAINING, deployment), make_server(PLAIN, ServerState.READY, deployment)]
    assert mode(servers, "refuse", has_pair=False) == "refusing"


def make_silent(role: ServerRole, deployment: Deployment, before: ServerState = ServerState.READY) -> Server:
    """Its host stopped reporting."""
    return make_server(role, ServerState.UNREACHABLE, deployment, state_before_unreachable=before)


@pytest.mark.django_db
def test_servers_whose_host_is_silent_are_split_through_until_routers_avoid_one() -> None:
    deployment = make_deployment()
    prefill, decode = (make_silent(role, deployment) for role in (P, D))
    Pair.objects.create(
        prefill=prefill, decode=decode, prefill_generation=1, decode_generation=1, state=PairState.VERIFIED
    )
    assert mode_of(deployment) == "split"
    assert [told(deployment, avoided) for avoided in ([prefill], [decode])] == ["fallback", "down"]


def told(deployment: Deployment, avoided: list[Server]) -> str:
    seen = yard(deployment.pk, {server.pk: RouterLoad(avoided="connection refused") for server in avoided})
    assert seen is not None
    return seen["mode"]


@pytest.mark.django_db
@pytest.mark.parametrize(("before", "expected"), [(ServerState.READY, "plain"), (ServerState.DRAINING, "down")])
def test_a_silent_host_leaves_the_mode_what_it_was(before: ServerState, expected: str) -> None:
    deployment = make_deployment()
    server = make_silent(PLAIN, deployment, before)
    assert mode([server], "fallback", has_pair=False) == expected
    assert mode([server], "fallback", has_pair=False, avoided={server.pk}) == "down"


@pytest.mark.django_db
def test_an_adopted_server_that_does_not_answer_is_down() -> None:
    adopted = make_silent(PLAIN, make_deployment())
    adopted.host, adopted.adopted_url = None, "http://10.0.0.5:8000"
    assert mode([adopted], "fallback", has_pair=False) == "down"


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("ready", "expected"),
    [([D], "refusing"), ([P, D], "refusing"), ([D, PLAIN], "refusing"), ([PLAIN], "plain"), ([P], "down")],
)
def test_the_mode_says_that_requests_are_refused_without_a_pair(ready: list[ServerRole], expected: str) -> None:
    deployment = make_deployment()
    servers = [make_server(role, ServerState.READY, deployment) for role in ready]
    assert mode(servers, "refuse", has_pair=False) == expected
