"""notebooks/tutorial.ipynb: a fresh execution shows what the committed notebook shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

#: How much numbers of a table may differ from the committed ones, as shares of 1 or in points: other processors round
#: differently.
TOLERANCE = {True: 0.03, False: 3}


def outputs(notebook: Any) -> list[tuple[str, list[str], str]]:
    """Return the outputs of all cells in their order: kind, types of their data, text."""
    found = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [(o.output_type, sorted(o.get("data", {})), o.get("text") or o.data["text/plain"]) for o in found]


@pytest.mark.slow
def test_the_notebook_shows_what_is_committed(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    from tests import notebook

    committed = outputs(nbformat.read(notebook.PATH, as_version=4))
    fresh = outputs(notebook.executed(tmp_path, timeout=300))
    assert [(kind, types) for kind, types, _ in fresh] == [(kind, types) for kind, types, _ in committed]
    assert {"image/png", "image/svg+xml", "text/html"} <= {name for _, types, _ in fresh for name in types}
    for (_, _, one), (_, _, other) in zip(fresh, committed, strict=True):
        (ours, theirs) = (re.findall(r"\d+\.\d+|\d+", text) for text in (one, other))
        assert len(ours) == len(theirs), one
        for a, b in zip(map(float, ours), map(float, theirs), strict=True):
            assert abs(a - b) <= TOLERANCE[b < 1], f"{one}\n{other}"
    assert len([*(tmp_path / "runs" / "runs").glob("*/*")]) == 9, "the sweep shares the run of the first cell"
