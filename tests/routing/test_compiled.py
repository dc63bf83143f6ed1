"""Machine code stands in for the sources only while it was made of them."""

import ast
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import routing

ROOT = Path(routing.__file__).parent.parent


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the router's sources, with a `clock` module that was "compiled" from them."""
    shutil.copytree(Path(routing.__file__).parent, tmp_path / "routing", ignore=shutil.ignore_patterns("__pycache__"))
    made = tmp_path / "out" / "compiled"
    (made / "routing").mkdir(parents=True)
    (made / "routing" / "clock.py").write_text((tmp_path / "routing" / "clock.py").read_text() + "\nMADE = True\n")
    (made / "DIGEST").write_text(routing.sources_digest(tmp_path / "routing"))
    return tmp_path


def clock_file(tree: Path, **environment: str) -> Path:
    """Which file the module is taken from, in a new process."""
    program = "import routing.clock; print(routing.clock.__file__)"
    plain = {name: value for name, value in os.environ.items() if name != routing.PLAIN_ENVIRONMENT}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tree, env={**plain, **environment}, capture_output=True, text=True, check=True)
    return Path(done.stdout.strip()).relative_to(tree)


def log_of_a_start(tree: Path) -> str:
    """Of the router alone, from its start to SIGTERM."""
    words = ["-m", "routing", "--workers", "1", "--port", "0", "--plain", "http://127.0.0.1:9"]
    plain = {name: value for name, value in os.environ.items() if name != routing.PLAIN_ENVIRONMENT}
    process = subprocess.Popen([sys.executable, *words], cwd=tree, env=plain, stderr=subprocess.PIPE, text=True)
    log = ""
    assert process.stderr is not None
    with process, process.stderr:
        for line in process.stderr:
            log += line
            if "listening on" in line:
                process.terminate()
    return log


def test_a_start_says_that_machine_code_runs(tree: Path) -> None:
    assert "The router runs as machine code." in log_of_a_start(tree)


def test_a_start_says_that_plain_python_runs_and_what_would_be_cheaper(tree: Path) -> None:
    (tree / "out" / "compiled" / "DIGEST").unlink()
    assert "The router runs as plain Python (`make compile` makes it cheaper)." in log_of_a_start(tree)


def test_what_was_made_of_these_sources_is_used(tree: Path) -> None:
    assert clock_file(tree) == Path("out/compiled/routing/clock.py")


def test_a_changed_source_is_run_itself(tree: Path) -> None:
    with (tree / "routing" / "budget.py").open("a") as source:
        source.write("\nCHANGED = True\n")
    assert clock_file(tree) == Path("routing/clock.py")


def test_a_module_added_since_then_makes_all_run_plain(tree: Path) -> None:
    (tree / "routing" / "added.py").write_text("")
    assert clock_file(tree) == Path("routing/clock.py")


def test_what_was_half_made_is_not_used(tree: Path) -> None:
    (tree / "out" / "compiled" / "DIGEST").unlink()
    assert clock_file(tree) == Path("routing/clock.py")


def test_the_environment_can_ask_for_plain_python(tree: Path) -> None:
    assert clock_file(tree, **{routing.PLAIN_ENVIRONMENT: "1"}) == Path("routing/clock.py")


def test_what_counted_while_it_was_trained_is_not_what_runs() -> None:
    """GCC's counters cost a third of the router's time. Without `make compile` there is nothing to look at."""
    assert [made.name for made in routing.COMPILED.rglob("*.so") if b"__gcov_" in made.read_bytes()] == []


def waits(nodes: list[ast.stmt]) -> Iterator[int]:
    """The lines in which others may run."""
    for node in nodes:
        for part in ast.walk(node):
            if isinstance(part, ast.Await | ast.AsyncWith | ast.AsyncFor):
                yield part.lineno


def test_no_compiled_module_waits_while_it_handles_an_exception() -> None:
    """mypyc keeps one current exception for all tasks: another task's would be raised, or none, which ends the process.

    Values may be carried out of the handler, and the waiting done behind it.
    """
    modules = runpy.run_path(str(ROOT / "tools" / "compile-router"))["modules"]
    found = [
        f"{module.name}:{line}"
        for module in modules(ROOT)
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.Try)
        for part in [*(handler.body for handler in node.handlers), node.finalbody]
        for line in waits(part)
    ]
    assert found == []
