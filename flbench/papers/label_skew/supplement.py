"""What the label-skew paper adds to a leaderboard: its published numbers beside ours, and the chapter "Why"."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flbench.papers.label_skew import chapter as why_chapter
from flbench.papers.label_skew import page_published
from flbench.papers.label_skew.chapter import KINDS, Synthesis
from flbench.papers.label_skew.claims_published import Published
from flbench.papers.published_numbers import tally
from flbench.report.blocks import Block, Figure, Heading, Paragraph
from flbench.report.cells import Cell
from flbench.report.claims import Claim
from flbench.report.supplement import Place, Supplement


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
        return page_published.place_blocks(self.published, place, Heading(3, "Published numbers"))

    def sections(self, shown: Collection[Place]) -> Sequence[Block]:
        """Return the published numbers of data sets and models without a section."""
        return [] if self.published is None else page_published.other_places(self.published, shown)

    def chapter(self, pictures: Mapping[Place, Sequence[Figure]]) -> Sequence[Block]:
        """Return the chapter "Why"."""
        return [] if self.why is None else list(why_chapter.blocks(self.why, pictures))

    def reading(self) -> Sequence[str]:
        """Return what the verdicts mean."""
        return [] if self.published is None else [page_published.reading(self.published)]

    def lines(self) -> Sequence[str]:
        """Return the claims of the chapter "Why" and the counts of verdicts."""
        claims = [] if self.why is None else why_chapter.lines(self.why)
        if self.published is None:
            return claims
        return [*claims, f"published numbers: {tally(self.published.judgements)}"]

    def fields(self) -> Mapping[str, Any]:
        """Return ``why`` if requested, and ``published``."""
        why = {} if self.why is None else {"why": why_chapter.fields(self.why)}
        return {**why, "published": page_published.fields(self.published) if self.published else None}
