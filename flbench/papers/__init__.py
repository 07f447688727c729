"""The papers that flbench tests: their published numbers, claims, verdicts, chapters and figures, a folder each."""

from __future__ import annotations

from typing import Any

from flbench.papers.label_skew.paper import label_skew
from flbench.papers.rank_collapse.paper import RANK_COLLAPSE
from flbench.papers.sharpness.paper import SHARPNESS
from flbench.report.paper import Paper


def papers(**options: Any) -> tuple[Paper, ...]:
    """Return every paper that a report compares runs with; ``options`` are those of ``label_skew``."""
    return label_skew(**options), SHARPNESS, RANK_COLLAPSE
