"""How far a start has come, read from the engine's log line by line. Pure."""

import re
from dataclasses import dataclass, field

from console.launch.causes import known_cause
from console.launch.contracts import PHASES, Cause, Phase

_PREFIX = re.compile(
    r"\((?P<process>[A-Za-z]+)\S* pid=\d+\) "
    r"(?:(?P<level>[A-Z]+) (?P<time>\d\d-\d\d \d\d:\d\d:\d\d) \[[^\]]*\] )?(?P<text>.*)"
)
_BARE_PREFIX = re.compile(r"(?P<level>[A-Z]+) (?P<time>\d\d-\d\d \d\d:\d\d:\d\d) \[[^\]]*\] (?P<text>.*)")
_UVICORN_PREFIX = re.compile(r"(?P<level>[A-Z]+):(?P<time>) +(?P<text>.*)")
_CALM_LEVELS = frozenset({"DEBUG", "INFO", "WARNING"})
_CODE_OF_TRACEBACK = "    "
"""The program's own text, which may name any error, is not one."""
_SIGNS: tuple[tuple[str, Phase], ...] = (
    ("Resolved architecture", "model"),
    ("Starting to load model", "weights"),
    ("KV cache size: ", "kv_cache"),
    ("Creating v1 connector", "connector"),
    ("Initializing NIXL wrapper", "nixl"),
    ("init engine (", "warmup"),
    ("Application startup complete", "listening"),
)
_VERSION = re.compile(r"\bversion (\d+\.\d+\S*)")
_KV_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")
_ENGINE_ID = re.compile(r"engine_id: (\S+)")


@dataclass(frozen=True)
class Line:
    text: str
    process: str = ""
    """`APIServer`, `EngineCore`, `Worker`; empty for lines of libraries."""
    level: str = ""
    time: str = ""
    """`MM-DD HH:MM:SS` on the host's clock; empty where the line has none."""

    @property
    def is_calm(self) -> bool:
        """Only other lines can tell of a failure: a logged prompt must not pass for one."""
        return self.level in _CALM_LEVELS


@dataclass
class Progress:
    """What the log of one start has shown so far; grows by `advance`."""

    phase: Phase = "spawned"
    phase_times: dict[str, float] = field(default_factory=dict)
    version: str = ""
    engine_id: str = ""
    kv_cache_tokens: int | None = None
    cause: Cause | None = None
    """The earliest known one. It stands for a failure only once the process has ended or hangs."""
    first_error: str = ""
    """The first line that an engine process logged as an error."""
    last_line: str = ""
    is_read_to_the_end: bool = False
    """The line that ends a start was there. The port may answer before that line is read."""

    @property
    def is_listening(self) -> bool:
        return self.phase == "listening"

    def reach(self, phase: Phase, at: float) -> None:
        """Phases only go forward; each keeps the time at which it was first seen."""
        self.phase_times.setdefault(phase, at)
        if PHASES.index(phase) > PHASES.index(self.phase):
            self.phase = phase
        if phase == "listening":
            # It came up all the same: whatever was logged before did not stop it.
            self.cause, self.first_error = None, ""


def parse(raw: str) -> Line:
    found = _PREFIX.match(raw) or _BARE_PREFIX.match(raw) or _UVICORN_PREFIX.match(raw)
    if found is None:
        return Line(raw)
    parts = found.groupdict()
    return Line(parts["text"], parts.get("process") or "", parts["level"] or "", parts["time"] or "")


def advance(progress: Progress, line: Line, at: float) -> None:
    """`at`: Unix time of the line."""
    progress.reach("imports", at)
    progress.last_line = line.text
    if not line.is_calm:
        _note_trouble(progress, line)
    if not progress.is_read_to_the_end:
        _note_phase(progress, line.text, at)


def _note_phase(progress: Progress, text: str, at: float) -> None:
    for sign, phase in _SIGNS:
        if sign in text:
            progress.reach(phase, at)
            progress.is_read_to_the_end |= phase == "listening"
    if not progress.version and (version := _VERSION.search(text)):
        progress.version = version[1]
    if tokens := _KV_TOKENS.search(text):
        progress.kv_cache_tokens = int(tokens[1].replace(",", ""))
    if not progress.engine_id and "Creating v1 connector" in text and (engine_id := _ENGINE_ID.search(text)):
        progress.engine_id = engine_id[1].rstrip(".,")


def _note_trouble(progress: Progress, line: Line) -> None:
    if progress.cause is None and not line.text.startswith(_CODE_OF_TRACEBACK):
        progress.cause = known_cause(line.text)
    if not progress.first_error and line.level in ("ERROR", "CRITICAL") and line.text.strip():
        progress.first_error = line.text
