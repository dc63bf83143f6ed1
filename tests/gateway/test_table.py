"""Which rows become part of the table that the routers serve."""

from dataclasses import asdict, fields
from datetime import timedelta
from typing import Any

import pytest
from django.core.validators import MinValueValidator
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from console.accounts.models import InferenceKey
from console.api.deployments import DeploymentIn
from console.fleet.deployments import EDITABLE
from console.fleet.forms import DeploymentForm
from console.fleet.models import Deployment, Pair, Server
from console.fleet.states import PairState, ServerRole, ServerState
from console.gateway import table
from console.gateway.models import Epoch
from routing.table import LEAST, Policy, Timeouts
from routing.table import Deployment as Served
from tests.factories import make_deployment, make_host, make_server

pytestmark = pytest.mark.django_db


def served(deployment: Deployment) -> Served:
    return table.build().deployments[deployment.served_model_name]


def accepting(server: Server) -> bool | None:
    """None: not in the table."""
    found = [row for row in served(server.deployment).servers if row.id == str(server.pk)]
    return found[0].accepting if found else None


def make_pair(state: PairState = PairState.VERIFIED) -> Pair:
    deployment = make_deployment()
    prefill = make_server(ServerRole.PREFILL, ServerState.READY, deployment)
    decode = make_server(ServerRole.DECODE, ServerState.READY, deployment)
    return Pair.objects.create(prefill=prefill, decode=decode, prefill_generation=1, decode_generation=1, state=state)


def test_a_ready_server_takes_requests() -> None:
    assert accepting(make_server(state=ServerState.READY)) is True


def test_a_draining_server_stays_known_but_takes_nothing_new() -> None:
    assert accepting(make_server(state=ServerState.DRAINING)) is False


ROUTED = {ServerState.READY, ServerState.DRAINING, ServerState.UNREACHABLE}


@pytest.mark.parametrize("state", sorted(set(ServerState) - ROUTED))
def test_a_server_in_any_other_state_is_left_out(state: ServerState) -> None:
    assert accepting(make_server(state=state, api_port=21000)) is None


def test_a_ready_server_on_a_silent_host_goes_on_serving() -> None:
    server = make_server(state=ServerState.UNREACHABLE, state_before_unreachable=ServerState.READY)
    assert accepting(server) is True


def test_a_draining_server_on_a_silent_host_takes_nothing_new() -> None:
    server = make_server(state=ServerState.UNREACHABLE, state_before_unreachable=ServerState.DRAINING)
    assert accepting(server) is False


def test_a_server_that_was_loading_when_its_host_fell_silent_is_left_out() -> None:
    server = make_server(state=ServerState.UNREACHABLE, state_before_unreachable=ServerState.LOADING)
    assert accepting(server) is None


def test_a_server_without_an_address_is_left_out() -> None:
    assert accepting(make_server(state=ServerState.READY, host=make_host(address=""))) is None


def test_a_verified_pair_is_usable() -> None:
    pair = make_pair()
    assert served(pair.prefill.deployment).pairs == frozenset({(str(pair.prefill_id), str(pair.decode_id))})


@pytest.mark.parametrize("state", [PairState.UNVERIFIED, PairState.FAILED])
def test_a_pair_that_is_not_verified_is_not_usable(state: PairState) -> None:
    assert served(make_pair(state).prefill.deployment).pairs == frozenset()


def test_a_pair_verified_before_a_restart_is_not_usable() -> None:
    pair = make_pair()
    Server.objects.filter(pk=pair.decode_id).update(generation=2)
    assert served(pair.prefill.deployment).pairs == frozenset()


def test_a_deployment_with_a_server_on_its_way_up_says_so() -> None:
    assert served(make_server(state=ServerState.LOADING).deployment).starting
    assert not served(make_server(state=ServerState.READY).deployment).starting


def test_only_valid_keys_open_a_deployment() -> None:
    deployment = make_deployment()
    valid, _ = InferenceKey.issue(deployment.pk, "valid")
    InferenceKey.issue(deployment.pk, "expired", timezone.now() - timedelta(seconds=1))
    revoked, _ = InferenceKey.issue(deployment.pk, "revoked")
    InferenceKey.objects.filter(pk=revoked.pk).update(revoked_at=timezone.now())
    InferenceKey.issue(make_deployment().pk, "of another deployment")
    assert served(deployment).key_hashes == frozenset({valid.hashed})


def test_a_deployment_without_keys_that_asks_for_one_admits_nobody() -> None:
    assert served(make_deployment(require_key=True)).key_hashes == frozenset()


def test_an_open_deployment_asks_for_no_key() -> None:
    assert served(make_deployment(require_key=False)).key_hashes is None


def test_the_policy_and_the_servers_own_key_are_passed_on() -> None:
    deployment = make_deployment(
        short_prompt_tokens=300,
        busy_decode_streams=8,
        plain_share_percent=12.5,
        when_no_pair="refuse",
        prefix_affinity=False,
        session_affinity=False,
        retries=4,
        wait_for_server_s=9,
        server_api_key="engine-key",
    )
    make_server(ServerRole.DECODE, ServerState.READY, deployment, max_model_len=4096, forces_usage=True, generation=3)
    found = served(deployment)
    policy = found.policy
    assert (policy.short_prompt_tokens, policy.busy_decode_streams, policy.plain_share_percent) == (300, 8, 12.5)
    assert (policy.when_no_pair, policy.prefix_affinity, policy.session_affinity) == ("refuse", False, False)
    assert (policy.retries, policy.wait_for_server_s) == (4, 9)
    server = found.servers[0]
    assert (server.api_key, server.max_model_len, server.generation) == ("engine-key", 4096, 3)
    assert server.forces_usage


OWN_LIMITS: dict[str, Any] = {
    "connect_s": 2.5,
    "first_byte_s": 40,
    "idle_s": 50,
    "total_s": 600,
    "comment_every_s": 15,
    "max_connections_per_server": 64,
}


def test_a_deployments_own_limits_are_passed_on_each_and_alone() -> None:
    timeouts = Timeouts(connect_s=2.5, first_byte_s=40, idle_s=50, total_s=600)
    assert served(make_deployment(**OWN_LIMITS)).policy == Policy(
        comment_every_s=15, max_connections_per_server=64, timeouts=timeouts
    )
    assert served(make_deployment(idle_s=50)).policy == Policy(timeouts=Timeouts(idle_s=50))


def test_without_limits_of_its_own_a_deployment_has_the_routers() -> None:
    assert served(make_deployment()).policy == Policy()


def test_every_setting_of_the_router_is_one_of_a_deployment() -> None:
    names = {field.name for kind in (Policy, Timeouts) for field in fields(kind)} - {"timeouts"}
    assert names <= EDITABLE


@pytest.mark.parametrize("name", LEAST)
def test_the_form_and_the_description_tell_the_routers_default(name: str) -> None:
    default = {**asdict(Policy()), **asdict(Timeouts())}[name]
    told = f"{default:g}" if default else "no"
    assert f"Empty: {told}" in DeploymentForm(admin=True).fields[name].help_text
    assert f"null: {told}" in (DeploymentIn.model_fields[name].description or "")


@pytest.mark.parametrize("name", LEAST)
def test_pages_and_the_router_alone_agree_on_the_least_that_can_be_meant(name: str) -> None:
    limits = getattr(Deployment, name).field.validators
    least = [limit.limit_value for limit in limits if isinstance(limit, MinValueValidator)]
    assert max(least) == LEAST[name]


def test_the_table_carries_the_epoch() -> None:
    epoch = Epoch.bump()
    assert table.build().epoch == epoch


def test_the_number_of_queries_does_not_grow_with_the_fleet(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    for _ in range(3):
        make_pair()
    with django_assert_num_queries(5):
        table.load()


def test_a_kept_table_is_read_back_as_it_was() -> None:
    pair = make_pair()
    InferenceKey.issue(pair.prefill.deployment_id, "key")
    make_server(state=ServerState.READY, deployment=make_deployment(require_key=False, gap_limit_ms=80, **OWN_LIMITS))
    published = table.load()
    table.keep(published)
    assert table.recall() == published


def test_a_kept_table_is_readable_by_its_owner_alone() -> None:
    table.keep(table.load())
    assert table.kept_path().stat().st_mode & 0o077 == 0


def test_a_damaged_kept_table_is_ignored() -> None:
    table.kept_path().write_text('{"epoch": 3')
    assert table.recall() is None
