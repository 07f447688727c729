"""What the label-skew paper adds to a leaderboard: its published numbers beside ours, and the chapter "Why"."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flbench.papers.label_skew import page_mechanisms, page_published
from flbench.papers.label_skew.mechanisms import KINDS, Synthesis
from flbench.papers.label_skew.verdicts import Published
from flbench.report.blocks import Block, Figure, Paragraph
from flbench.report.supplement import Place, Supplement


@dataclass(frozen=True)
class LabelSkewSupplement(Supplement):
    """The comparison with the label-skew paper.

    Attributes:
        published: its numbers beside ours; None where it has none for the data sets and models of the runs.
        why: accuracy beside what probes measured, a synthesis a section; None where the user did not ask for it.
    """

    published: Published | None
    why: tuple[Synthesis, ...] | None

    @property
    def figure_kinds(self) -> Collection[str]:
        """The figures of the chapter "Why"."""
        return () if self.why is None else KINDS

    def opening(self) -> Sequence[Block]:
        """Return the counts of verdicts."""
        return [] if self.published is None else [Paragraph(page_published.summary_line(self.published))]

    def of_section(self, place: Place) -> Sequence[Block]:
        """Return the published numbers of a data set and model."""
        return [] if self.published is None else page_published.place(self.published, place)

    def sections(self, shown: Collection[Place]) -> Sequence[Block]:
        """Return the published numbers of data sets and models without a section."""
        return [] if self.published is None else page_published.elsewhere(self.published, shown)

    def chapter(self, pictures: Mapping[Place, Sequence[Figure]]) -> Sequence[Block]:
        """Return the chapter "Why"."""
        return [] if self.why is None else list(page_mechanisms.compose(self.why, pictures))

    def reading(self) -> Sequence[str]:
        """Return what the verdicts mean."""
        return [] if self.published is None else [page_published.reading(self.published)]

    def lines(self) -> Sequence[str]:
        """Return the answers of the chapter "Why" and the counts of verdicts."""
        answers = [] if self.why is None else page_mechanisms.lines(self.why)
        if self.published is None:
            return answers
        return [*answers, f"published numbers: {page_published.summary(self.published)}"]

    def fields(self) -> Mapping[str, Any]:
        """Return ``why`` where the user asked for it, and ``published``."""
        why = {} if self.why is None else {"why": page_mechanisms.plain(self.why)}
        return {**why, "published": page_published.plain(self.published) if self.published else None}
