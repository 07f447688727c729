"""NIID-Bench's published numbers beside ours: whether they agree, given the spread of three seeds on both sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from flbench.config import Training
from flbench.papers.best_round import METRIC, NumbersSupplement, at_best_round, skipped
from flbench.papers.best_round import judge as judge_means
from flbench.papers.niid_bench.published import (
    FREE,
    MUS,
    SETTINGS,
    Configuration,
    PublishedRow,
    configuration_of,
    published_rows,
)
from flbench.papers.published_numbers import WIDEST, Comparison, Judgement, other_content
from flbench.report.blocks import Entry, words
from flbench.report.cells import Cell, cells_of, rows_of
from flbench.report.runs import Collection, Run
from flbench.report.stats import FEWEST, welch_half_width
from flbench.report.supplement import Place

#: The variant of SCAFFOLD that the numbers were computed with.
SCAFFOLD = "flower"


def compare(collection: Collection) -> tuple[Comparison[PublishedRow], ...]:
    """Compare the runs at NIID-Bench's settings with its numbers of the same data sets, each with our cells of it."""
    found: dict[Configuration, list[Run]] = {}
    for run in collection.runs:
        if isinstance(run.experiment, Training) and (configuration := configuration_of(run.experiment)):
            found.setdefault(configuration, []).append(at_best_round(run, collection))
    datasets = {configuration.dataset for configuration in found}
    return tuple(
        Comparison(row, cell, judge(row, cell, why))
        for row in published_rows()
        if row.configuration.dataset in datasets
        for cell, why in _cells(row.configuration, found.get(row.configuration, ()))
    )


def _cells(configuration: Configuration, runs: Sequence[Run]) -> list[tuple[Cell | None, str]]:
    """Return our cells of a configuration, each with why it is not the published method, if it is not."""
    cells = rows_of(cells_of(runs, METRIC))
    if not cells:
        return [(None, "")]
    if configuration.method == "fedprox":
        return [_tuned(cells)]
    named = [(cell, getattr(_method(cell), "variant", "")) for cell in cells]
    return [
        (cell, "" if variant in ("", SCAFFOLD) else f"variant: {variant}, published is {SCAFFOLD}")
        for cell, variant in sorted(named, key=lambda pair: (pair[1] != SCAFFOLD, pair[1]))
    ]


def _tuned(cells: Sequence[Cell]) -> tuple[Cell, str]:
    """Return the cell of the mu with the best mean, as published, and how many values are missing, if some are."""
    ordered = sorted(cells, key=lambda cell: len(_method(cell).settings()))  # the default first where none has run
    best = max(ordered, key=lambda cell: (cell.complete, len(cell.values), cell.summary.mean if cell.summary else 0.0))
    tried = {_method(cell).mu for cell in cells if cell.complete and cell.rounds == best.rounds} & {*MUS}
    missing = "" if tried == {*MUS} else f"best of {len(tried)} of {len(MUS)} values of mu"
    return best, missing


def _method(cell: Cell) -> Any:
    return getattr(cell.experiment, "method", None)


def judge(row: PublishedRow, cell: Cell | None, other_method: str = "") -> Judgement:
    """Return the verdict on a published number, and why (``best_round.judge``)."""
    other = cell and (other_content(cell.experiment, cell.fingerprint, cell.samples) or skipped(cell) or other_method)
    return judge_means(row, cell, other or "", interval)


def interval(row: PublishedRow, cell: Cell) -> tuple[float, float] | None:
    """Return ours less the published mean, and the half-width of its 95 % interval, in points; None for few seeds.

    The published seeds share one partition, and each of ours has its own: where partitions differ, the variance of the
    published mean is at most that of one of our seeds larger than its standard deviation says, and we add that much.
    """
    ours = cell.summary
    if ours is None or ours.sd is None or ours.n < FEWEST:
        return None
    drawn = 1.0 if row.configuration.partition_is_drawn else 0.0
    parts = [
        ((100 * ours.sd) ** 2 * (1 / ours.n + drawn), ours.n - 1),
        (float(row.sd) ** 2 / row.seeds, row.seeds - 1),
    ]
    # Numbers are compared as printed, to a hundredth of a point.
    return round(100 * ours.mean - row.value, 2), round(welch_half_width(parts), 2)


@dataclass(frozen=True)
class NiidBenchSupplement(NumbersSupplement[PublishedRow]):
    """The comparison with NIID-Bench's numbers."""

    whose: ClassVar[str] = "NIID-Bench"
    key: ClassVar[str] = "niid_bench"
    entry: ClassVar[str] = "li2022niidbench"
    heads: ClassVar[tuple[str, ...]] = ("published as", "partition", "ours")

    def names(self, one: Comparison[PublishedRow]) -> tuple[Entry, ...]:
        method: Any = getattr(one.cell.experiment, "method", None) if one.cell else None
        ours = method.label(FREE.get(method.name, ())) if method else ""
        return words(one.row.label, one.row.configuration.partition, ours)

    def place(self, one: Comparison[PublishedRow]) -> Place:
        return one.row.configuration.place

    def note(self, one: Comparison[PublishedRow]) -> str:
        return f"{one.row.label}, {one.row.configuration.partition}"

    def configuration(self, one: Comparison[PublishedRow]) -> Mapping[str, Any]:
        return one.row.configuration._asdict()

    def explanation(self) -> str:
        mus = ", ".join(f"{mu:g}" for mu in MUS)
        return (
            "NIID-Bench's published numbers: accuracy on the whole test set in percent, of the best of "
            f"{SETTINGS['rounds']} rounds, as published by the reproduction of Li et al. 2022 (arXiv 2102.02079) in "
            "Flower's `baselines/niid_bench` and ours; there mean ± standard deviation of 3 seeds, ours mean ± "
            "half-width of its 95 % interval. Here as there, a run that diverged counts with its best round before, "
            f"and FedProx is the best of mu {mus}, chosen by these means. SCAFFOLD is `variant: {SCAFFOLD}` there. "
            "In brackets: the half-width of the 95 % interval of the difference of the two means (Welch; the unit is a "
            "seed). The published seeds share one partition; where partitions differ, the interval allows for that by "
            "the variance of one more of our seeds. *does not hold*: the interval excludes zero; *holds*: it contains "
            f"zero and its half-width is at most {WIDEST:g} points; else *inconclusive*."
        )
