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


def claim(owner: str) -> joining.NameClaim:
    return joining.NameClaim(settings.REDIS_URL, "test:agent:gpu01", owner)


class TestName:
    def test_another_machine_cannot_take_a_name_in_use(self, valkey: "redis.Redis") -> None:
        first, second = claim("rack1:boot:/state"), claim("rack2:boot:/state")
        first.take()
        with pytest.raises(joining.CannotJoin, match=r"\(rack1\) has joined under this name"):
            second.take(wait_s=0)
        for one in (first, second):
            one.release()

    def test_the_same_agent_takes_its_name_again_at_once(self, valkey: "redis.Redis") -> None:
        killed, again = claim("rack1:boot:/state"), claim("rack1:boot:/state")
        killed.take()
        again.take()
        for one in (killed, again):
            one.release()

    def test_a_released_name_is_free(self, valkey: "redis.Redis") -> None:
        first, second = claim("rack1:boot:/state"), claim("rack2:boot:/state")
        first.take()
        first.release()
        second.take()
        second.release()

    def test_a_name_whose_machine_is_gone_becomes_free_by_itself(self, valkey: "redis.Redis") -> None:
        gone, second = claim("rack1:boot:/state"), claim("rack2:boot:/state")
        gone.take()
        valkey.pexpire("test:agent:gpu01", 300)
        second.take()
        for one in (gone, second):
            one.release()

    def test_a_name_that_another_took_is_not_taken_back(
        self, valkey: "redis.Redis", caplog: pytest.LogCaptureFixture
    ) -> None:
        first = claim("rack1:boot:/state")
        first.take()
        valkey.set("test:agent:gpu01", "rack2:boot:/state")
        first.renew()
        first.renew()
        first.release()
        assert valkey.get("test:agent:gpu01") == b"rack2:boot:/state"
        assert caplog.text.count("another machine (rack2)") == 1

    def test_renewing_without_a_broker_does_nothing(self) -> None:
        joining.NameClaim("redis://127.0.0.1:1/0", "test:agent:gpu01", "rack1").renew()


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
