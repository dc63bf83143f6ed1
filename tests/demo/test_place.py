"""Where a local run lives: its address, its port, and the ports of its servers."""

import socket
from pathlib import Path

import pytest

from console import env
from console.demo.ports import pick_range
from console.demo.supervise import CannotRun
from console.demo.up import Place, refuse_taken_port


def place(port: int, host: str = "127.0.0.1") -> Place:
    return Place(Path("/nowhere"), host, port)


def test_a_taken_port_is_refused_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotRun, match=rf"Cannot listen on 127.0.0.1 port {port}: .*choose another port: PORT="):
            refuse_taken_port(place(port))


def test_a_free_port_is_not_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    refuse_taken_port(place(port))


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
