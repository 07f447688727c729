"""NIID-Bench's published numbers beside ours: whether they agree, given the spread of three seeds on both sides."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flbench.config import Training
from flbench.metric_specs import value_of
from flbench.papers.niid_bench.published import (
    FREE,
    MUS,
    SETTINGS,
    Configuration,
    PublishedRow,
    configuration_of,
    published_rows,
)
from flbench.papers.published_numbers import (
    HEADS,
    WIDEST,
    Comparison,
    Judgement,
    judgements,
    other_content,
    tally,
    without_comparison,
)
from flbench.report.blocks import Block, Entry, Grid, Heading, Items, Paragraph, words
from flbench.report.cells import Cell, cells_of, rows_of
from flbench.report.runs import Collection, Run
from flbench.report.stats import FEWEST, welch_half_width
from flbench.report.supplement import Place, Supplement

#: What is compared.
METRIC = "acc_global"

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


def at_best_round(run: Run, collection: Collection) -> Run:
    """Return a run with the record of its best round, as published, also where it diverged after that."""
    scored = [
        (value, record)
        for record in collection.records(run)
        if (value := value_of(record, METRIC)) is not None and math.isfinite(value)
    ]
    return replace(run, state="done", record=max(scored, key=lambda pair: pair[0])[1]) if scored else run


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
    """Return the verdict on a published number, and why.

    The unit is a seed, and the quantity the difference of two means over seeds, with its 95 % interval by Welch's t.
    ``does not hold``: the interval excludes zero. ``holds``: it contains zero, and reaches at most ``WIDEST`` points to
    either side. Everything else is ``inconclusive``. Spreads are not pooled: published ones are 0 to 41 points.
    """
    if cell is None:
        return Judgement("not run")
    other = other_content(cell.experiment, cell.fingerprint, cell.samples) or _skipped(cell) or other_method
    if judgement := without_comparison(cell, row.rounds, other):
        return judgement
    if len(cell.values) < FEWEST:
        return Judgement("inconclusive", f"fewer than {FEWEST} seeds have no interval")
    difference, half_width = interval(row, cell)
    diverged = sum(run.result is not None and run.result.status == "diverged" for run in cell.runs)
    why = f"± {half_width:.2f}" + (f", {diverged} of {len(cell.runs)} diverged" if diverged else "")
    if abs(difference) > half_width:
        return Judgement("does not hold", why)
    return Judgement("holds" if half_width <= WIDEST else "inconclusive", why)


def interval(row: PublishedRow, cell: Cell) -> tuple[float, float]:
    """Return ours less the published mean, and the half-width of its 95 % interval, in points.

    The published seeds share one partition, and each of ours has its own: where partitions differ, the variance of the
    published mean is at most that of one of our seeds larger than its standard deviation says, and we add that much.
    """
    ours = cell.summary
    assert ours is not None and ours.sd is not None
    drawn = 1.0 if row.configuration.partition_is_drawn else 0.0
    parts = [
        ((100 * ours.sd) ** 2 * (1 / ours.n + drawn), ours.n - 1),
        (float(row.sd) ** 2 / row.seeds, row.seeds - 1),
    ]
    # Numbers are compared as printed, to a hundredth of a point.
    return round(100 * ours.mean - row.value, 2), round(welch_half_width(parts), 2)


def _skipped(cell: Cell) -> str:
    """Why the best round of a cell's runs may have been missed: not every round was evaluated."""
    evaluated = [run.result.evaluated - {0} for run in cell.runs if run.result]
    if all(len(rounds) == max(rounds, default=0) for rounds in evaluated):
        return ""
    return f"the best of {min(map(len, evaluated))} evaluated rounds"


@dataclass(frozen=True)
class NiidBenchSupplement(Supplement):
    """The comparison with NIID-Bench's numbers."""

    comparisons: tuple[Comparison[PublishedRow], ...]  # none where no run has NIID-Bench's settings

    @property
    def judgements(self) -> Sequence[Judgement]:
        """A judgement for each published number, by the most decisive of our cells."""
        return judgements(self.comparisons)

    @property
    def source(self) -> str:
        """The paper, where its numbers are compared."""
        return "@li2022niidbench" if self.comparisons else ""

    def opening(self) -> Sequence[Block]:
        """Return the counts of verdicts."""
        found = self.judgements
        return [Paragraph(f"{len(found)} published numbers of NIID-Bench: {tally(found)}.")] if found else []

    def of_section(self, place: Place) -> Sequence[Block]:
        """Return the published numbers of a data set, where the model is NIID-Bench's."""
        everything = [one for one in self.comparisons if one.row.configuration.place == place]
        shown = [one for one in everything if one.cell is not None]
        if not shown:
            return []
        blocks: list[Block] = [Heading(3, "NIID-Bench's published numbers")]
        total, listed = (len({id(one.row) for one in some}) for some in (everything, shown))
        if listed < total:
            blocks.append(Paragraph(f"{total - listed} of {total} published numbers were not requested."))
        heads = ("published as", "partition", "ours")
        blocks.append(Grid((*heads, *HEADS), tuple(map(_row, shown)), len(heads), remarks=1))
        notes = {
            one.row.note: f"{one.row.label}, {one.row.configuration.partition}: {one.row.note}"
            for one in shown
            if one.row.note
        }
        return [*blocks, Items(tuple(notes.values()))] if notes else blocks

    def reading(self) -> Sequence[str]:
        """Return what the numbers and the verdicts mean."""
        if not self.comparisons:
            return []
        mus = ", ".join(f"{mu:g}" for mu in MUS)
        return [
            "NIID-Bench's published numbers: accuracy on the whole test set in percent, of the best of "
            f"{SETTINGS['rounds']} rounds, as published by the reproduction of Li et al. 2022 (arXiv 2102.02079) in "
            "Flower's `baselines/niid_bench` and ours; there mean ± standard deviation of 3 seeds, ours mean ± "
            "half-width of its 95 % interval. Here as there, a run that diverged counts with its best round before, "
            f"and FedProx is the best of mu {mus}, chosen by these means. SCAFFOLD is `variant: {SCAFFOLD}` there. "
            "In brackets: the half-width of the 95 % interval of the difference of the two means (Welch; the unit is a "
            "seed). The published seeds share one partition; where partitions differ, the interval allows for that by "
            "the variance of one more of our seeds. *does not hold*: the interval excludes zero; *holds*: it contains "
            f"zero and its half-width is at most {WIDEST:g} points; else *inconclusive*."
        ]

    def lines(self) -> Sequence[str]:
        """Return the counts of verdicts."""
        return [f"NIID-Bench's numbers: {tally(self.judgements)}"] if self.comparisons else []

    def fields(self) -> Mapping[str, Any]:
        """Return ``niid_bench``: one object a published number and cell of ours; nothing without runs."""
        found = [
            {"label": one.row.label, **one.row.configuration._asdict(), **one.fields(), "note": one.row.note}
            for one in self.comparisons
        ]
        return {"niid_bench": found} if found else {}


def _row(one: Comparison[PublishedRow]) -> tuple[Entry, ...]:
    method: Any = getattr(one.cell.experiment, "method", None) if one.cell else None
    ours = method.label(FREE.get(method.name, ())) if method else ""
    return (*words(one.row.label, one.row.configuration.partition, ours), *one.entries())
