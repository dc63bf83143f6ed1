"""What README.md says that can be checked."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
READ = re.compile(r'\benv\.(?:text|secret|number|integer|flag|choice|words|folder)\(\s*"([A-Z_]+)"')


def settings_read() -> set[str]:
    sources = [path.read_text() for folder in ("console", "routing") for path in (ROOT / folder).rglob("*.py")]
    return {name for source in sources for name in READ.findall(source)}


def test_the_table_names_every_setting_that_the_code_reads_and_no_other() -> None:
    table = README.split("## Settings")[1].split("\n## ")[0]
    named = {name for row in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert named - {"SECRET_KEY"} == settings_read()


def test_every_make_target_that_it_names_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"make ([a-z-]+)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize("document", ["README.md", "docs/hosts.md"])
def test_commands_to_copy_name_the_python_that_make_install_makes(document: str) -> None:
    """Of the console's own machine: `make install` leaves the system's `python`, if there is one, without Django."""
    lines = re.findall(r"^ {4,}(\S*python manage\.py (?!agent).*)", (ROOT / document).read_text(), re.MULTILINE)
    assert lines
    assert [line for line in lines if not line.startswith(".venv/bin/python ")] == []


def test_commands_that_pages_tell_to_paste_name_that_python_too() -> None:
    pages = [path.read_text() for path in (ROOT / "templates").rglob("*.html")]
    commands = [found for page in pages for found in re.findall(r"<code>([^<]*manage\.py [^<]*)</code>", page)]
    assert commands
    in_a_container = "docker compose exec web python "
    assert [one for one in commands if not one.startswith((".venv/bin/python ", in_a_container))] == []


LINK = re.compile(r"""(?:\]\(|src="|srcset=")(?!http)([^)"#]+)""")


@pytest.mark.parametrize("link", sorted(set(LINK.findall(README))))
def test_every_link_into_the_project_leads_somewhere(link: str) -> None:
    assert (ROOT / link).exists()
