"""What a host remembers on disk."""

from pathlib import Path

import pytest

from console.launch.contracts import Cause
from console.launch.phases import Progress
from console.launch.process import Identity
from console.launch.statefile import Start, StateDir, Stop, outdated
from tests.launch.hosts import TestHost


def full_start(host: TestHost) -> Start:
    return Start(
        host.spec(),
        7,
        3,
        intended_at=1.0,
        identity=Identity(10, 20, "boot"),
        started_at=2.0,
        exit_code=0,
        main_ended_at=3.0,
        ended_at=4.0,
        stop=Stop(5.0, "boot", 6.0),
        cause=Cause(code="c", message="m", instruction="i"),
        progress=Progress(phase="nixl", phase_times={"nixl": 1.5}, version="0.31.0"),
        log_offset=99,
    )


def test_a_start_is_read_as_it_was_written(host: TestHost, tmp_path: Path) -> None:
    start = full_start(host)
    StateDir(tmp_path / "s").save(start)
    assert StateDir(tmp_path / "s").load() == [start]


def test_only_the_owner_can_read_it_for_it_holds_keys(host: TestHost, tmp_path: Path) -> None:
    folder = StateDir(tmp_path / "s")
    with folder.owned():
        folder.save(full_start(host))
    [state] = (tmp_path / "s").rglob("*.json")
    assert state.stat().st_mode & 0o077 == 0
    assert (tmp_path / "s").stat().st_mode & 0o077 == 0


def test_a_half_written_file_is_never_seen(host: TestHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, start = StateDir(tmp_path), full_start(host)
    folder.save(start)

    def power_cut(*_: object) -> None:
        raise OSError

    monkeypatch.setattr("json.dump", power_cut)
    with pytest.raises(OSError):  # noqa: PT011
        folder.save(Start(None, 7, 3, intended_at=9.0))
    assert folder.load() == [start]


def test_forgetting_removes_state_and_log(host: TestHost, tmp_path: Path) -> None:
    folder, start = StateDir(tmp_path), full_start(host)
    folder.save(start)
    folder.log_path(7, 3).write_text("log")
    folder.forget(start)
    assert folder.load() == []
    assert list((tmp_path / "servers").iterdir()) == []


def generations(*ended_at: float | None) -> list[Start]:
    return [Start(None, 7, number + 1, intended_at=0.0, ended_at=end) for number, end in enumerate(ended_at)]


def test_the_newest_three_starts_are_kept() -> None:
    assert [start.generation for start in outdated(generations(1, 2, 3, 4, 5), now=6.0)] == [2, 1]


def test_a_start_that_is_not_over_is_never_forgotten() -> None:
    assert outdated(generations(None, None, None, None, None), now=1e9) == []


def test_after_a_week_an_ended_start_is_forgotten() -> None:
    assert [start.generation for start in outdated(generations(10.0), now=10.0 + 8 * 86400)] == [1]


def test_the_agent_forgets_what_is_outdated(host: TestHost) -> None:
    for generation in range(1, 6):
        host.starts.stop(7, generation, drain_s=0)
    host.starts.forget_old()
    assert [start.generation for start in host.starts.folder.load()] == [3, 4, 5]
    assert host.seen()["generation"] == 5
