"""What can be wrong when a host joins is said in words, with what to do."""

import socket

import pytest
import redis
from django.conf import settings

from console.launch import joining
from tests.launch.agents import run_agent


def test_a_broker_that_answers_is_fine(valkey: "redis.Redis") -> None:
    joining.check_broker(settings.REDIS_URL)


def test_the_own_address_is_that_of_the_way_to_the_broker(valkey: "redis.Redis") -> None:
    assert joining.own_address(settings.REDIS_URL) == "127.0.0.1"


def test_a_wrong_password_is_named(valkey: "redis.Redis") -> None:
    port = valkey.connection_pool.connection_kwargs["port"]
    for url in (f"redis://:wrong@127.0.0.1:{port}/0", f"redis://127.0.0.1:{port}/0"):
        with pytest.raises(joining.CannotJoin, match="does not take this password"):
            joining.check_broker(url)


def test_a_broker_that_is_not_there_is_named_without_its_password() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(joining.CannotJoin, match=f"redis://127.0.0.1:{port}/0 cannot be reached") as caught:
        joining.check_broker(f"redis://:hunter2@127.0.0.1:{port}/0")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("url", ["", "broker", "http://broker:6379", "redis://"])
def test_an_address_that_is_none_is_explained(url: str) -> None:
    with pytest.raises(joining.CannotJoin, match="must look like redis://"):
        joining.check_broker(url)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--name", "GPU 1"], "lower-case letters"),
        (["--name", "gpu01", "--port-range", "5"], "two ports"),
        (["--name", "gpu01", "--port-range", "22000-21000"], "two ports"),
        (["--name", "gpu01", "--simulate-gpus", "many"], "number of GPUs"),
        (["--name", "gpu01", "--broker", "nowhere"], "must look like redis://"),
        ([], "--name"),
    ],
)
def test_wrong_arguments_are_refused_with_a_reason(arguments: list[str], words: str) -> None:
    ended = run_agent(arguments)
    assert ended.returncode != 0
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr
