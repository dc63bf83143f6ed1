"""Where a local run lives: its address, its port, and the ports of its servers."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from console import env
from console.demo.ports import pick_range
from console.demo.supervise import CannotRun
from console.demo.up import Place, allowed_hosts, refuse_taken_port
from console.embedded import EmbeddedValkey, ValkeyDidNotStart
from tests.own import free_port
from tests.running import ROOT


def place(port: int, host: str = "127.0.0.1") -> Place:
    return Place(Path("/nowhere"), host, port)


def test_a_taken_port_is_refused_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotRun, match=rf"Cannot listen on 127.0.0.1 port {port}: .*choose another port: PORT="):
            refuse_taken_port(place(port))


def test_a_free_port_is_not_refused() -> None:
    refuse_taken_port(place(free_port()))


@pytest.mark.parametrize("port", ["0", "70000", "-1"])
def test_a_port_that_cannot_be_is_refused(port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", port)
    with pytest.raises(env.BadSetting, match="expected a port number"):
        Place.from_environment(Path("/nowhere"))


def test_the_address_is_one_that_a_browser_here_can_open() -> None:
    assert place(8000, "0.0.0.0").url == "http://127.0.0.1:8000"
    assert place(8000, "::").url == "http://[::1]:8000"
    assert place(8000, "::1").url == "http://[::1]:8000"


def test_a_demos_servers_keep_their_ports_from_run_to_run(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    first = pick_range(tmp_path)
    with socket.create_server(("127.0.0.1", first[0])):
        assert pick_range(tmp_path) == first


def test_two_demos_do_not_share_ports(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "run").mkdir(parents=True)
    one = pick_range(tmp_path / "one")
    with socket.create_server(("127.0.0.1", one[0])):
        two = pick_range(tmp_path / "two")
    assert two[1] < one[0] or one[1] < two[0]


def test_two_demos_that_start_at_once_do_not_share_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens yet, and both begin to look at the same place."""
    monkeypatch.setattr("zlib.crc32", lambda _: 0)
    picking = "import pathlib, sys, zlib; zlib.crc32 = lambda _: 0; from console.demo.ports import pick_range; "
    picking += "print(*pick_range(pathlib.Path(sys.argv[1])), flush=True); sys.stdin.read()"
    for name in ("one", "two"):
        (tmp_path / name / "run").mkdir(parents=True)
    command = [sys.executable, "-c", picking, str(tmp_path / "one")]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        first, last = map(int, other.stdout.readline().split())
        mine = pick_range(tmp_path / "two")
    assert mine[1] < first or last < mine[0]


class TestBind:
    """What `manage.py up --bind ADDRESS` opens to other machines."""

    def test_pages_and_broker_listen_where_it_says(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOST", "127.0.0.1")
        opened = Place.from_environment(Path("/nowhere"), "10.0.0.5")
        assert (opened.host, opened.bind, opened.url.rpartition(":")[0]) == ("10.0.0.5", "10.0.0.5", "http://10.0.0.5")

    def test_without_it_nothing_is_opened(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("VALKEY_BIND", raising=False)
        assert Place.from_environment(Path("/nowhere")).bind == ""

    def test_the_pages_answer_to_its_address(self) -> None:
        assert "10.0.0.5" in allowed_hosts("10.0.0.5")
        assert "[fd00::5]" in allowed_hosts("fd00::5")
        assert socket.gethostname() in allowed_hosts("0.0.0.0")

    @pytest.mark.parametrize(
        ("bind", "line"),
        [
            ("", "bind 127.0.0.1"),
            ("10.0.0.5", "bind 127.0.0.1 10.0.0.5"),
            ("0.0.0.0", "bind * -::*"),
            ("::", "bind * -::*"),
        ],
    )
    def test_the_broker_stays_on_loopback_too(self, bind: str, line: str, tmp_path: Path) -> None:
        EmbeddedValkey(tmp_path, port=7000, bind=bind).command()
        assert line in (tmp_path / "valkey.conf").read_text().splitlines()

    def test_a_broker_that_is_opened_answers_on_every_address(self, tmp_path: Path) -> None:
        valkey = EmbeddedValkey(tmp_path, free_port(), persistent=False, bind="0.0.0.0")
        valkey.start()
        try:
            socket.create_connection(("127.0.0.5", valkey.port), timeout=60).close()
        finally:
            valkey.stop()

    def test_a_broker_whose_port_is_taken_is_told_at_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("console.embedded.START_LIMIT_S", 3600.0)
        with socket.create_server(("127.0.0.1", 0)) as taken:
            valkey = EmbeddedValkey(tmp_path, taken.getsockname()[1], persistent=False)
            with pytest.raises(ValkeyDidNotStart, match="Address already in use"):
                valkey.start()
