"""docs/faults.md: every row names tests, and every file of fault tests occurs."""

from __future__ import annotations

from pathlib import Path

from tests.faults.stub import ROOT

TABLE = (ROOT / "docs/faults.md").read_text()


def test_every_row_names_a_test() -> None:
    rows = [line for line in TABLE.splitlines() if line.startswith("| ")]
    facts = [row for row in rows if not row.startswith(("| fault |", "| ---"))]
    assert len(facts) > 25
    assert [row for row in facts if "::test_" not in row] == []


def test_every_file_of_fault_tests_is_named() -> None:
    there = {path.name for path in Path(__file__).parent.glob("test_*.py")}
    assert {name for name in there if f"tests/faults/{name}::" not in TABLE} == {"test_real_runs.py", "test_table.py"}
