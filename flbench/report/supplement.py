"""What a paper adds to the document of one leaderboard."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from flbench.report.blocks import Block, Figure
from flbench.report.cells import Cell
from flbench.report.claims import Claim

#: The names of a data set and a model.
Place = tuple[str, str]


class Supplement:
    """Base class of what a paper adds to one leaderboard; a paper overrides the parts that it has."""

    @property
    def figure_kinds(self) -> Collection[str]:
        """Kinds of figures that ``chapter`` shows; the others stand at the end of a section."""
        return ()

    @property
    def source(self) -> str:
        """The paper, as in a component, where the document compares its numbers or claims; else empty."""
        return ""

    def opening(self) -> Sequence[Block]:
        """Return blocks among the answers of the first page."""
        return ()

    def claims(self) -> Sequence[tuple[str, Claim]]:
        """Return claims for the first page, each with the title of the section that it is about."""
        return ()

    def beside(self, cell: Cell) -> str:
        """Return a line below a cell of the first page; empty for none."""
        return ""

    def of_section(self, place: Place) -> Sequence[Block]:
        """Return the blocks at the end of the last section on a data set and model."""
        return ()

    def sections(self, shown: Collection[Place]) -> Sequence[Block]:
        """Return sections of the data sets and models that are not among ``shown``."""
        return ()

    def chapter(self, pictures: Mapping[Place, Sequence[Figure]]) -> Sequence[Block]:
        """Return a chapter after the sections, with the pictures of ``figure_kinds``."""
        return ()

    def reading(self) -> Sequence[str]:
        """Return items of the section "How to read this"."""
        return ()

    def lines(self) -> Sequence[str]:
        """Return lines for a terminal."""
        return ()

    def fields(self) -> Mapping[str, Any]:
        """Return fields of the JSON form."""
        return {}
