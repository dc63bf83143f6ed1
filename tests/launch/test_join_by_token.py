"""A machine joins with a token: real agents, a console that answers over HTTP, and a broker that keeps the logins."""

import json
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from django.conf import settings
from django.test import override_settings
from pytest_django.live_server_helper import LiveServer

from console.accounts import join_tokens
from console.accounts.models import AuditEntry, HostLogin, JoinToken
from console.fleet import actions, admission
from console.fleet.models import Host
from console.launch import logins, remote, reports
from console.launch.reporter import channel_of
from tests.factories import ADMIN, make_server
from tests.launch.agents import AgentProcess, run_agent
from tests.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)
Join = Callable[..., AgentProcess]


@pytest.fixture(autouse=True)
def no_logins(valkey: "redis.Redis") -> Iterator[None]:
    yield
    logins.keep({})


@pytest.fixture
def join(valkey: "redis.Redis", tmp_path: Path, live_server: LiveServer) -> Iterator[Join]:
    """Starts an agent with a token, and without any address of the broker."""
    made: list[AgentProcess] = []

    def start(plain: str, name: str = "gpu01", **variables: str) -> AgentProcess:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        made.append(AgentProcess(valkey, folder, name, broker_url="redis://127.0.0.1:1/0"))
        token = ["--token", plain] if plain else []
        return made[-1].start("--console", live_server.url, *token, **variables)

    yield start
    for agent in made:
        agent.broker_url = settings.REDIS_URL
        agent.end()


def make_token(**terms: object) -> str:
    return join_tokens.issue(ADMIN, "rack 1", **terms)[1]  # type: ignore[arg-type]


def refused(live_server: LiveServer, plain: str, folder: Path, name: str = "gpu01") -> str:
    """What the agent says when it cannot join; it must end, and leave nothing behind."""
    state_dir = folder / "refused"
    arguments = ["--name", name, "--state-dir", str(state_dir), "--console", live_server.url, "--token", plain]
    ended = run_agent(arguments, REDIS_URL="redis://127.0.0.1:1/0")
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert not (state_dir / "join.json").exists()
    return ended.stderr


def kept(agent: AgentProcess) -> dict[str, str]:
    found: dict[str, str] = json.loads((agent.state_dir / "join.json").read_text())
    return found


def client_of(agent: AgentProcess) -> "redis.Redis":
    """Whoever has read the host's state folder."""
    file = kept(agent)
    return redis.Redis.from_url(file["broker"], username=file["username"], password=file["secret"])


def take_newest(agent: AgentProcess) -> None:
    reports.take(agent.next_report())


def test_a_host_joins_with_a_token_and_reports(join: Join) -> None:
    agent = join(make_token())
    take_newest(agent)
    host = Host.objects.get(name="gpu01")
    assert (host.is_reachable, host.gpus.count(), admission.login_of(host)) == (True, 2, "own")
    assert AuditEntry.objects.get(action="host.join").actor.startswith("join token rack 1 (syj-")


def test_a_host_joins_with_a_token_from_a_file_and_a_restart_with_the_same_words_needs_it_no_more(
    join: Join, live_server: LiveServer, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(f"{make_token()}\n")
    agent = join("", JOIN_TOKEN_FILE=str(file))
    assert agent.signal(signal.SIGTERM) == 0
    agent.start("--console", live_server.url, JOIN_TOKEN_FILE=str(file))
    assert agent.next_report()["host"] == "gpu01"


def test_the_secret_is_kept_for_its_owner_alone_and_the_console_knows_its_hash_only(join: Join) -> None:
    agent = join(make_token())
    file = agent.state_dir / "join.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    login = HostLogin.objects.get()
    assert kept(agent)["secret"] not in (login.hashed, login.prefix)
    assert "password" not in kept(agent)["broker"]
    assert "@" not in kept(agent)["broker"]


def test_an_answer_to_the_console_and_a_launch_need_no_more_than_its_login(join: Join, valkey: "redis.Redis") -> None:
    valkey.acl_log_reset()
    agent = join(make_token())
    take_newest(agent)
    server = make_server(host=Host.objects.get(name="gpu01"))
    assert remote.tail(server, 100)["text"] == ""
    assert valkey.acl_log() == []


def test_a_restart_needs_neither_token_nor_console(join: Join, live_server: LiveServer) -> None:
    agent = join(make_token())
    JoinToken.objects.all().delete()
    agent.signal(signal.SIGKILL)
    agent.start()
    assert agent.next_report()["host"] == "gpu01"


@pytest.mark.parametrize("spoil", ["wrong", "expired", "revoked", "used", "other name"])
def test_a_token_that_does_not_count_is_refused_in_words_and_nothing_is_half_done(
    spoil: str, join: Join, live_server: LiveServer, tmp_path: Path
) -> None:
    plain, words = spoiled_token(spoil, join)
    before = list(HostLogin.objects.values_list("hashed", flat=True))
    assert words in refused(live_server, plain, tmp_path, "gpu09")
    assert not Host.objects.filter(name="gpu09").exists()
    assert list(HostLogin.objects.values_list("hashed", flat=True)) == before


def spoiled_token(spoil: str, join: Join) -> tuple[str, str]:
    if spoil == "wrong":
        return "syj-nonsense", "This join token is unknown."
    if spoil == "other name":
        return make_token(host_name="gpu02"), "This join token is for the host gpu02."
    plain = make_token()
    if spoil == "used":
        join(plain)
        return plain, "was for one machine and has been used"
    if spoil == "revoked":
        join_tokens.revoke(JoinToken.objects.get().pk, ADMIN)
        return plain, "This join token was revoked."
    JoinToken.objects.update(expires_at="2020-01-01T00:00Z")
    return plain, "This join token has expired."


def test_another_token_does_not_take_the_place_of_a_host(join: Join, live_server: LiveServer, tmp_path: Path) -> None:
    join(make_token())
    second = make_token()
    assert "A host gpu01 has joined already" in refused(live_server, second, tmp_path)
    assert JoinToken.objects.get(last_used_at=None)


def test_a_revoked_host_is_cut_off_says_what_to_do_and_comes_back_with_a_new_token(
    join: Join, live_server: LiveServer
) -> None:
    agent = join(make_token())
    last = agent.next_report()
    reports.take(last)
    host = actions.revoke_host(Host.objects.get().pk, ADMIN)
    wait_for(lambda: "start the agent with --console and --token" in agent.log(), agent.log())
    assert not reports.take({**last, "seq": last["seq"] + 100})
    assert admission.login_of(Host.objects.get(pk=host.pk)) == "revoked"
    with pytest.raises(redis.AuthenticationError), client_of(agent) as client:
        client.ping()

    agent.signal(signal.SIGKILL)
    ended = run_agent(["--name", "gpu01", "--state-dir", str(agent.state_dir)])
    assert (ended.returncode, "the console has revoked it" in ended.stderr) == (1, True)

    old = kept(agent)["secret"]
    agent.start("--console", live_server.url, "--token", make_token())
    take_newest(agent)
    assert admission.login_of(Host.objects.get(pk=host.pk)) == "own"
    assert kept(agent)["secret"] != old


def test_a_removed_host_is_cut_off(join: Join) -> None:
    agent = join(make_token())
    actions.remove_host(Host.objects.get().pk, ADMIN)
    with pytest.raises(redis.AuthenticationError), client_of(agent) as client:
        client.ping()


def test_the_login_is_there_again_after_the_broker_has_forgotten_it(join: Join, valkey: "redis.Redis") -> None:
    agent = join(make_token())
    valkey.acl_deluser("switchyard-host-gpu01")
    wait_for(lambda: "does not take reports" in agent.log())
    admission.keep_logins()
    assert agent.next_report()["host"] == "gpu01"


def test_a_host_can_neither_report_as_another_nor_reach_its_queue_or_the_consoles(join: Join) -> None:
    agent = join(make_token())
    prefix = settings.REDIS_PREFIX
    forbidden: list[tuple[str, ...]] = [
        ("PUBLISH", channel_of(prefix, "gpu02"), "{}"),
        ("PUBLISH", f"{prefix}:live", "{}"),
        ("LPUSH", f"{prefix}:host.gpu02", "x"),
        ("LPUSH", f"{prefix}:host.gpu012", "x"),
        ("LPUSH", f"{prefix}:console", "x"),
        ("LPUSH", f"{prefix}:checks", "x"),
        ("BRPOP", f"{prefix}:host.gpu02", "1"),
        ("HGET", f"{prefix}:unacked", "x"),
        ("SET", f"{prefix}:agent:gpu02", "x"),
        ("GET", f"{prefix}:result:celery-task-meta-host.gpu02.1"),
        ("XADD", f"{prefix}:traffic", "*", "a", "b"),
        ("SUBSCRIBE", channel_of(prefix, "gpu02")),
        ("KEYS", "*"),
        ("CONFIG", "GET", "requirepass"),
        ("ACL", "LIST"),
        ("CLIENT", "LIST"),
        ("EVAL", f"return redis.call('LPUSH', '{prefix}:console', 'x')", "0"),
        ("FLUSHALL",),
    ]
    with client_of(agent) as client:
        for words in forbidden:
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*words)


def test_a_broker_that_keeps_no_logins_lends_the_consoles_with_a_warning(
    join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins, "are_possible", lambda: False)
    agent = join(make_token())
    assert kept(agent)["username"] == ""
    assert "whoever has it can launch processes on every host" in agent.log()
    assert admission.login_of(Host.objects.get()) == "shared"


def test_a_name_that_the_console_does_not_go_by_is_explained(live_server: LiveServer, tmp_path: Path) -> None:
    with override_settings(ALLOWED_HOSTS=["console.example.org"]):
        assert "in ALLOWED_HOSTS" in refused(live_server, make_token(), tmp_path)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--token", "syj-x"], "belong together"),
        (["--console", "http://127.0.0.1:1"], "belong together"),
        (["--console", "127.0.0.1:1", "--token", "syj-x"], "expected an address such as http://console:8000"),
        (["--console", "http://127.0.0.1:1", "--token", "syj-x"], "cannot be reached"),
    ],
)
def test_what_is_wrong_with_the_command_is_said(arguments: list[str], words: str, tmp_path: Path) -> None:
    ended = run_agent(["--name", "gpu01", "--state-dir", str(tmp_path), *arguments])
    assert (ended.returncode, words in ended.stderr) == (1, True), ended.stderr
