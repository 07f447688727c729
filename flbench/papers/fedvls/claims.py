"""FedVLS's published numbers beside ours, as accuracies on the test set and as accuracies on the training set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from flbench.config import Training
from flbench.metric_specs import Record, value_of
from flbench.papers.best_round import METRIC, NumbersSupplement, at_best_round, judge, skipped
from flbench.papers.fedvls.published import (
    CONTENT,
    READINGS,
    SETTINGS,
    Configuration,
    PublishedRow,
    configuration_of,
    published_rows,
)
from flbench.papers.published_numbers import WIDEST, Comparison, judgements, tally
from flbench.report.blocks import Block, Entry, Paragraph, words
from flbench.report.cells import Cell, cells_of, rows_of
from flbench.report.runs import Collection, Run
from flbench.report.stats import FEWEST, welch_half_width
from flbench.report.supplement import Place


def compare(collection: Collection) -> tuple[Comparison[PublishedRow], ...]:
    """Compare the runs at FedVLS's settings with its numbers, in both readings; nothing without such runs."""
    found: dict[Configuration, list[Run]] = {}
    for run in collection.runs:
        if isinstance(run.experiment, Training) and (configuration := configuration_of(run.experiment)):
            found.setdefault(configuration, []).append(run)
    if not found:
        return ()
    cells = {
        (configuration, on): rows_of(cells_of([one for run in runs if (one := _read(run, collection, on))], METRIC))
        for configuration, runs in found.items()
        for on in READINGS
    }
    comparisons = []
    for row in published_rows():
        ours: Sequence[Cell | None] = cells.get((row.configuration, row.on)) or [None]
        comparisons += [Comparison(row, cell, judge(row, cell, _other(cell), interval)) for cell in ours]
    return tuple(comparisons)


def _read(run: Run, collection: Collection, on: str) -> Run | None:
    """Return a run with its best accuracy on a set, as ``METRIC``; None where it has not measured that."""
    best = at_best_round(run, collection, lambda record: _accuracy(record, on))
    if best.record is None:
        return best
    value = _accuracy(best.record, on)
    return None if value is None else replace(best, record={**best.record, METRIC: value})


def _accuracy(record: Record, on: str) -> float | None:
    if on == READINGS[0]:
        return value_of(record, METRIC)
    found = record.get("probes", {}).get("training_set", {}).get("acc")
    return None if found is None else float(found)


def _other(cell: Cell | None) -> str:
    """Return why a cell is not of the published data, or may have missed its best round; else empty."""
    if cell is None:
        return ""
    dataset: Any = getattr(cell.experiment, "dataset", None)
    return "not the official images" if dataset.content not in (None, CONTENT) else skipped(cell)


def interval(row: PublishedRow, cell: Cell) -> tuple[float, float] | None:
    """Return ours less the published mean, and the half-width of its 95 % interval, in points; None for few seeds.

    A published number without a standard deviation has that of ours, and fewer than ``FEWEST`` of our seeds have the
    published one. Neither: None.
    """
    ours, published = cell.summary, float(row.sd or 0) ** 2
    if ours is None or (ours.n < FEWEST and not published):
        return None
    own, known = ((100 * ours.sd) ** 2, ours.n - 1) if ours.n >= FEWEST and ours.sd is not None else (0.0, 0)
    if known and published:
        parts = [(own / ours.n, known), (published / row.seeds, row.seeds - 1)]
    else:
        parts = [((own or published) * (1 / ours.n + 1 / row.seeds), known or row.seeds - 1)]
    # Numbers are compared as printed, to a hundredth of a point.
    return round(100 * ours.mean - row.value, 2), round(welch_half_width(parts), 2)


@dataclass(frozen=True)
class FedVlsSupplement(NumbersSupplement[PublishedRow]):
    """The comparison with FedVLS's numbers."""

    whose: ClassVar[str] = "FedVLS"
    key: ClassVar[str] = "fedvls"
    entry: ClassVar[str] = "guo2025fedvls"
    heads: ClassVar[tuple[str, ...]] = ("published as", "partition", "ours on")

    def names(self, one: Comparison[PublishedRow]) -> tuple[Entry, ...]:
        return words(one.row.label, one.row.configuration.partition, one.row.on)

    def place(self, one: Comparison[PublishedRow]) -> Place:
        return one.row.configuration.place

    def note(self, one: Comparison[PublishedRow]) -> str:
        return one.row.label

    def configuration(self, one: Comparison[PublishedRow]) -> Mapping[str, Any]:
        return {**one.row.configuration._asdict(), "on": one.row.on}

    def opening(self) -> Sequence[Block]:
        """Return the counts of verdicts of each reading."""
        return [Paragraph(f"{line}.") for line in self.lines()]

    def lines(self) -> Sequence[str]:
        """Return the counts of verdicts of each reading."""
        found = {on: judgements(one for one in self.comparisons if one.row.on == on) for on in READINGS}
        return [
            f"{len(some)} published numbers of FedVLS, as accuracies on {on}: {tally(some)}"
            for on, some in found.items()
            if some
        ]

    def explanation(self) -> str:
        return (
            f"FedVLS's published numbers: accuracy in percent of the best of {SETTINGS['rounds']} rounds, mean of 3 "
            "seeds there, ours mean ± half-width of its 95 % interval. The paper has accuracies on the test set; its "
            "published code computes those of MNIST on the training set, so each number is compared with ours on both. "
            "In brackets: the half-width of the 95 % interval of the difference of the two means (Welch; the unit is a "
            "seed; a published number without a standard deviation has ours, and fewer than "
            f"{FEWEST} of our seeds have the published one). *does not hold*: the interval excludes "
            f"zero; *holds*: it contains zero and its half-width is at most {WIDEST:g} points; else *inconclusive*."
        )
