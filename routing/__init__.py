"""The data plane: an OpenAI-compatible streaming router for split and plain vLLM servers.

It knows nothing of Django, databases or brokers, so it can be read, tested and measured alone. What it serves is an
immutable `routing.table.Table`, swapped whole; what it saw of each request is one `routing.record.Record`.

`make compile` turns the modules of the hot path into machine code. It is used while it fits the sources beside this
file, and never once they changed: then these run as they are, with the same result.
"""

import hashlib
import os
import sys
import sysconfig
from pathlib import Path

COMPILED = Path(__file__).resolve().parent.parent / "out" / "compiled"
PLAIN_ENVIRONMENT = "SWITCHYARD_PLAIN_PYTHON"
"""Set to 1 to leave compiled modules alone."""


def sources_digest(folder: Path) -> str:
    """Of every module in `folder`, and of the interpreter that machine code is made for."""
    digest = hashlib.sha256(str(sysconfig.get_config_var("EXT_SUFFIX")).encode())
    for source in sorted([*folder.glob("*.py"), *folder.glob("*.[ch]")]):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()


def use_compiled(compiled: Path, sources: Path) -> bool:
    """Whether `compiled` was made of `sources`; then its modules are found before these."""
    try:
        fits = (compiled / "DIGEST").read_text() == sources_digest(sources)
    except OSError:
        return False
    if fits:
        __path__.insert(0, str(compiled / "routing"))
        sys.path.append(str(compiled))  # The modules share one library, which is found there.
    return fits


def how_it_runs() -> str:
    return "as machine code" if is_compiled else "as plain Python (`make compile` makes it cheaper)"


is_compiled = os.environ.get(PLAIN_ENVIRONMENT) != "1" and use_compiled(COMPILED, Path(__file__).resolve().parent)
