"""What an answer is made of, and how numbers become words: no answer is known before its numbers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from flbench.papers.label_skew.probe_cells import Probed
from flbench.report.correlation import FEWEST_GROUPS, Correlation, Mean, spearman
from flbench.report.stats import CONFIDENCE

#: What the data say to a question.
Verdict = Literal["yes", "in part", "no", "does not tell", "not measured"]

#: Which way a correlation points; ``open``: its interval does not tell.
Leaning = Literal["rises", "falls", "flat", "open"]

#: An interval within this of zero excludes all but weak correlations.
WEAK = 0.3

#: A correlation from here on is called strong.
STRONG = 0.6

T = TypeVar("T")


@dataclass(frozen=True)
class Finding:
    """A rank correlation of two quantities.

    Attributes:
        what: the two.
        where: over which cells.
        correlation: within strata.
        unit: what was resampled: rows, lines or cells, in the plural.
    """

    what: str
    where: str
    correlation: Correlation
    unit: str


@dataclass(frozen=True)
class Comparison:
    """A line of a table of means.

    Attributes:
        names: what stands before the numbers.
        means: one a column; None where there is nothing.
    """

    names: tuple[str, ...]
    means: tuple[Mean | None, ...]


@dataclass(frozen=True)
class Means:
    """A table of means.

    Attributes:
        title: what they are.
        head: of the names and the columns.
        lines: its rows.
        percent: whether the means are shares, shown in points.
    """

    title: str
    head: tuple[str, ...]
    lines: tuple[Comparison, ...]
    percent: bool = True


@dataclass(frozen=True)
class Answer:
    """A question and what the data say.

    Attributes:
        name: of the question, in a word.
        question: as people ask it.
        verdict: the answer in a word.
        text: the answer in sentences, with its numbers.
        findings: correlations behind it.
        means: tables behind it.
    """

    name: str
    question: str
    verdict: Verdict
    text: str
    findings: tuple[Finding, ...] = ()
    means: tuple[Means, ...] = ()


def leaning(found: Correlation) -> Leaning:
    """Which way a correlation points, as far as its interval tells."""
    if found.interval is None:
        return "open"
    low, high = found.interval
    if low > 0:
        return "rises"
    if high < 0:
        return "falls"
    return "flat" if max(-low, high) < WEAK else "open"


def number_text(found: Correlation, unit: str) -> str:
    """``rho 0.45 (0.21 to 0.63; n = 102 in 15 norms)``."""
    if found.rho is None:
        return f"rho is not defined (n = {found.n})"
    if found.interval is None:
        return f"rho {found.rho:.2f} (no interval: n = {found.n} in only {found.groups} {unit})"
    low, high = found.interval
    return f"rho {found.rho:.2f} ({low:.2f} to {high:.2f}; n = {found.n} in {found.groups} {unit})"


def mean_text(found: Mean | None) -> str:
    """``+3.2 points (1.1 to 5.0; n = 40)``."""
    if found is None:
        return "nothing"
    interval = (
        f"{100 * found.interval[0]:+.1f} to {100 * found.interval[1]:+.1f}; " if found.interval else "no interval; "
    )
    return f"{100 * found.mean:+.1f} points ({interval}n = {found.n})"


def spread_text(values: Sequence[float]) -> str:
    """Median and middle half: ``1.2 (0.4 to 3.1)``."""
    import numpy as np

    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return f"{middle:.3g} ({low:.3g} to {high:.3g})"


def correlate(
    items: Sequence[T],
    quantities: tuple[Callable[[T], float | None], Callable[[T], float | None]],
    *,
    what: str,
    where: str,
    strata: Callable[[T], Hashable],
    units: Sequence[tuple[str, Callable[[T], Hashable]]],
) -> Finding:
    """Return the correlation of two quantities of the items that have both.

    ``units`` are ways to form groups, from the coarsest; the first with groups enough for an interval is resampled,
    or the coarsest where none has.
    """
    pairs = [
        (item, x, y)
        for item in items
        if (x := quantities[0](item)) is not None and (y := quantities[1](item)) is not None
    ]
    known = [item for item, _, _ in pairs]
    unit, group = grouping(known, units)
    found = spearman(
        [x for _, x, _ in pairs], [y for _, _, y in pairs], list(map(group, known)), list(map(strata, known))
    )
    return Finding(what, where, found, unit)


def grouping(
    items: Sequence[T], units: Sequence[tuple[str, Callable[[T], Hashable]]]
) -> tuple[str, Callable[[T], Hashable]]:
    """The coarsest way to form groups that gives groups enough; else the coarsest of all."""
    return next((unit for unit in units if len(set(map(unit[1], items))) >= FEWEST_GROUPS), units[0])


def partitions(items: Iterable[T], partition: Callable[[T], str]) -> list[tuple[str, list[T]]]:
    """The items of each partition, if there are several, and all together at the end."""
    everything = list(items)
    by_name: dict[str, list[T]] = {}
    for item in everything:
        by_name.setdefault(partition(item), []).append(item)
    return [*(by_name.items() if len(by_name) > 1 else ()), ("everywhere", everything)]


#: Groups of cells, from the coarsest: all of a method and norm, one line over learning rates, single cells.
CELL_UNITS: tuple[tuple[str, Callable[[Probed], Hashable]], ...] = (
    ("rows", lambda one: one.row),
    ("lines", lambda one: (one.row, one.column)),
    ("cells", lambda one: (one.row, one.column, one.lr)),
)

READING = (
    f"rho: Spearman's rank correlation within columns (ranks among cells that differ by method, norm and learning rate "
    f"alone, unless said otherwise), with a {100 * CONFIDENCE:g} % bootstrap interval that resamples whole rows "
    f"(methods x norms), or lines over the learning rate where there are fewer than {FEWEST_GROUPS} rows, or cells; "
    "fewer have none. Many intervals are shown: of twenty correlations that are zero, one looks as if it were not."
)
