"""What NIID-Bench adds to a leaderboard: its published numbers beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flbench.papers.niid_bench.claims import SCAFFOLD, Published
from flbench.papers.niid_bench.published import FREE, MUS, SETTINGS, PublishedRow
from flbench.papers.published_numbers import HEADS, WIDEST, Comparison, tally
from flbench.report.blocks import Block, Entry, Grid, Heading, Items, Paragraph, words
from flbench.report.supplement import Place, Supplement


@dataclass(frozen=True)
class NiidBenchSupplement(Supplement):
    """The comparison with NIID-Bench's numbers."""

    published: Published | None  # None where no run has NIID-Bench's settings

    @property
    def source(self) -> str:
        """The paper, where its numbers are compared."""
        return "" if self.published is None else "@li2022niidbench"

    def opening(self) -> Sequence[Block]:
        """Return the counts of verdicts."""
        if self.published is None:
            return []
        judgements = self.published.judgements
        return [Paragraph(f"{len(judgements)} published numbers of NIID-Bench: {tally(judgements)}.")]

    def of_section(self, place: Place) -> Sequence[Block]:
        """Return the published numbers of a data set, where the model is NIID-Bench's."""
        comparisons = self.published.comparisons if self.published else ()
        everything = [one for one in comparisons if one.row.configuration.place == place]
        shown = [one for one in everything if one.cell is not None]
        if not shown:
            return []
        blocks: list[Block] = [Heading(3, "NIID-Bench's published numbers")]
        total, listed = (len({id(one.row) for one in some}) for some in (everything, shown))
        if listed < total:
            blocks.append(Paragraph(f"{total - listed} of {total} published numbers were not requested."))
        heads = ("published as", "partition", "ours")
        blocks.append(Grid((*heads, *HEADS), tuple(map(_row, shown)), len(heads), remarks=1))
        notes = {one.row.note: f"{_title(one)}: {one.row.note}" for one in shown if one.row.note}
        return [*blocks, Items(tuple(notes.values()))] if notes else blocks

    def reading(self) -> Sequence[str]:
        """Return what the numbers and the verdicts mean."""
        if self.published is None:
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
        return [] if self.published is None else [f"NIID-Bench's numbers: {tally(self.published.judgements)}"]

    def fields(self) -> Mapping[str, Any]:
        """Return ``niid_bench``: one object a published number and cell of ours; nothing without runs."""
        if self.published is None:
            return {}
        return {"niid_bench": [_fields(one) for one in self.published.comparisons]}


def _row(one: Comparison[PublishedRow]) -> tuple[Entry, ...]:
    method: Any = getattr(one.cell.experiment, "method", None) if one.cell else None
    ours = method.label(FREE.get(method.name, ())) if method else ""
    return (*words(one.row.label, one.row.configuration.partition, ours), *one.entries())


def _title(one: Comparison[PublishedRow]) -> str:
    return f"{one.row.label}, {one.row.configuration.partition}"


def _fields(one: Comparison[PublishedRow]) -> dict[str, Any]:
    return {"label": one.row.label, **one.row.configuration._asdict(), **one.fields(), "note": one.row.note}
