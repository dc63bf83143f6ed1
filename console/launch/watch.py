"""One start as its host's agent sees it: what its process, its log and its port say, and ending it when that is asked.

`Watched.look` is called a few times a second. What must survive the agent is in `statefile.Start`; the rest is found
again by looking.
"""

import subprocess
from datetime import datetime

from console.launch import causes, phases, process
from console.launch.contracts import Cause, ServerObservation
from console.launch.logs import READ_LIMIT_BYTES, LogReader
from console.launch.probe import SILENT, Probe
from console.launch.process import Group
from console.launch.statefile import Start, Stop

KILL_GRACE_S = 10.0
"""After the time given for draining; an engine that is still there then does not heed SIGTERM."""
LINGER_S = 5.0
"""Workers may end up to two seconds after their main process."""
STUCK_AFTER_S = 30.0
FRESH_S = 3.0
CATCH_UP_BYTES = 4 * READ_LIMIT_BYTES

_STUCK = Cause(
    code="stuck",
    message="Processes of this server do not end although they were killed; the kernel holds them.",
    instruction="Its GPUs cannot be used meanwhile. If they are still there in some minutes, restart the host.",
)


class Watched:
    """`popen` is None for a process that an earlier agent started: then its exit code cannot be known."""

    def __init__(self, start: Start, log: LogReader, popen: "subprocess.Popen[bytes] | None" = None) -> None:
        self.start, self.log, self.popen = start, log, popen
        log.offset = start.log_offset
        self.group = Group(())
        self.alive = False
        self.probe: Probe = SILENT

    def look(self, group: Group, now: float) -> None:
        """`now`: Unix time. 1. process, 2. log, 3. end, 4. what was asked."""
        self.alive = self._main_runs()
        # The table was read a moment before: a main process that ended in between is not one of its own orphans.
        self.group = group if self.alive else group.without(self.start.identity)
        self._read_log(now)
        if not self.alive and self.start.main_ended_at is None:
            self._main_ended(now)
        self._end_a_start_that_hangs()
        self._carry_on_with_stop(now)
        if not self.alive and not self.group:
            self.start.ended_at = now

    def hold_for(self, strays: Group) -> None:
        """It has not ended after all: these were killed just now, and keep its GPUs until the kernel has ended them."""
        self.group, self.start.ended_at = strays, None
        self._note_kill()

    def ask_to_stop(self, drain_s: float) -> None:
        """The first call sends SIGTERM; a later one can only shorten the wait before SIGKILL.

        A server that does not listen yet has nothing to drain, and orphans of one that has ended heed nothing.
        """
        drains_s = drain_s if self.start.progress.is_listening else 0.0
        kill_at = process.uptime_s() + (drains_s + KILL_GRACE_S if self.start.main_ended_at is None else 0.0)
        if self.start.stop is not None:
            self.start.stop.kill_at_uptime_s = min(self.start.stop.kill_at_uptime_s, kill_at)
            return
        self.start.stop = Stop(kill_at, process.boot_id())

    def send_stop_signal(self) -> None:
        if self.start.identity is not None:
            process.terminate(self.start.identity)

    def take(self, probe: Probe, now: float) -> None:
        """A healthy answer is as good as the log line: its level may be set so that the line is not written."""
        self.probe = probe
        if probe.healthy and self.alive and not self.start.progress.is_listening:
            self._read_log(now)
            self.start.progress.reach("listening", now)

    def observation(self) -> ServerObservation:
        start, progress = self.start, self.start.progress
        return ServerObservation(
            server_id=start.server_id,
            generation=start.generation,
            pid=start.identity.pid if start.identity else None,
            process_started_at=start.started_at,
            alive=self.alive,
            group_pids=list(self.group.pids),
            exit_code=start.exit_code,
            stop_requested=start.stop is not None,
            phase=progress.phase,
            phase_times=progress.phase_times,
            last_line_at=self.log.grew_at,
            engine_id=progress.engine_id,
            kv_cache_tokens=progress.kv_cache_tokens,
            version=progress.version,
            cause=start.cause,
            healthy=self.probe.healthy if self.alive and progress.is_listening else None,
            sample=self.probe.sample if self.alive else None,
        )

    def _main_runs(self) -> bool:
        if self.popen is not None:
            self.start.exit_code = self.popen.poll()
            return self.start.exit_code is None
        return self.start.identity is not None and process.is_running(self.start.identity)

    def _read_log(self, now: float) -> None:
        if self.start.progress.is_listening:
            self.log.skip_to_last(CATCH_UP_BYTES)
        self._advance(self.log.new_lines(), now)

    def _advance(self, lines: list[str], now: float) -> None:
        for raw in lines:
            line = phases.parse(raw)
            phases.advance(self.start.progress, line, line_time(line.time, now))
        self.start.log_offset = self.log.offset

    def _main_ended(self, now: float) -> None:
        """Reads the rest of the log, which holds the cause, before saying that it ended."""
        self.start.main_ended_at = now
        self.log.skip_to_last(CATCH_UP_BYTES)
        while lines := self.log.new_lines():
            self._advance(lines, now)
        self._advance(self.log.rest(), now)
        if self.start.stop is None and self.start.cause is None:
            self.start.cause = self._cause_of_end()

    def _cause_of_end(self) -> Cause:
        progress = self.start.progress
        return progress.cause or causes.of_end(
            self.start.exit_code, progress.is_listening, progress.first_error, progress.last_line
        )

    def _end_a_start_that_hangs(self) -> None:
        """With its side channel taken the engine neither ends nor listens, and SIGTERM has no effect."""
        cause = self.start.progress.cause
        if not self.alive or cause is None or cause["code"] != causes.SIDE_CHANNEL_IN_USE:
            return
        self.start.cause = cause
        process.kill(self.group)

    def _carry_on_with_stop(self, now: float) -> None:
        stop = self.start.stop
        if stop is None or not self.group:
            return
        if self._must_be_killed(stop, now):
            process.kill(self.group)
            self._note_kill()

    def _note_kill(self) -> None:
        """Of what a stop was asked for: when it was killed first, and that the kernel does not end it."""
        stop = self.start.stop
        if stop is None:
            return
        if stop.killed_at_uptime_s is None:
            stop.killed_at_uptime_s = process.uptime_s()
        if process.uptime_s() - stop.killed_at_uptime_s > STUCK_AFTER_S:
            self.start.cause = _STUCK

    def _must_be_killed(self, stop: Stop, now: float) -> bool:
        if process.uptime_s() >= stop.kill_at_uptime_s:
            return True
        ended_at = self.start.main_ended_at
        return ended_at is not None and not 0 <= now - ended_at < LINGER_S


def line_time(text: str, now: float) -> float:
    """Unix time of a log line that was read at `now`. Lines have no year, whole seconds and the host's time zone.

    A line read as it was written gets `now`, which is more precise.
    """
    if not text:
        return now
    year = datetime.fromtimestamp(now).year
    try:
        written = datetime.strptime(f"{year}-{text}", "%Y-%m-%d %H:%M:%S").timestamp()
    except ValueError:
        return now
    return now if abs(now - written) < FRESH_S or written > now else written
