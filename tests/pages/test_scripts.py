"""The parts of the live page that can be tried without a browser: numbering, windows, sketches, words. By Node."""

import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "js"


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.test.js")), ids=lambda file: file.name)
def test_the_scripts_of_the_pages(file: Path) -> None:
    node = shutil.which("node")
    assert node, "The pages' scripts are tested by Node 20 or newer; install it."
    run = subprocess.run([node, "--test", str(file)], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
