"""What the label-skew paper adds to a leaderboard: its published numbers beside ours, and the chapter "Why"."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flbench.messages import format_scalar
from flbench.papers.label_skew import chapter as why_chapter
from flbench.papers.label_skew.chapter import KINDS, Synthesis
from flbench.papers.label_skew.claims_published import Order, Published
from flbench.papers.label_skew.published import Configuration, PublishedRow, remarks
from flbench.papers.published_numbers import HEADS, MARKS, Comparison, tally
from flbench.report.blocks import Block, Entry, Figure, Fold, Grid, Heading, Items, Paragraph, words
from flbench.report.cells import Cell, tick_of
from flbench.report.claims import Claim
from flbench.report.supplement import Place, Supplement

#: Settings that head a column where they differ between the rows of a section.
_SETTINGS: Mapping[str, str] = {
    "partition": "partition",
    "clients": "clients",
    "local_steps": "E",
    "bias": "bias",
    "lr": "lr",
    "batch_size": "batch_size",
}

#: With more numbers than this whose runs cannot decide, only the others are shown unfolded.
MOST_SHORT = 12


@dataclass(frozen=True)
class LabelSkewSupplement(Supplement):
    """The comparison with the label-skew paper."""

    published: Published | None  # None where no run has the settings of one of its numbers
    why: tuple[Synthesis, ...] | None  # one a section; None if not requested

    @property
    def figure_kinds(self) -> Collection[str]:
        """The figures of the chapter "Why"."""
        return () if self.why is None else KINDS

    @property
    def source(self) -> str:
        """The paper, where its numbers or its claims are compared."""
        return "" if self.published is None and self.why is None else "@zhang2024labelskew"

    def opening(self) -> Sequence[Block]:
        """Return the counts of verdicts."""
        if self.published is None:
            return []
        judgements, tested = self.published.judgements, self.published.tested
        sentences = [f"{len(judgements)} published numbers: {tally(judgements)}", *filter(None, [tested])]
        return [Paragraph(" ".join(f"{one}." for one in sentences))]

    def claims(self) -> Sequence[tuple[str, Claim]]:
        """Return the claims of the chapter "Why" and those on training on one class, by section."""
        mechanisms = [(one.title, found.claim) for one in self.why or () for found in one.mechanisms]
        return [*mechanisms, *((one.title, claim) for one in self.why or () for claim in one.claims)]

    def beside(self, cell: Cell) -> str:
        """Return the published number of a cell that ran as long, and whether our interval for it contains it.

        Both are of the last round, which stands above where the cell has a mean over evaluations.
        """
        for one in [] if self.published is None else self.published.comparisons:
            if one.cell is not None and one.cell.unit == cell.unit and one.judgement.prediction:
                where = "outside" if one.judgement.verdict == "does not hold" else "inside"
                return f"published {one.row.text}, {where} {one.judgement.why}"
        return ""

    def of_section(self, place: Place) -> Sequence[Block]:
        """Return the published numbers of a data set and model."""
        if self.published is None:
            return []
        return _published(self.published, place, Heading(3, "Published numbers"))

    def sections(self, shown: Collection[Place]) -> Sequence[Block]:
        """Return the published numbers of data sets and models without a section."""
        if self.published is None:
            return []
        places = dict.fromkeys(one.row.configuration.place for one in self.published.comparisons)
        return [
            block
            for place in places
            if place not in shown
            for block in _published(self.published, place, Heading(2, f"{', '.join(place)}: published"))
        ]

    def chapter(self, pictures: Mapping[Place, Sequence[Figure]]) -> Sequence[Block]:
        """Return the chapter "Why"."""
        return [] if self.why is None else list(why_chapter.blocks(self.why, pictures))

    def reading(self) -> Sequence[str]:
        """Return what the verdicts mean."""
        if self.published is None:
            return []
        points = f"{self.published.widest:g} {'point' if self.published.widest == 1 else 'points'}"
        text = (
            "Published numbers: accuracy in percent as published by Zhang et al. 2024 (arXiv 2308.09565v2) and ours, "
            "the mean over seeds of the simple mean over clients on their own test shards after the last round. "
            "Published numbers are single runs unless they have a standard deviation. In brackets: the 95 % prediction "
            "interval of the published number from our runs, t s sqrt(1/n + 1/n_published) on the logit scale. s is "
            "pooled over the repeated runs, published and ours, of the same data set, model, partition and length, "
            "except those at chance. *does not hold*: the published number lies outside; *holds*: it lies inside, and "
            f"the interval reaches at most {points} to either side; else *inconclusive*: *shorter*: ours ran fewer "
            "rounds, *not comparable*: on other data. Verdicts are not corrected for their number; the count at the top"
            " says how many contradictions chance explains."
        )
        return [text]

    def lines(self) -> Sequence[str]:
        """Return the claims of the chapter "Why" and the counts of verdicts."""
        claims = [] if self.why is None else why_chapter.lines(self.why)
        if self.published is None:
            return claims
        return [*claims, f"published numbers: {tally(self.published.judgements)}"]

    def fields(self) -> Mapping[str, Any]:
        """Return ``why`` if requested, and ``published``."""
        why = {} if self.why is None else {"why": why_chapter.fields(self.why)}
        return {**why, "published": _fields(self.published) if self.published else None}


def _fields(published: Published) -> dict[str, Any]:
    """Return the JSON form: one object a published number and cell of ours, values in percent."""
    orders = []
    for one in published.orders:
        column = one.column._asdict()
        for name in ("method", "norm", "groups"):
            del column[name]
        orders.append({"table": one.table, **column, "rounds": one.rounds, "n": one.n, "tau": one.tau})
    return {
        "tolerance": published.widest,
        "counts": dict(published.counts),
        "rows": [
            {"table": one.row.table, "label": one.row.label, **one.row.configuration._asdict()}
            | {**one.fields(), "remarks": remarks(one.row)}
            for one in published.comparisons
        ],
        "orders": orders,
    }


def _published(published: Published, place: tuple[str, str], heading: Heading) -> list[Block]:
    """Return the numbers of one data set and model, remarks on them, and the order of the methods, if there are any."""
    everything = [one for one in published.comparisons if one.row.configuration.place == place]
    shown = [one for one in everything if published.everything or one.cell is not None]
    if not shown:
        return []
    blocks: list[Block] = [heading]
    total, listed = (len({id(one.row) for one in some}) for some in (everything, shown))
    if listed < total:
        blocks.append(
            Paragraph(
                f"{total - listed} of {total} published numbers were not requested; "
                "`flbench report --published` lists them."
            )
        )
    settings = [name for name in _SETTINGS if len({getattr(one.row.configuration, name) for one in shown}) > 1]
    shared = {name: getattr(shown[0].row.configuration, name) for name in _SETTINGS if name not in settings}
    everywhere = ", ".join(
        str(value) if name == "partition" else f"{_SETTINGS[name]} {format_scalar(value)}"
        for name, value in shared.items()
    )
    heads = ["published as", "table", "ours", *(_SETTINGS[name] for name in settings)]
    rows = [(_row(same, settings), same[0].judgement.obstacle) for same in _merged(shown)]
    numbers = Grid((*heads, *HEADS), tuple(row for row, _ in rows), len(heads), remarks=1, marks=MARKS)
    full = tuple(row for row, obstacle in rows if not obstacle)
    blocks.append(Paragraph(f"Everywhere: {everywhere}."))
    if len(rows) - len(full) > MOST_SHORT:
        blocks += [dataclasses.replace(numbers, rows=full)] if full else []
        blocks.append(Fold(f"All {len(rows)} numbers, also of cells with fewer rounds or other data", (numbers,)))
    else:
        blocks.append(numbers)
    if notes := _remarks(shown):
        blocks.append(Items(tuple(notes)))
    if orders := [one for one in published.orders if one.column.place == place]:
        text = (
            "Whether the order of the methods is the paper's, column by column: Kendall's tau-b over n methods "
            "(1: the same order, -1: the opposite one)."
        )
        blocks += [Paragraph(text), _order_table(orders, settings)]
    return blocks


def _merged(comparisons: Sequence[Comparison[PublishedRow]]) -> list[list[Comparison[PublishedRow]]]:
    """Return comparisons with the same number and cell together: a number may be published in several tables.

    Configurations come in the order of the paper, the numbers of one configuration together.
    """
    first: dict[Configuration, int] = {}
    for one in comparisons:
        first.setdefault(one.row.configuration, len(first))
    merged: dict[tuple[Any, ...], list[Comparison[PublishedRow]]] = {}
    for one in comparisons:
        row = one.row
        merged.setdefault((first[row.configuration], row.text, row.sd, row.seeds, id(one.cell)), []).append(one)
    return sorted(merged.values(), key=lambda same: first[same[0].row.configuration])


def _row(same: Sequence[Comparison[PublishedRow]], settings: Sequence[str]) -> tuple[Entry, ...]:
    one = same[0]
    row, cell = one.row, one.cell
    return (
        *words(
            " / ".join(dict.fromkeys(other.row.label for other in same)),
            ", ".join(dict.fromkeys(other.row.table for other in same)),
            ", ".join(tick_of(cell, axis).label for axis in ("method", "norm")) if cell else _named(row.configuration),
            *(format_scalar(getattr(row.configuration, name)) for name in settings),
        ),
        *one.entries(),
    )


def _remarks(comparisons: Sequence[Comparison[PublishedRow]]) -> list[str]:
    """Each remark once, after the configurations that it concerns; not where it concerns all of them."""
    concerned: dict[str, dict[str, None]] = {}
    for one in comparisons:
        for remark in remarks(one.row):
            concerned.setdefault(remark, {})[_named(one.row.configuration)] = None
    named = {_named(one.row.configuration) for one in comparisons}
    return [remark if len(of) == len(named) > 1 else f"{'; '.join(of)}: {remark}" for remark, of in concerned.items()]


def _named(configuration: Configuration) -> str:
    return f"{configuration.method}, {configuration.norm}"


def _order_table(orders: Sequence[Order], settings: Sequence[str]) -> Grid:
    heads = ["table", *(_SETTINGS[name] for name in settings)]
    rows = tuple(
        (
            *words(one.table, *(format_scalar(getattr(one.column, name)) for name in settings)),
            Entry(f"{one.rounds:,}", order=one.rounds),
            Entry(str(one.n), order=one.n),
            Entry("undefined") if one.tau is None else Entry(f"{one.tau:.2f}", order=one.tau),
        )
        for one in orders
    )
    return Grid((*heads, "rounds", "n", "tau"), rows, len(heads))
