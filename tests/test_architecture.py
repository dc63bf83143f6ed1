"""The import arrows of the tree: what each part may know of the others. Read from the source, nothing is imported."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOMAIN_APPS = ("fleet", "launch", "gateway", "live", "traffic", "comparison", "sizing")
PURE_MODULES = (
    "console.fleet.states",
    "console.launch.command",
    "console.launch.ports",
    "console.launch.phases",
    "console.launch.causes",
    "console.launch.reconcile",
    "console.launch.readiness",
)
SOCKET_ADDRESSES = "console.live.urls"
"""Addresses of sockets, not of pages."""
PAGE_MODULES = {"views", "urls", "forms", "pages", "templatetags"}
CLOCK_AND_IO = {
    "asyncio", "celery", "django", "http", "httpx", "io", "os", "pathlib", "psutil", "random", "redis", "secrets",
    "shutil", "socket", "subprocess", "tempfile", "threading", "time", "urllib.request",
}  # fmt: skip


def modules(package: str) -> dict[str, Path]:
    """Dotted name to file, for every module below `package` (a folder of the repository)."""
    files = sorted((ROOT / package).rglob("*.py"))
    return {".".join(file.relative_to(ROOT).with_suffix("").parts): file for file in files}


def imports(file: Path) -> Iterator[str]:
    """Every dotted name that the file imports, at whatever depth; `from a import b` gives `a.b`, dots are resolved."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = list(parts[: -node.level]) if node.level else []
            source = ".".join([*package, *filter(None, [node.module])])
            yield from (f"{source}.{alias.name}" for alias in node.names)


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def wrong_arrows(package: str, forbidden: tuple[str, ...], besides: str = "") -> list[str]:
    """Imports of anything below `forbidden` from `package`, except of what lies below `besides`."""
    return [
        f"{module} imports {name}"
        for module, file in modules(package).items()
        for name in imports(file)
        if any(within(name, target) for target in forbidden) and not (besides and within(name, besides))
    ]


def test_routing_knows_nothing_of_ours_and_no_django() -> None:
    assert wrong_arrows("routing", ("console", "tests", "django", "redis", "celery")) == []


def test_the_simulator_knows_nothing_of_ours_and_no_django() -> None:
    assert wrong_arrows("console/simulator", ("console", "routing", "django"), besides="console.simulator") == []


def test_only_the_gateway_imports_routing() -> None:
    strangers = [arrow for arrow in wrong_arrows("console", ("routing",)) if not arrow.startswith("console.gateway.")]
    assert strangers == []


def test_the_domain_knows_no_rest_and_no_pages() -> None:
    for app in DOMAIN_APPS:
        for module, file in modules(f"console/{app}").items():
            if PAGE_MODULES & set(module.split(".")):
                continue
            for name in imports(file):
                assert not within(name, "console.api"), f"{module} imports {name}"
                assert not within(name, "console.demo"), f"{module} imports {name}"
                assert not within(name, "django.template"), f"{module} imports {name}"
                assert not within(name, "django.shortcuts"), f"{module} imports {name}"
                ours = within(name, "console") and not within(name, SOCKET_ADDRESSES)
                assert not (ours and PAGE_MODULES & set(name.split("."))), f"{module} imports {name}"


def test_an_agents_host_needs_no_page_and_no_rest() -> None:
    for module in ("console.launch.agent", "console.launch.process"):
        file = modules("console/launch").get(module)
        assert file is not None, f"{module} is gone"
        for name in imports(file):
            assert not within(name, "console.api"), f"{module} imports {name}"
            assert "models" not in name.split("."), f"{module} imports {name}, but an agent has no database"


def test_pure_modules_have_no_django_no_clock_and_no_io() -> None:
    known = modules("console")
    for module in PURE_MODULES:
        assert module in known, f"{module} is gone"
        for name in imports(known[module]):
            is_plain_enum = name == "django.db.models.TextChoices"
            assert is_plain_enum or not any(within(name, part) for part in CLOCK_AND_IO), f"{module} imports {name}"


def test_the_control_plane_never_imports_its_tests() -> None:
    assert wrong_arrows("console", ("tests",)) == []
