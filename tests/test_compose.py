"""The compose file and the image, as far as that can be tried without a Docker engine."""

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import get_commands, load_command_class

from console.demo.up import Place, console_processes

ROOT = Path(__file__).parent.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if service["image"] == "switchyard"]
HOSTS = ["gpu01", "gpu02"]
VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")


def as_given(text: str) -> str:
    """With no variable set."""
    return VARIABLE.sub(lambda found: found[2], text)


def words(service: str) -> list[str]:
    return shlex.split(as_given(SERVICES[service]["command"]))


def volumes(service: str) -> dict[str, str]:
    """Volume to where it is mounted."""
    pairs = [mount.split(":") for mount in SERVICES[service].get("volumes", [])]
    return {name: target for name, target, *_ in pairs}


@pytest.mark.parametrize("service", [name for name in OURS if words(name)[0] == "python"])
def test_every_command_is_one_that_manage_py_takes(service: str) -> None:
    python, manage, name, *arguments = words(service)
    assert (python, manage) == ("python", "manage.py")
    parser = load_command_class(get_commands()[name], name).create_parser(manage, name)
    parser.parse_args(arguments)


@pytest.mark.parametrize("service", ["worker", "beat"])
def test_worker_and_beat_are_those_of_manage_py_up(service: str) -> None:
    usual = {spec.name: spec.argv for spec in console_processes(Place(ROOT, "127.0.0.1", 8000), {})}[service]
    assert [sys.executable, "-m", *words(service)] == usual


def test_the_image_is_built_once_and_by_what_everything_else_waits_for() -> None:
    assert [name for name in SERVICES if "build" in SERVICES[name]] == ["secrets"]
    assert all("secrets" in waited_for(name) for name in SERVICES if name != "secrets")


def waited_for(service: str) -> set[str]:
    direct = set(SERVICES[service].get("depends_on", {}))
    return direct.union(*map(waited_for, direct))


@pytest.mark.parametrize("service", SERVICES)
def test_what_a_service_waits_for_can_come(service: str) -> None:
    for name, waits in SERVICES[service].get("depends_on", {}).items():
        if waits["condition"] == "service_healthy":
            assert "healthcheck" in SERVICES[name]
        if waits["condition"] == "service_completed_successfully":
            assert SERVICES[name]["restart"] == "no"


@pytest.mark.parametrize("host", HOSTS)
def test_hosts_see_neither_passwords_nor_the_database(host: str) -> None:
    assert set(volumes(host)) == {host, "join"}
    assert SERVICES[host]["networks"] == ["hosts"]
    assert "hosts" not in SERVICES["postgres"]["networks"]


def test_only_pages_and_broker_are_published_and_to_this_machine_alone() -> None:
    published = {
        name: [as_given(port) for port in service["ports"]] for name, service in SERVICES.items() if "ports" in service
    }
    assert published == {"web": ["127.0.0.1:8000:8000"], "valkey": ["127.0.0.1:16379:6379"]}


@pytest.mark.parametrize("service", SERVICES)
def test_data_lies_in_named_volumes_and_the_rest_cannot_be_written(service: str) -> None:
    assert set(volumes(service)) <= set(COMPOSE["volumes"])
    assert SERVICES[service]["read_only"]


@pytest.mark.parametrize("service", OURS)
def test_a_new_volume_belongs_to_the_user_of_the_image(service: str) -> None:
    made = re.search(r"install -d -o switchyard -g switchyard (.+)", DOCKERFILE)
    assert made
    assert set(volumes(service).values()) <= set(made[1].split())


def test_the_image_holds_every_file_from_npm_that_the_pages_load() -> None:
    copied = re.findall(r"cp (?:-r )?(.+?) \.\./kept", DOCKERFILE)
    kept = {Path(path).name for paths in copied for path in paths.split()}
    assert {Path(path).name for path in loaded_from_npm()} <= kept
    assert "outline" in kept


def loaded_from_npm() -> set[str]:
    sources = [path for folder in ("templates", "static") for path in (ROOT / folder).rglob("*") if path.is_file()]
    texts = [path.read_text() for path in sources if path.suffix in (".html", ".js", ".css")]
    return {found for text in texts for found in re.findall(r"vendor/[\w./-]+\.(?:js|css)", text)}


@pytest.mark.parametrize("lock", ["requirements-run.lock", "requirements-compile.lock"])
def test_the_image_installs_and_compiles_with_what_the_tests_run_with(lock: str) -> None:
    assert {} != pins(lock).items() <= pins("requirements.lock").items()


def test_all_that_the_image_installs_from_the_index_is_checked_by_hash() -> None:
    installs = re.findall(r"pip (?:--python \S+ )?install (.+)", DOCKERFILE)
    assert len(installs) == 2
    assert all("--require-hashes" in words for words in installs)


def test_the_image_takes_the_machine_code_and_leaves_the_compiler_behind() -> None:
    *others, last = DOCKERFILE.split("\nFROM ")
    [compiling] = [stage for stage in others if "gcc" in stage]
    assert "COPY tools/compile-router tools/dataclass_inits.py tools/train-router tools/" in compiling
    assert "COPY --from=compiled /app/out/compiled out/compiled" in last
    assert "routing.is_compiled" in last
    assert "apt-get" not in last


def test_the_build_gets_every_file_that_the_image_copies() -> None:
    """`.dockerignore` leaves everything out but what it names."""
    kept = set(re.findall(r"^!(\S+)", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    copied = {
        path for words in re.findall(r"^COPY ((?!--from).+)", DOCKERFILE, re.MULTILINE) for path in words.split()[:-1]
    }
    assert copied == kept


def pins(lock: str) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / lock).read_text(), re.MULTILINE))
