"""Which vLLM and NIXL a host would launch, without importing either."""

import os
import shutil
import sys
import venv
from pathlib import Path

import pytest

from console.launch.engines import (
    EngineCache,
    find_vllm,
    import_nixl,
    interpreter_of,
    pinned_version,
    read_versions,
)


def script(path: Path, first_lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(first_lines + "\nimport sys\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("first_lines", "python"),
    [
        ("#!/env/bin/python3.11", "/env/bin/python3.11"),
        ("#!/env/bin/python -E", "/env/bin/python"),
        ('#!/bin/sh\n\'\'\'exec\' "/a long/bin/python" "$0" "$@"', "/a"),
        ("#!/bin/sh\n'''exec' /long/bin/python \"$0\" \"$@\"", "/long/bin/python"),
    ],
)
def test_the_first_line_names_the_python(tmp_path: Path, first_lines: str, python: str) -> None:
    assert interpreter_of(script(tmp_path / "vllm", first_lines)) == Path(python)


def test_env_is_looked_up_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = script(tmp_path / "bin" / "python3", "#!/bin/sh")
    monkeypatch.setenv("PATH", str(python.parent))
    assert interpreter_of(script(tmp_path / "vllm", "#!/usr/bin/env python3")) == python


@pytest.mark.parametrize("first_lines", ["", "#!/bin/bash\nexec vllm", "\x7fELF"])
def test_another_kind_of_command_has_no_python(tmp_path: Path, first_lines: str) -> None:
    assert interpreter_of(script(tmp_path / "vllm", first_lines)) is None


def test_a_missing_command_has_no_python(tmp_path: Path) -> None:
    assert interpreter_of(tmp_path / "vllm") is None


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment whose metadata lists packages; none of them can be imported."""
    folder = tmp_path_factory.mktemp("engine")
    venv.create(folder, symlinks=True)
    install(folder, "vllm", "0.31.0", 'Requires-Dist: nixl[cu13]==1.4.1; extra == "pd"\nRequires-Dist: nixlx>=9\n')
    install(folder, "nixl-cu12", "1.4.1")
    script(folder / "bin" / "vllm", f"#!{folder}/bin/python")
    return folder


def site(folder: Path) -> Path:
    return folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def install(folder: Path, name: str, version: str, more: str = "") -> None:
    info = site(folder) / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{more}")


def test_versions_come_from_the_environment_of_the_command(environment: Path) -> None:
    vllm = environment / "bin" / "vllm"
    assert read_versions(vllm) == {"vllm": "0.31.0", "nixl": "1.4.1", "nixl_pinned": "==1.4.1", "path": str(vllm)}


def test_nixl_that_does_not_load_says_why(environment: Path) -> None:
    found = import_nixl(environment / "bin" / "vllm")
    assert (found.works, found.error) == (False, "ModuleNotFoundError: No module named 'nixl'")


def test_nixl_that_loads_is_fine(environment: Path) -> None:
    package = site(environment) / "nixl"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "_api.py").touch()
    try:
        assert import_nixl(environment / "bin" / "vllm").works
    finally:
        shutil.rmtree(package)


def test_without_a_command_nothing_is_known() -> None:
    assert read_versions(None) == {"vllm": None, "nixl": None, "nixl_pinned": None, "path": ""}


def test_a_python_that_does_not_run_leaves_the_versions_open(tmp_path: Path) -> None:
    vllm = script(tmp_path / "vllm", "#!/no/such/python")
    assert read_versions(vllm)["vllm"] is None


@pytest.mark.parametrize(
    ("requirement", "pinned"),
    [
        (None, None),
        ("nixl", None),
        ("nixl==1.4.1", "==1.4.1"),
        ('nixl[cu12] (>=1.4,<2) ; extra == "kv"', ">=1.4,<2"),
        ("nixl-cu13==1.4.1", "==1.4.1"),
    ],
)
def test_the_version_that_vllm_asks_for(requirement: str | None, pinned: str | None) -> None:
    assert pinned_version(requirement) == pinned


def test_the_answer_is_remembered_for_a_while(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = EngineCache(environment / "bin" / "vllm")
    first = cache.read()
    monkeypatch.setattr("console.launch.engines.read_versions", lambda _: pytest.fail("asked again"))
    assert cache.read() is first


def test_the_command_is_found_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_vllm(None) is None
    vllm = script(tmp_path / "vllm", "#!/bin/sh")
    assert find_vllm(None) == vllm


def test_a_given_command_is_taken_as_it_is(tmp_path: Path) -> None:
    assert find_vllm(Path(os.path.relpath(tmp_path / "vllm"))) is not None
