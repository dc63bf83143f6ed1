"""The pump's machine code for tests, made of the sources as `make compile` makes it, and streams to put through it."""

import functools
import importlib.util
import runpy
import shutil
import tempfile
from array import array
from pathlib import Path
from typing import Any

import routing
from routing import pump
from routing.sse import Scanner
from tests.routing.scripted import chat_chunk, event

SOURCES = Path(routing.__file__).parent


@functools.cache
def native() -> Any:
    """The class; the one that the router uses when it is compiled."""
    return pump.Native if pump.Native is not None else _made()


def _made() -> Any:
    compile_router = runpy.run_path(str(SOURCES.parent / "tools" / "compile-router"))
    folder = Path(tempfile.mkdtemp(prefix="switchyard-pump-"))
    for source in SOURCES.glob("*.[ch]"):
        shutil.copy(source, folder)
    compile_router["build_pump"](compile_router["compiler"](), folder)
    spec = importlib.util.spec_from_file_location("routing._pump", next(folder.glob("_pump*.so")))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Pump


def frame(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def token(text: str) -> bytes:
    """The chunk of a usual token."""
    return frame(event(chat_chunk({"content": text})))


def taught(*, drop_usage: bool = False) -> Scanner:
    """Has seen a usual event."""
    scanner = Scanner("chat", drop_usage=drop_usage)
    scanner.feed(event(chat_chunk({"content": "learn"})))
    return scanner


def floats(gaps: bytes) -> list[float]:
    found = array("f")
    found.frombytes(gaps)
    return list(found)
