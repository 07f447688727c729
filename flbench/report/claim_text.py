"""How chapters put numbers into words, and outcomes of several settings into one verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flbench.report.claims import Holding
from flbench.report.stats import Difference, summarize


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Mean ± half-width of its 95 % interval; the mean alone of too few values; a dash for none."""
    summary = summarize(values)
    if summary is None:
        return "–"
    text = f"{summary.mean:.{digits}f}"
    return text if summary.half_width is None else f"{text} ± {summary.half_width:.{digits}f}"


def interval(low: float | None, high: float | None, digits: int = 2) -> str:
    """``[0.51, 0.58]``; nothing where there is none."""
    return "" if low is None or high is None else f" [{low:.{digits}f}, {high:.{digits}f}]"


def points(found: Difference | None) -> str:
    """A difference of accuracies in percentage points: ``+2.1 ± 0.8``."""
    if found is None:
        return "–"
    text = f"{100 * found.mean:+.1f}"
    return text if found.half_width is None else f"{text} ± {100 * found.half_width:.1f}"


def sign(found: Difference | None) -> int:
    """1 or -1 where a difference is told apart from none by its interval, else 0."""
    if found is None or found.half_width is None or abs(found.mean) <= found.half_width:
        return 0
    return 1 if found.mean > 0 else -1


def verdict(outcomes: Sequence[bool | None]) -> Holding:
    """Of all, some or none of the settings; None: a setting that leaves it open. Without any it was not run."""
    if not outcomes:
        return "not run"
    if all(outcomes):
        return "holds"
    if any(outcomes):
        return "in part"
    return "does not hold" if False in outcomes else "inconclusive"


def percent(values: Iterable[float]) -> str:
    """Accuracies in percent: ``91.2 ± 0.5``."""
    return spread([100 * value for value in values], 1)
