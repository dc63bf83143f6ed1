"""A running web process, somebody who may look, and something to look at."""

from collections.abc import Iterator

import pytest
import redis

from console.accounts.models import Role, User
from console.fleet.models import Deployment
from tests.factories import make_deployment, make_user
from tests.web import RunningWeb


@pytest.fixture
def web(valkey: "redis.Redis", transactional_db: None) -> Iterator[RunningWeb]:
    with RunningWeb() as running:
        yield running


@pytest.fixture
def viewer(transactional_db: None) -> User:
    return make_user(Role.VIEWER)


@pytest.fixture
def deployment(transactional_db: None) -> Deployment:
    return make_deployment("chat")
