"""README and leaderboard against ``recompute.py``, which shares no code with the report."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.audit.recompute import IMAGES, planned, runs, table

ROOT = Path(__file__).parents[2]

#: The names of README's table.
METHODS = {"FedAvg": "fedavg", "SCAFFOLD": "scaffold", "FedYogi": "fedyogi"}
NORMS = {"none": "none", "feature norm": "fn", "layer norm": "ln", "group norm": "gn", "batch norm": "bn"}
COLUMNS = {"digits, one class": ("classes:1", 10), "digits, Dirichlet(0.1)": ("dirichlet:0.1", 10)}


def lines_of(text: str, head: str) -> list[list[str]]:
    """The rows of the table whose head begins so, the head first."""
    rows = text[text.index(head) :].split("\n\n")[0].splitlines()
    return [[entry.strip() for entry in row.strip("| ").split(" | ")] for row in rows if "---" not in row]


@pytest.mark.slow
def test_digits_in_readme_and_leaderboard() -> None:
    found = runs(ROOT / "results/digits.parquet", "last")
    numbers = table(found, IMAGES["digits"])
    head, *rows = lines_of((ROOT / "README.md").read_text(), "| method | normalization |")
    by_name = {
        (method.split(":")[0], norm.split(":")[0], *place): of for (method, norm, _, *place), of in numbers.iterrows()
    }
    for column, place in COLUMNS.items():
        for row in rows:
            mean, half_width = by_name[METHODS[row[0]], NORMS[row[1]], *place]
            assert row[head.index(column)] == f"{mean:.2f} ± {half_width:.2f}", row
    text = "".join(
        path.read_text() for path in (ROOT / "leaderboard.md", *sorted((ROOT / "docs/results").glob("*.md")))
    )
    (columns, *compared), gains = (
        lines_of(text, "| comparison | iid, E 1 |"),
        planned(found, ["fn", "ln", "gn"], "none"),
    )
    for row in compared:
        for one in gains[gains.norm == row[0].split()[0]].itertuples():
            entry = row[columns.index(f"{one.column[0]}, E {one.column[1]}")]
            assert entry.startswith(f"{one.mean:+.2f} ± {one.half_width:.2f}"), (row[0], one)
            assert re.search(rf"\b{one.pairs} pairs?\b", entry)
