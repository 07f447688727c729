"""What a paper adds to the document of one leaderboard."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from flbench.report.blocks import Block, Figure

#: The names of a data set and a model.
Place = tuple[str, str]


class Supplement:
    """Base class of what a paper adds to one leaderboard; a paper overrides the parts that it has."""

    @property
    def figure_kinds(self) -> Collection[str]:
        """Kinds of figures that ``chapter`` shows; the others stand at the end of a section."""
        return ()

    def opening(self) -> Sequence[Block]:
        """Return the blocks below the first table."""
        return ()

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
