"""A leaderboard as data: sections with tables, chapters, pictures. Nothing here knows a format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from flbench.report.claims import Chapter
from flbench.report.costs import Costs
from flbench.report.lr_range import Ranges
from flbench.report.provenance import Provenance
from flbench.report.runs import Collection
from flbench.report.stats import Contrast
from flbench.report.summary import Overall
from flbench.report.supplement import Supplement
from flbench.report.tables import Layout, Position, Table
from flbench.report.ticks import Tick

S = TypeVar("S", bound=Supplement)


@dataclass(frozen=True)
class Options:
    """Title and origin of the document; ``specs`` are names and hashes of sweeps."""

    title: str = "flbench leaderboard"
    specs: tuple[tuple[str, str], ...] = ()
    command: str = "flbench report"


@dataclass(frozen=True)
class Details:
    """A table with comparisons and costs of its cells.

    Attributes:
        baseline: the row that the others are compared with, if there is one.
        to_baseline: complete cells minus the baseline of their column.
        costs: of every cell.
    """

    table: Table
    baseline: tuple[Tick, ...] | None
    to_baseline: Mapping[Position, Contrast]
    costs: Mapping[Position, Costs]


@dataclass(frozen=True)
class Section:
    """One data set and model, with the report options of some sweeps.

    Attributes:
        title: data set and model, and the sweeps if others have other report options.
        place: the names of data set and model.
        layout: the report options of the sweeps.
        constants: the settings that all cells share.
        tables: every cell.
        tuned: the cells of the chosen hyperparameters, where some vary.
        chosen: the hyperparameters that were chosen.
        own_shard: methods that keep parameters on the clients, on the clients' own data.
        details: of the tuned tables, or of all where nothing was tuned.
        ranges: the learning rates with which each row works.
        fingerprints: versions of the data.
    """

    title: str
    place: tuple[str, str]
    layout: Layout
    constants: str
    tables: tuple[Table, ...]
    tuned: tuple[Table, ...]
    chosen: tuple[str, ...]
    own_shard: tuple[Table, ...]
    details: tuple[Details, ...]
    ranges: tuple[Ranges, ...]
    fingerprints: tuple[str, ...]


@dataclass(frozen=True)
class Picture:
    """A figure that was drawn for the leaderboard.

    Attributes:
        kind: name of its kind.
        caption: what it shows.
        svg: its file; the PNG has the same name.
        place: the data set and model it belongs to, if any.
        link: the path from the leaderboard to the file; empty for no link.
    """

    kind: str
    caption: str
    svg: Path
    place: tuple[str, str] | None = None
    link: str = ""


@dataclass(frozen=True)
class Leaderboard:
    """A leaderboard.

    Attributes:
        options: title and origin.
        sections: data sets and models.
        provenance: of all runs.
        unfinished: number of runs without a value by reason.
        collection: all runs.
        overall: the first table, or one a section.
        chapters: studies.
        supplements: what papers add.
        pictures: figures.
    """

    options: Options
    sections: tuple[Section, ...]
    provenance: Provenance
    unfinished: Mapping[str, int]
    collection: Collection
    overall: tuple[Overall, ...] = ()
    chapters: tuple[Chapter, ...] = ()
    supplements: tuple[Supplement, ...] = ()
    pictures: tuple[Picture, ...] = ()

    def supplement(self, kind: type[S]) -> S | None:
        """Return the supplement of a class; None where there is none."""
        return next((one for one in self.supplements if isinstance(one, kind)), None)

    def all_tables(self) -> list[Table]:
        """Return every table in reading order."""
        return [table for section in self.sections for table in (*section.tables, *section.own_shard)]
