"""Adopting a server that someone else started: what fits is taken on, what does not is refused in words."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from console.accounts.models import AuditEntry
from console.fleet import actions, moves
from console.fleet.errors import Conflict, Forbidden, Invalid, NotFound
from console.fleet.models import Deployment, Server
from console.fleet.states import ServerRole, ServerState
from console.gateway import loads, table
from console.launch import introduction, tick
from tests.factories import OPERATOR, VIEWER, make_deployment, make_host, make_server
from tests.own import free_port
from tests.sent import Sent
from tests.simulator.harness import MODEL, NAME, SimulatedServer

pytestmark = pytest.mark.django_db(transaction=True)
S = ServerState


@pytest.fixture(scope="module")
def plain() -> Iterator[SimulatedServer]:
    with SimulatedServer("plain") as server:
        yield server


@pytest.fixture(scope="module")
def prefill() -> Iterator[SimulatedServer]:
    with SimulatedServer("prefill") as server:
        yield server


@pytest.fixture
def deployment() -> Deployment:
    return make_deployment(name="chat", served_model_name=NAME, model=MODEL, server_api_key="ours-alone")


@contextmanager
def some_website(page: bytes = b"<html>hello</html>") -> Iterator[str]:
    """Answers everything with 200 and this page."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as site:
        thread = threading.Thread(target=site.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{site.server_port}"
        site.shutdown()
        thread.join()


def adopted(deployment: Deployment, **fields: object) -> Server:
    defaults: dict[str, object] = {
        "host": None,
        "adopted_url": "http://10.0.0.5:8000",
        "gpu_indexes": [],
        "state": S.READY,
    }
    made = Server(deployment=deployment, name="chat-x", role="plain", generation=1)
    for name, value in {**defaults, **fields}.items():
        setattr(made, name, value)
    made.save()
    return made


def test_what_it_says_is_read_back(deployment: Deployment, plain: SimulatedServer, sent: Sent) -> None:
    made = actions.adopt(OPERATOR, deployment.pk, f"{plain.url}/v1/")
    assert (made.name, made.role, made.state, made.url) == ("chat-1", "plain", S.VERIFYING, plain.url)
    assert made.told["version"] == "0.31.0"
    assert made.told["model"] == MODEL
    assert made.max_model_len
    assert (made.told["connector"], made.told["role"]) == ("", "")
    assert sent[0][:2] == ("console.verify", [made.pk, 1])


def test_adopting_leaves_its_trace_without_the_key(deployment: Deployment, plain: SimulatedServer, sent: Sent) -> None:
    actions.adopt(OPERATOR, deployment.pk, plain.url, name="theirs", api_key="very-secret")
    entry = AuditEntry.objects.get(action="server.adopt")
    assert (entry.actor, entry.target, entry.after["url"]) == ("olga", "server theirs", plain.url)
    assert "very-secret" not in str(entry.after)


def test_a_connector_without_a_role_is_asked_for(deployment: Deployment, prefill: SimulatedServer, sent: Sent) -> None:
    with pytest.raises(Invalid, match="does not say its role") as refusal:
        actions.adopt(OPERATOR, deployment.pk, prefill.url)
    assert refusal.value.field == "role"
    made = actions.adopt(OPERATOR, deployment.pk, prefill.url, "prefill")
    assert (made.role, made.told["connector"]) == ("prefill", "nixl")


def test_a_role_that_it_tells_is_believed(
    deployment: Deployment, prefill: SimulatedServer, sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(introduction, "_connector", lambda place, text: ("NixlConnector", "prefill"))
    with pytest.raises(Invalid, match="It says that it is a prefill server"):
        actions.adopt(OPERATOR, deployment.pk, prefill.url, "decode")
    assert actions.adopt(OPERATOR, deployment.pk, prefill.url).role == "prefill"


def test_a_server_without_connector_is_no_decode_server(deployment: Deployment, plain: SimulatedServer) -> None:
    with pytest.raises(Invalid, match="It has no KV connector"):
        actions.adopt(OPERATOR, deployment.pk, plain.url, "decode")


def test_another_model_is_refused(plain: SimulatedServer) -> None:
    other = make_deployment(served_model_name="large")
    with pytest.raises(Invalid, match=f"it serves {NAME} instead of large"):
        actions.adopt(OPERATOR, other.pk, plain.url)
    assert not Server.objects.exists()


def test_what_does_not_answer_is_refused(deployment: Deployment) -> None:
    with pytest.raises(Invalid, match="Nothing listens at"):
        actions.adopt(OPERATOR, deployment.pk, f"http://127.0.0.1:{free_port()}")


def test_what_is_not_vllm_is_refused(deployment: Deployment) -> None:
    with (
        some_website() as url,
        pytest.raises(Invalid, match="Give host and port on which vLLM itself listens"),
    ):
        actions.adopt(OPERATOR, deployment.pk, url)


def test_a_server_without_metrics_is_refused_with_what_takes_them_away(deployment: Deployment) -> None:
    with some_website(b'{"version": "0.31.0"}') as url, pytest.raises(Invalid, match="--disable-log-stats"):
        actions.adopt(OPERATOR, deployment.pk, url)


def test_a_server_that_wants_a_key_says_so(deployment: Deployment, sent: Sent) -> None:
    with SimulatedServer("plain", args=["--api-key", "theirs"]) as locked:
        with pytest.raises(Invalid, match="asks for an API key") as refusal:
            actions.adopt(OPERATOR, deployment.pk, locked.url)
        assert refusal.value.field == "api_key"
        with pytest.raises(Invalid, match="refuses this API key"):
            actions.adopt(OPERATOR, deployment.pk, locked.url, api_key="wrong")
        assert actions.adopt(OPERATOR, deployment.pk, locked.url, api_key="theirs").engine_key == "theirs"


def test_an_address_that_is_known_is_refused(deployment: Deployment, plain: SimulatedServer, sent: Sent) -> None:
    actions.adopt(OPERATOR, deployment.pk, plain.url)
    with pytest.raises(Conflict, match="is chat-1 of deployment chat already"):
        actions.adopt(OPERATOR, deployment.pk, plain.url.replace("127.0.0.1", "localhost"))


def test_the_address_of_a_server_of_ours_is_refused(deployment: Deployment) -> None:
    ours = make_server(state=S.READY, host=make_host(address="127.0.0.1"))
    with pytest.raises(Conflict, match=f"is {ours.name}"):
        actions.adopt(OPERATOR, deployment.pk, ours.url)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("10.0.0.5:8000", "Only http and https"),
        ("file:///etc/passwd", "Only http and https"),
        ("redis://127.0.0.1:6379", "Only http and https"),
        ("http://olga:secret@10.0.0.5:8000", "Leave name and password out"),
        ("http://10.0.0.5:8000/?a=b", "Leave out what follows"),
        ("http://10.0.0.5:80000", "This is no address"),
        ("http://169.254.169.254/", "link-local"),
        ("http://[::ffff:169.254.169.254]/", "link-local"),
        ("http://[fe80::1]:8000", "link-local"),
        ("http://[fd00:ec2::254]/", "metadata"),
        ("http://100.100.100.200/", "metadata"),
        ("http://0.0.0.0:8000", "not the address of one machine"),
        ("http://224.0.0.1:8000", "not the address of one machine"),
        ("http://no-such-host.invalid:8000", "has no address"),
        ("http://" + "a" * 400, "at most 300"),
    ],
)
def test_an_address_that_cannot_be_meant_is_refused(deployment: Deployment, url: str, words: str) -> None:
    with pytest.raises(Invalid, match=words) as refusal:
        actions.adopt(OPERATOR, deployment.pk, url)
    assert refusal.value.field == "url"
    assert "secret" not in refusal.value.message


def test_a_viewer_adopts_and_lets_go_of_nothing(deployment: Deployment, plain: SimulatedServer) -> None:
    with pytest.raises(Forbidden):
        actions.adopt(VIEWER, deployment.pk, plain.url)
    with pytest.raises(Forbidden):
        actions.let_go(adopted(deployment).pk, VIEWER)


def test_an_unknown_deployment_is_not_found(plain: SimulatedServer) -> None:
    with pytest.raises(NotFound):
        actions.adopt(OPERATOR, 987654, plain.url)


def test_starting_stopping_moving_and_deleting_are_refused(deployment: Deployment, sent: Sent) -> None:
    theirs = adopted(deployment)
    for deed in (
        lambda: actions.start(theirs.pk, OPERATOR),
        lambda: actions.stop(theirs.pk, OPERATOR),
        lambda: actions.stop(theirs.pk, OPERATOR, force=True),
        lambda: moves.request(theirs.pk, "decode", OPERATOR),
        lambda: actions.delete_server(theirs.pk, OPERATOR),
    ):
        with pytest.raises(Conflict, match="someone else started it"):
            deed()
    assert any("someone else started it" in reason for reason in moves.preview(theirs.pk, "decode")["refused"])
    assert sent == []


def test_the_router_sends_its_own_key_and_never_the_deployments(deployment: Deployment) -> None:
    adopted(deployment, adopted_api_key="theirs")
    make_server(ServerRole.PLAIN, S.READY, deployment, make_host())
    servers = {server.name: server for server in table.build().deployments[NAME].servers}
    assert (servers["chat-x"].url, servers["chat-x"].api_key) == ("http://10.0.0.5:8000", "theirs")
    Server.objects.update(adopted_api_key="")
    assert {server.api_key for server in table.build().deployments[NAME].servers} == {None, "ours-alone"}


def test_a_ready_server_drains_before_it_is_let_go(
    deployment: Deployment, sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = adopted(deployment)
    kept = actions.let_go(theirs.pk, OPERATOR, "back to its owner")
    assert kept is not None
    assert kept.state == S.DRAINING
    monkeypatch.setattr(loads, "drained", lambda server: False)
    tick.end_drained_servers()
    assert Server.objects.filter(pk=theirs.pk).exists()
    monkeypatch.setattr(loads, "drained", lambda server: True)
    tick.end_drained_servers()
    assert not Server.objects.filter(pk=theirs.pk).exists()
    assert [task for task, _, _ in sent if task.startswith("agent.")] == []
    assert AuditEntry.objects.get(action="server.let_go").reason == "back to its owner"
    assert AuditEntry.objects.filter(action="server.let_go_done").count() == 1


def test_a_draining_one_can_be_taken_back(deployment: Deployment) -> None:
    theirs = adopted(deployment)
    actions.let_go(theirs.pk, OPERATOR)
    assert actions.cancel_stop(theirs.pk, OPERATOR).state == S.READY


def test_one_that_takes_no_traffic_is_let_go_at_once(deployment: Deployment) -> None:
    assert actions.let_go(adopted(deployment, state=S.UNREACHABLE).pk, OPERATOR) is None
    assert not Server.objects.exists()


def test_force_does_not_wait(deployment: Deployment) -> None:
    theirs = adopted(deployment)
    actions.let_go(theirs.pk, OPERATOR)
    with pytest.raises(Conflict, match="on its way out already"):
        actions.let_go(theirs.pk, OPERATOR)
    assert actions.let_go(theirs.pk, OPERATOR, force=True) is None


def test_a_server_of_ours_is_not_let_go(deployment: Deployment) -> None:
    with pytest.raises(Conflict, match="Stop it, then delete it"):
        actions.let_go(make_server(state=S.READY).pk, OPERATOR)
