"""The table of docs/error-rates.md: each rule has a test, and each file of claims is in it."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]

TABLE = (ROOT / "docs/error-rates.md").read_text().partition("## Every rule and its simulation")[2]


def test_each_rule_names_a_test() -> None:
    rows = [line for line in TABLE.splitlines() if line.startswith("| ")][2:]
    assert len(rows) > 20
    assert [row for row in rows if "::test_" not in row] == []


def test_each_file_of_claims_has_a_rule() -> None:
    files = list((ROOT / "flbench/papers").glob("*/claims*.*"))
    assert len(files) > 5
    assert [path.name for path in files if path.name not in TABLE] == []
