"""docs/faults.md: every row names tests, they exist, and every file of fault tests occurs."""

from __future__ import annotations

import re
from pathlib import Path

from tests.faults.stub import ROOT

NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs/faults.md").read_text())


def test_named_tests_exist() -> None:
    assert len(NAMED) > 30
    texts = {path: (ROOT / path).read_text() for path, _ in NAMED}
    assert [(path, name) for path, name in NAMED if f"\ndef {name}(" not in texts[path]] == []


def test_every_row_names_a_test() -> None:
    rows = [line for line in (ROOT / "docs/faults.md").read_text().splitlines() if line.startswith("| ")]
    facts = [row for row in rows if not row.startswith(("| fault |", "| ---"))]
    assert len(facts) > 25
    assert [row for row in facts if "::test_" not in row] == []


def test_every_file_of_fault_tests_is_named() -> None:
    there = {str(path.relative_to(ROOT)) for path in Path(__file__).parent.glob("test_*.py")}
    real = {"tests/faults/test_real_runs.py", "tests/faults/test_table.py"}  # real training; this file
    assert there - real == {path for path, _ in NAMED if path.startswith("tests/faults/")}
