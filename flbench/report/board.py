"""What a leaderboard says, as data: sections with tables, chapters, pictures; in no format yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from flbench.report.claims import Chapter
from flbench.report.costs import Costs
from flbench.report.layout import Layout
from flbench.report.lr_range import Ranges
from flbench.report.paired_tests import Contrast
from flbench.report.provenance import Provenance
from flbench.report.runs import Collection
from flbench.report.summary import Overall
from flbench.report.supplement import Supplement
from flbench.report.tables import Position, Table
from flbench.report.ticks import Tick

S = TypeVar("S", bound=Supplement)


@dataclass(frozen=True)
class Options:
    """What the document as a whole says, and where it came from."""

    title: str = "flbench leaderboard"
    specs: tuple[tuple[str, str], ...] = ()  # (name, hash)
    command: str = "flbench report"


@dataclass(frozen=True)
class Details:
    """What is known of a table's cells besides their means.

    Attributes:
        baseline: the row that the others are compared with, where there is one.
        to_baseline: complete cells less the baseline of their column.
        costs: of every cell.
    """

    table: Table
    baseline: tuple[Tick, ...] | None
    to_baseline: Mapping[Position, Contrast]
    costs: Mapping[Position, Costs]


@dataclass(frozen=True)
class Section:
    """One data set and model, laid out as some sweeps ask for.

    Attributes:
        title: names the data set and model, and the sweeps where others are laid out in another way.
        place: the names of data set and model.
        layout: the report options of the sweeps.
        constants: the settings that are the same everywhere.
        tables: every cell.
        tuned: the cells of the chosen hyperparameters, where some vary.
        chosen: which hyperparameters were chosen.
        own_shard: methods that keep parameters on the clients, on the clients' own data.
        details: of the tables that count: the tuned ones, or where nothing was tuned all.
        ranges: in which learning rates each row works.
        fingerprints: of the data.
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
        kind: what it shows, in one word.
        caption: what it shows.
        svg: where it lies; the same with ``.png`` beside it.
        place: the data set and model it belongs to, if any.
        link: the file as seen from the leaderboard; empty where it is not to be linked.
    """

    kind: str
    caption: str
    svg: Path
    place: tuple[str, str] | None = None
    link: str = ""


@dataclass(frozen=True)
class Leaderboard:
    """Everything that a leaderboard says, before it is written down."""

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
        """Return what a paper adds, by the class of its supplement; None where there is none."""
        return next((one for one in self.supplements if isinstance(one, kind)), None)

    def all_tables(self) -> list[Table]:
        """Every table, in reading order."""
        return [table for section in self.sections for table in (*section.tables, *section.own_shard)]
