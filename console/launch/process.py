"""The only module that starts, identifies and signals processes. Linux.

A server runs in a session of its own, so that its group can be ended whole and nothing that ends the agent reaches it.
A process is identified by its pid and the kernel's start tick within one boot: both survive a restart of the agent and
a jump of the clock, and a pid that was given away again does not match.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MARKER = "SWITCHYARD_START"
"""Environment variable that names the start; finds a process whose pid nobody had time to write down."""
PROC = Path("/proc")
EXEC_LIMIT_S = 1.0
"""How long a process may take to become another program before it passes for one without an environment."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_NOT_FOR_SERVERS = frozenset(
    # Whoever can write to the broker can launch; the rest would make a server behave by accident.
    {"REDIS_URL", "DATABASE_URL", "SECRET_KEY", "DATA_DIR", "DJANGO_SETTINGS_MODULE", "JOIN_TOKEN"}
    | {"VLLM_PORT", "VLLM_API_KEY", "VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_NIXL_SIDE_CHANNEL_PORT"}
)
_NOT_FOR_SERVERS_PREFIXES = ("CELERY_", "REDIS_", "POSTGRES_", "SWITCHYARD_")


@dataclass(frozen=True)
class Identity:
    pid: int
    start_tick: int
    """Clock ticks from boot to its start."""
    boot_id: str


@dataclass(frozen=True)
class Group:
    """What is left of one server: everything in the process group or session of its main process."""

    pids: tuple[int, ...]

    def __bool__(self) -> bool:
        return bool(self.pids)

    def without(self, leader: Identity | None) -> "Group":
        return Group(tuple(pid for pid in self.pids if leader is None or pid != leader.pid))


@dataclass(frozen=True)
class _Stat:
    state: str
    parent: int
    start_tick: int

    @property
    def has_ended(self) -> bool:
        return self.state in "ZX"


def boot_id() -> str:
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def uptime_s() -> float:
    """Seconds since boot, sleep included: comparable between processes, deaf to clock changes."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def identify(pid: int) -> Identity | None:
    """None when no such process runs; a zombie has ended."""
    stat = _read_stat(pid)
    return None if stat is None or stat.has_ended else Identity(pid, stat.start_tick, boot_id())


def is_running(identity: Identity) -> bool:
    return identify(identity.pid) == identity


def started_at(identity: Identity) -> float:
    """Unix time by the present clock."""
    return time.time() - (uptime_s() - identity.start_tick / _TICKS_PER_S)


def child_environment(inherited: Mapping[str, str], added: Mapping[str, str], marker: str) -> dict[str, str]:
    """What a server sees: the agent's own environment without broker, database and Django settings, then `added`."""
    kept = {
        name: value
        for name, value in inherited.items()
        if name.removesuffix("_FILE") not in _NOT_FOR_SERVERS and not name.startswith(_NOT_FOR_SERVERS_PREFIXES)
    }
    # setproctitle, which engines use, would otherwise write over the environment that /proc shows, marker included.
    return {**kept, "SPT_NOENV": "1", **added, MARKER: marker}


def spawn(
    argv: Sequence[str], environment: Mapping[str, str], log: Path, folder: Path | None
) -> "subprocess.Popen[bytes]":
    """Starts `argv` in a session of its own, its output appended to `log` (mode 600). Raises OSError."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return subprocess.Popen(
            argv,
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
        )
    finally:
        os.close(descriptor)


def marked(beginning: str) -> list[int]:
    """Pids of running processes whose marker begins with this, whatever session they moved to.

    Reads every process's environment: not for a loop.
    """
    wanted = f"{MARKER}={beginning}".encode()
    found = [pid for pid in _pids() if any(entry.startswith(wanted) for entry in _environment(pid).split(b"\0"))]
    return [pid for pid in found if identify(pid)]


def find_start(marker: str) -> Identity | None:
    """The main process that was started with `marker`, though its pid was never written down.

    When only its descendants are left, an identity that no longer runs but whose group can still be ended.
    """
    for pid in marked(marker):
        with contextlib.suppress(ProcessLookupError):
            leader = os.getsid(pid)
            return identify(leader) or Identity(leader, 0, boot_id())
    return None


def groups_of(leaders: Iterable[Identity]) -> dict[int, Group]:
    """Leader pid to the living members of its group or session, from one look at the process table.

    Leaders of an earlier boot are left out: nothing of theirs can be alive.
    """
    present = boot_id()
    wanted = {leader.pid: leader for leader in leaders if leader.boot_id == present}
    members: dict[int, list[int]] = {pid: [] for pid in wanted}
    for pid in _pids() if wanted else ():
        leader = _leader_of(pid, wanted)
        if leader is not None and _belongs(pid, leader):
            members[leader.pid].append(pid)
    return {pid: Group(tuple(sorted(pids))) for pid, pids in members.items()}


def terminate(identity: Identity) -> None:
    """SIGTERM to the main process only: engines mishandle one sent to the whole group."""
    if is_running(identity):
        _signal(identity.pid, signal.SIGTERM)


def engines_of(group: Group) -> Group:
    """Its members that bear an engine's name; the whole group where API server and engine are one process."""
    named = tuple(pid for pid in group.pids if _name(pid).startswith("VLLM::EngineCor"))
    return Group(named) if named else group


def kill(group: Group) -> None:
    """SIGKILL to every member; call again until the group is empty, for a member may be forking."""
    for pid in group.pids:
        _signal(pid, signal.SIGKILL)


def _leader_of(pid: int, wanted: Mapping[int, Identity]) -> Identity | None:
    try:
        # A session catches what a shell moved into a group of its own.
        return wanted.get(os.getpgid(pid)) or wanted.get(os.getsid(pid))
    except OSError:
        return None


def _belongs(pid: int, leader: Identity) -> bool:
    """False for zombies, and for a group of strangers who were given the pid of a leader that is long gone.

    The kernel gives a pid away again only when no group of that name is left. So the leader's pid in a process with
    another start tick says that our group has ended; without a leader, members must carry a marker.
    """
    stat = _read_stat(pid)
    if stat is None or stat.has_ended:
        _reap(pid, stat, leader)
        return False
    head = _read_stat(leader.pid)
    if head is not None:
        return head.start_tick == leader.start_tick
    return f"{MARKER}=".encode() in _environment(pid)


def _reap(pid: int, stat: _Stat | None, leader: Identity) -> None:
    """Orphans land with the agent when it is process 1 of a container: nobody else waits for them.

    The main process is left to its `Popen`, which keeps the exit code.
    """
    if stat is not None and stat.parent == os.getpid() == 1 and pid != leader.pid:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir(PROC) if name.isdecimal()]


def _environment(pid: int) -> bytes:
    """Empty for processes of other users and for those that have ended.

    While a process becomes another program the kernel shows none, on a busy machine for long: it is waited for.
    """
    deadline = time.monotonic() + EXEC_LIMIT_S
    environment = PROC / str(pid) / "environ"
    try:
        while not (found := environment.read_bytes()) and _is_in_exec(pid) and time.monotonic() < deadline:
            time.sleep(0.001)
        # It may have become the other program between the two looks.
        return found or environment.read_bytes()
    except OSError:
        return b""


def _is_in_exec(pid: int) -> bool:
    """It has a program already, which a thread of the kernel has not, and no arguments yet. Raises OSError."""
    return bool(os.readlink(PROC / str(pid) / "exe")) and not (PROC / str(pid) / "cmdline").read_bytes()


def _name(pid: int) -> str:
    """At most 15 characters, as the kernel keeps it."""
    try:
        return (PROC / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def _read_stat(pid: int) -> _Stat | None:
    try:
        text = (PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # The second field is the command in brackets and may hold spaces and brackets of its own.
    fields = text[text.rindex(b")") + 2 :].split()
    return _Stat(state=fields[0].decode(), parent=int(fields[1]), start_tick=int(fields[19]))
