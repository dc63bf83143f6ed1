"""Engine samples from the rows to the router, and the rate between two of them."""

from typing import Any

import pytest

from console.database import DatabaseThread
from console.fleet.states import ServerState
from console.gateway import samples
from console.gateway.samples import Observed, Samples, tokens_per_s
from console.launch.contracts import EngineSample
from tests.factories import make_server
from tests.gateway.standin import StandInRouter


def sample(at: float = 10.0, tokens: float = 100.0, **fields: Any) -> EngineSample:
    made: Any = {"at": at, "running": 2, "waiting": 1, "kv_usage": 0.5, "generation_tokens": tokens, **fields}
    return made  # type: ignore[no-any-return]


def observed(made: EngineSample | None, generation: int = 1) -> Observed:
    return Observed(server_id=4, deployment_id=7, generation=generation, sample=made)


def watch(router: StandInRouter) -> Samples:
    return Samples(DatabaseThread("unused"), router)


def test_the_router_is_told_of_each_sample_once() -> None:
    router = StandInRouter()
    watched = watch(router)
    watched.take([observed(sample())])
    watched.take([observed(sample())])
    watched.take([observed(sample(at=12.0, running=3))])
    assert router.observed == [("4", 0.5, 1, 2), ("4", 0.5, 1, 3)]


def test_a_server_without_a_sample_tells_nothing() -> None:
    router = StandInRouter()
    watched = watch(router)
    watched.take([observed(None)])
    assert router.observed == []
    assert watched.engines() == {4: {}}


def test_tokens_per_second_between_two_samples() -> None:
    watched = watch(StandInRouter())
    watched.take([observed(sample(at=10, tokens=100))])
    assert watched.engines()[4]["tokens_per_s"] is None
    watched.take([observed(sample(at=12, tokens=150))])
    assert watched.engines()[4]["tokens_per_s"] == 25
    watched.take([observed(sample(at=12, tokens=150))])
    assert watched.engines()[4]["tokens_per_s"] == 25


def test_counters_that_begin_anew_give_no_negative_rate() -> None:
    assert tokens_per_s(observed(sample(at=10, tokens=100)), observed(sample(at=12, tokens=3))) is None


def test_the_first_sample_after_a_restart_gives_no_rate() -> None:
    assert tokens_per_s(observed(sample(at=10, tokens=1), 1), observed(sample(at=12, tokens=500), 2)) is None


@pytest.mark.django_db
def test_running_servers_are_read_with_their_deployment() -> None:
    server = make_server(state=ServerState.READY, observed={"sample": sample()})
    make_server(state=ServerState.STOPPED, observed={"sample": sample()})
    [found] = samples.read()
    assert (found.server_id, found.deployment_id, found.sample) == (server.pk, server.deployment_id, sample())
