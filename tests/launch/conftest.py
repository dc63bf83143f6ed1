from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.launch.hosts import SLEEPER, TestHost
from tests.sent import sent

__all__ = ["sent"]

MakeHost = Callable[..., TestHost]


@pytest.fixture
def make_host(tmp_path: Path) -> Iterator[MakeHost]:
    """Makes a host whose vllm command runs a script; everything it started is ended with the test."""
    made: list[TestHost] = []

    def make(script: str = SLEEPER) -> TestHost:
        made.append(TestHost(tmp_path, script))
        return made[-1]

    yield make
    for host in made:
        host.end()


@pytest.fixture
def host(make_host: MakeHost) -> TestHost:
    return make_host()
