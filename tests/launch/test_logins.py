"""Hosts' logins at the broker follow what the console wants, whatever became of them there."""

from collections.abc import Iterator

import pytest
import redis

from console.accounts.models import digest
from console.launch import logins

GPU01, GPU02 = "switchyard-host-gpu01", "switchyard-host-gpu02"


@pytest.fixture(autouse=True)
def no_logins(valkey: "redis.Redis") -> Iterator[None]:
    yield
    logins.keep({})


def log_in(valkey: "redis.Redis", host: str, secret: str) -> "redis.Redis":
    port = valkey.connection_pool.connection_kwargs["port"]
    return redis.Redis(
        "127.0.0.1", port, username=logins.username(host), password=secret, single_connection_client=True
    )


def users(valkey: "redis.Redis") -> set[str]:
    return {name.decode() if isinstance(name, bytes) else name for name in valkey.acl_users()} - {"default"}


def test_what_is_missing_is_made_and_what_nobody_wants_is_deleted(valkey: "redis.Redis") -> None:
    valkey.acl_setuser("somebody-else", enabled=True)
    logins.grant("gpu01", digest("one"))
    logins.keep({"gpu02": digest("two")})
    assert users(valkey) == {GPU02, "somebody-else"}
    valkey.acl_deluser("somebody-else")


def test_what_is_there_is_left_as_it_is(valkey: "redis.Redis") -> None:
    logins.grant("gpu01", digest("one"))
    with log_in(valkey, "gpu01", "one") as client:
        client.ping()
        logins.keep({"gpu01": digest("one")})
        assert GPU01 in {connection["user"] for connection in valkey.client_list()}
        client.ping()


def test_taking_a_login_back_cuts_the_connections_that_use_it(valkey: "redis.Redis") -> None:
    logins.grant("gpu01", digest("one"))
    with log_in(valkey, "gpu01", "one") as client:
        client.ping()
        assert GPU01 in {connection["user"] for connection in valkey.client_list()}
        logins.take_back("gpu01")
        assert GPU01 not in {connection["user"] for connection in valkey.client_list()}
        with pytest.raises(redis.RedisError):
            client.ping()


def test_a_new_secret_ends_the_old_one(valkey: "redis.Redis") -> None:
    logins.grant("gpu01", digest("one"))
    logins.grant("gpu01", digest("two"))
    with pytest.raises(redis.AuthenticationError):
        log_in(valkey, "gpu01", "one")
    log_in(valkey, "gpu01", "two").close()


def test_a_trial_leaves_no_login_behind(valkey: "redis.Redis") -> None:
    assert logins.are_possible()
    assert users(valkey) == set()
