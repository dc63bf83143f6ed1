"""People who are logged in, and a small fleet to look at."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from console.accounts.models import Role
from console.fleet.models import Deployment, Host, Move, Server
from console.fleet.states import MoveStatus, ServerRole, ServerState
from console.traffic.models import RequestRecord
from tests.factories import make_deployment, make_host, make_server, make_user


@dataclass(frozen=True)
class Fleet:
    host: Host
    deployment: Deployment
    prefill: Server
    decode: Server
    stopped: Server
    move: Move
    record: RequestRecord


@pytest.fixture
def log_in() -> Callable[[Role], Client]:
    """A browser of a new person with the given role."""

    def browser(role: Role) -> Client:
        client = Client()
        client.force_login(make_user(role))
        return client

    return browser


@pytest.fixture
def viewer(log_in: Callable[[Role], Client]) -> Client:
    return log_in(Role.VIEWER)


@pytest.fixture
def operator(log_in: Callable[[Role], Client]) -> Client:
    return log_in(Role.OPERATOR)


@pytest.fixture
def admin(log_in: Callable[[Role], Client]) -> Client:
    return log_in(Role.ADMIN)


@pytest.fixture
def fleet(db: None, valkey: object) -> Fleet:
    """A ready prefill and a ready decode server, a stopped one, a finished move and a finished request."""
    host, deployment = make_host("gpu01"), make_deployment("chat")
    prefill = make_server(ServerRole.PREFILL, ServerState.READY, deployment, host, name="chat-1", gpu_indexes=[0])
    decode = make_server(ServerRole.DECODE, ServerState.READY, deployment, host, name="chat-2", gpu_indexes=[1])
    stopped = make_server(ServerRole.PLAIN, ServerState.STOPPED, deployment, host, name="chat-3", gpu_indexes=[2])
    ended = timezone.now()
    move = Move.objects.create(
        server=decode,
        deployment=deployment,
        from_role=ServerRole.PLAIN,
        to_role=ServerRole.DECODE,
        status=MoveStatus.DONE,
        requested_by="olga",
        requested_at=ended - timedelta(seconds=12),
        out_of_traffic_at=ended - timedelta(seconds=12),
        finished_at=ended,
    )
    return Fleet(host, deployment, prefill, decode, stopped, move, make_record(deployment, prefill, decode))


def make_record(
    deployment: Deployment, prefill: Server | None, decode: Server, request_id: str = "req-1", **fields: object
) -> RequestRecord:
    """A split request that ended well a second ago: 3 ms choosing, 90 ms prefill, 57 ms hand-off, two gaps."""
    defaults: dict[str, object] = {
        "model": deployment.served_model_name,
        "path": "/v1/chat/completions",
        "streamed": True,
        "received_at": timezone.now() - timedelta(seconds=1),
        "route": "split" if prefill else "plain",
        "prefill_server": prefill.name if prefill else "",
        "prefill_server_id": prefill.pk if prefill else None,
        "decode_server": decode.name,
        "decode_server_id": decode.pk,
        "chosen_ms": 1.0,
        "prefill_sent_ms": 3.0 if prefill else None,
        "prefill_answered_ms": 93.0 if prefill else None,
        "decode_sent_ms": 94.0,
        "decode_opened_ms": 140.0,
        "first_token_ms": 150.0,
        "last_token_ms": 480.0,
        "finished_ms": 481.0,
        "prompt_tokens": 700,
        "completion_tokens": 3,
        "gaps_ms": [30.0, 300.0],
        "max_gap_ms": 300.0,
        "status": 200,
        "outcome": "ok",
    }
    return RequestRecord.objects.create(request_id=request_id, deployment=deployment, **{**defaults, **fields})
