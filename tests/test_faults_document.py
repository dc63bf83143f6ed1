"""The table of faults names tests; each of them is there."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_every_row_is_tried_by_a_test_that_exists() -> None:
    rows = [line for line in (ROOT / "docs" / "faults.md").read_text().splitlines() if line.startswith("| ")][1:]
    named = [re.findall(r"`(test_\w+)`", row) for row in rows]
    assert len(rows) > 10
    assert all(len(names) == 1 for names in named), "each row names one test"
    source = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    missing = [name for (name,) in named if f"def {name}(" not in source]
    assert missing == []
