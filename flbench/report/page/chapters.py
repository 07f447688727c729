"""Chapters about studies as blocks: what was done, the verdicts, the pictures, the tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flbench.report.blocks import Block, Entry, Figure, Fold, Grid, Heading, Paragraph
from flbench.report.claims import Chapter, Claim, unfinished


def chapter_blocks(chapter: Chapter, pictures: Sequence[Figure]) -> Iterator[Block]:
    """Yield a chapter; its pictures are visible, its tables folded."""
    yield Heading(2, chapter.title)
    if chapter.introduction:
        yield Paragraph(chapter.introduction)
    if gap := unfinished(chapter.runs):
        yield Paragraph(f"**Incomplete:** {gap} of {len(chapter.runs)} runs have no value.", warning=True)
    if chapter.claims:
        yield claims_grid(chapter.claims)
    yield from pictures
    if chapter.blocks:
        yield Fold("The measurements", chapter.blocks)


def claims_grid(claims: Sequence[Claim]) -> Grid:
    """Return a table of claims with their sources, verdicts and evidence."""
    rows = [
        (Entry(claim.text, (claim.source,)), Entry(claim.verdict, bold=True), Entry(claim.evidence)) for claim in claims
    ]
    return Grid(("claim", "verdict", "our measurement"), tuple(rows), names=3)
