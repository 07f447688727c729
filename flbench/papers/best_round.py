"""Published means over seeds of the best round, beside ours: their verdicts, and what a report says of them."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

from flbench.metric_specs import Record, value_of
from flbench.papers.published_numbers import (
    HEADS,
    MARKS,
    WIDEST,
    Comparison,
    Judgement,
    PublishedNumber,
    judgements,
    tally,
    without_comparison,
)
from flbench.report.blocks import Block, Entry, Grid, Heading, Items, Paragraph
from flbench.report.cells import Cell
from flbench.report.runs import Collection, Run
from flbench.report.stats import FEWEST
from flbench.report.supplement import Place, Supplement

#: What is compared.
METRIC = "acc_global"

Row = TypeVar("Row", bound=PublishedNumber)


def at_best_round(
    run: Run, collection: Collection, value: Callable[[Record], float | None] = lambda record: value_of(record, METRIC)
) -> Run:
    """Return a run with the record of its best round, as published, also where it diverged after that."""
    scored = [
        (found, record)
        for record in collection.records(run)
        if (found := value(record)) is not None and math.isfinite(found)
    ]
    return replace(run, state="done", record=max(scored, key=lambda pair: pair[0])[1]) if scored else run


def skipped(cell: Cell) -> str:
    """Return why the best round of a cell's runs may have been missed: not every round was evaluated."""
    evaluated = [run.result.evaluated - {0} for run in cell.runs if run.result]
    if all(len(rounds) == max(rounds, default=0) for rounds in evaluated):
        return ""
    return f"the best of {min(map(len, evaluated))} evaluated rounds"


def judge(
    row: Row, cell: Cell | None, other: str, interval: Callable[[Row, Cell], tuple[float, float] | None]
) -> Judgement:
    """Return the verdict on a published number, and why.

    The unit is a seed, and the quantity the difference of two means over seeds, with its 95 % interval by Welch's t.
    ``does not hold``: the interval excludes zero. ``holds``: it contains zero, and reaches at most ``WIDEST`` points to
    either side. Everything else is ``inconclusive``. Spreads are not pooled: published ones are 0 to 41 points.

    Args:
        row: the number.
        cell: ours; None: there is none.
        other: why it is not of the published data or method, if it is not.
        interval: returns ours less the published mean, and the half-width of its interval, in points; None: too few
            seeds for one.
    """
    if cell is None:
        return Judgement("not run")
    if judgement := without_comparison(cell, row.rounds, other):
        return judgement
    if (found := interval(row, cell)) is None:
        return Judgement("inconclusive", f"fewer than {FEWEST} seeds have no interval")
    difference, half_width = found
    diverged = sum(run.result is not None and run.result.status == "diverged" for run in cell.runs)
    why = f"± {half_width:.2f}" + (f", {diverged} of {len(cell.runs)} diverged" if diverged else "")
    if abs(difference) > half_width:
        return Judgement("does not hold", why)
    return Judgement("holds" if half_width <= WIDEST else "inconclusive", why)


@dataclass(frozen=True)
class NumbersSupplement(Supplement, Generic[Row]):
    """The comparison with a paper's numbers; none where no run has its settings."""

    comparisons: tuple[Comparison[Row], ...]

    #: The paper's name, its key in JSON, and its entry of references.bib.
    whose: ClassVar[str]
    key: ClassVar[str]
    entry: ClassVar[str]
    #: The heads of the columns in front of the numbers.
    heads: ClassVar[tuple[str, ...]]

    @abstractmethod
    def names(self, one: Comparison[Row]) -> tuple[Entry, ...]:
        """Return the entries of the columns in front of the numbers."""

    @abstractmethod
    def place(self, one: Comparison[Row]) -> Place:
        """Return the data set and the model of a number."""

    @abstractmethod
    def note(self, one: Comparison[Row]) -> str:
        """Return what a published number is called in front of its note."""

    @abstractmethod
    def explanation(self) -> str:
        """Return what the numbers and the verdicts mean."""

    @abstractmethod
    def configuration(self, one: Comparison[Row]) -> Mapping[str, Any]:
        """Return the JSON form of what differs between the numbers."""

    @property
    def judgements(self) -> Sequence[Judgement]:
        """A judgement for each published number, by the most decisive of our cells."""
        return judgements(self.comparisons)

    @property
    def source(self) -> str:
        """The paper, where its numbers are compared."""
        return f"@{self.entry}" if self.comparisons else ""

    def opening(self) -> Sequence[Block]:
        """Return the counts of verdicts."""
        found = self.judgements
        return [Paragraph(f"{len(found)} published numbers of {self.whose}: {tally(found)}.")] if found else []

    def of_section(self, place: Place) -> Sequence[Block]:
        """Return the published numbers of a data set and model."""
        everything = [one for one in self.comparisons if self.place(one) == place]
        shown = [one for one in everything if one.cell is not None]
        if not shown:
            return []
        blocks: list[Block] = [Heading(3, f"{self.whose}'s published numbers")]
        total, listed = (len({id(one.row) for one in some}) for some in (everything, shown))
        if listed < total:
            blocks.append(Paragraph(f"{total - listed} of {total} published numbers were not requested."))
        rows = tuple((*self.names(one), *one.entries()) for one in shown)
        blocks.append(Grid((*self.heads, *HEADS), rows, len(self.heads), remarks=1, marks=MARKS))
        notes = {one.row.note: f"{self.note(one)}: {one.row.note}" for one in shown if one.row.note}
        return [*blocks, Items(tuple(notes.values()))] if notes else blocks

    def reading(self) -> Sequence[str]:
        """Return what the numbers and the verdicts mean."""
        return [self.explanation()] if self.comparisons else []

    def lines(self) -> Sequence[str]:
        """Return the counts of verdicts."""
        return [f"{self.whose}'s numbers: {tally(self.judgements)}"] if self.comparisons else []

    def fields(self) -> Mapping[str, Any]:
        """Return one object a published number and cell of ours, under ``key``; nothing without runs."""
        found = [
            {"label": one.row.label, **self.configuration(one), **one.fields(), "note": one.row.note}
            for one in self.comparisons
        ]
        return {self.key: found} if found else {}
