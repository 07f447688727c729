"""A leaderboard as data: sections with tables, chapters, pictures. Nothing here knows a format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from flbench.report.claims import Chapter
from flbench.report.planned import Planned
from flbench.report.provenance import Provenance
from flbench.report.runs import Collection
from flbench.report.summary import Overall
from flbench.report.supplement import Supplement
from flbench.report.tables import Table
from flbench.report.tuning import Budget, Range, Rows
from flbench.sweeps.layout import Layout

S = TypeVar("S", bound=Supplement)


@dataclass(frozen=True)
class Options:
    """Title and origin of the document; ``specs`` are names and hashes of sweeps.

    ``opening`` is Markdown of people that begins the first page: it answers, and planned comparisons are folded.
    """

    title: str = "flbench leaderboard"
    specs: tuple[tuple[str, str], ...] = ()
    command: str = "flbench report"
    opening: str = ""


@dataclass(frozen=True)
class Section:
    """One data set and model, with the report options of some sweeps."""

    title: str  # data set and model, and the sweeps if others have other report options
    name: str  # the shortest that no other section has: the data set, with its model, or with the sweeps
    words: str  # data set and model in words, the model's settings where another section differs in them alone
    place: tuple[str, str]  # the names of data set and model
    layout: Layout  # the report options of the sweeps
    constants: str  # the settings that all cells share
    tables: tuple[Table, ...]  # every cell
    tuned: tuple[Table, ...]  # the cells of the chosen hyperparameters, where some vary
    chosen: tuple[str, ...]  # the hyperparameters that were chosen
    own_shard: tuple[Table, ...]  # methods that keep parameters on the clients, on the clients' own data
    details: tuple[Table, ...]  # the tuned tables, or all of a kind where nothing was tuned, with comparisons and costs
    planned: tuple[Planned, ...]  # the planned comparisons, of the same tables
    budgets: tuple[Rows[Budget], ...]  # what fewer tuned settings give
    ranges: tuple[Rows[Range], ...]  # the learning rates with which each row works
    fingerprints: tuple[str, ...]  # versions of the data

    @property
    def gains(self) -> list[Planned]:
        """The planned comparisons of the metric: how far rows get."""
        return [one for one in self.planned if one.pair.measure == "far"]

    @property
    def at_edge(self) -> int:
        """The number of tuned cells whose setting is at the edge of the grid."""
        return sum(cell.at_edge for table in self.tuned for cell in table.cells.values())

    @property
    def lost(self) -> int:
        """The number of tuned cells in which the search dropped each setting or a seed of it diverged."""
        return sum(cell.lost for table in self.tuned for cell in table.cells.values())

    @property
    def choices(self) -> int:
        """The number of tuned cells."""
        return sum(len(table.cells) for table in self.tuned)


@dataclass(frozen=True)
class Picture:
    """A figure that was drawn for the leaderboard."""

    kind: str  # name of its kind
    caption: str  # what it shows
    svg: Path  # its file; the PNG has the same name
    place: tuple[str, str] | None = None  # the data set and model it belongs to, if any
    on_first_page: bool = False  # whether its kind is for the first page


@dataclass(frozen=True)
class Leaderboard:
    """A report: its sections, chapters and pictures, and where the numbers come from."""

    options: Options  # title and origin
    sections: tuple[Section, ...]  # data sets and models
    provenance: Provenance  # of all runs
    unfinished: Mapping[str, int]  # number of runs without a value by reason
    collection: Collection
    overall: tuple[Overall, ...] = ()  # the first table, or one a section
    chapters: tuple[Chapter, ...] = ()
    supplements: tuple[Supplement, ...] = ()  # what papers add
    pictures: tuple[Picture, ...] = ()

    def supplement(self, kind: type[S]) -> S | None:
        """Return the supplement of a class; None where there is none."""
        return next((one for one in self.supplements if isinstance(one, kind)), None)
