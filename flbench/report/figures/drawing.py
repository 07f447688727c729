"""A figure before it is written, the kinds of figures, and how figures become files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flbench.discovery import Entries
from flbench.report.board import Section
from flbench.report.tables import Table
from flbench.report.wording import in_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure


#: The formats of figures by suffix, each with the metadata that would differ between equal figures.
FORMATS: Mapping[str, Mapping[str, None]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}


@dataclass(frozen=True)
class Drawing:
    """A figure before it is written."""

    name: str  # of its files, without an ending
    caption: str  # what it shows
    figure: Figure
    place: tuple[str, str] | None = None  # the data set and model it belongs to, if any
    tight: bool = False  # whether it is cut to what is drawn, for figures without a layout of their own


#: Draws a leaderboard's figures of one kind; none where the runs do not support it.
Draw = Callable[..., Iterator[Drawing]]


@dataclass(frozen=True)
class FigureKind:
    """A kind of figure.

    Attributes:
        name: in one word.
        shows: what it shows.
        draw: draws them from a leaderboard.
        requires: what runs must have to support it; empty if it does not say.
        order: position among the figures of a section, ascending.
        reads_data: whether ``draw`` takes the folder of the data sets as its second argument.
        on_first_page: whether the first figure of this kind is one of the few on the first page.
    """

    name: str
    shows: str
    draw: Draw
    requires: str
    order: int = 100
    reads_data: bool = False
    on_first_page: bool = False


class Figures(Entries[FigureKind]):
    """The kinds of figures that belong to no paper: those of this folder, of other packages and of plug-in files."""

    def register(
        self,
        name: str,
        shows: str,
        *,
        requires: str = "",
        order: int = 100,
        reads_data: bool = False,
        on_first_page: bool = False,
    ) -> Callable[[Draw], Draw]:
        """Register the decorated function as what draws a kind of figure; the arguments are those of ``FigureKind``.

        Returns:
            The decorator. It raises InvalidComponent for a name that is taken.
        """

        def enter(draw: Draw) -> Draw:
            kind = FigureKind(name, shows, draw, requires, order, reads_data, on_first_page)
            self.add(name, kind, draw.__module__)
            return draw

        return enter


#: Loaded on first use.
FIGURES = Figures("figure", "flbench.report.figures", "flbench.figures")


def save(drawing: Drawing, directory: Path) -> list[Path]:
    """Write a drawing as SVG and PNG; the same runs give the same bytes."""
    # with_suffix would take the digits of "lr-0.1" for a suffix.
    paths = [directory / f"{drawing.name}.{suffix}" for suffix in ("svg", "png")]
    for path in paths:
        save_as(drawing, path)
    return paths


def save_as(drawing: Drawing, path: Path) -> None:
    """Write a drawing to one file in the format of its suffix, one of ``FORMATS``."""
    box = "tight" if drawing.tight else None
    drawing.figure.savefig(path, dpi=160, bbox_inches=box, metadata=FORMATS[path.suffix.lower()])
    if path.suffix.lower() == ".svg":
        path.write_text(_with_numbered_ids(path.read_text(encoding="utf-8")), encoding="utf-8")


def _with_numbered_ids(svg: str) -> str:
    """Return a picture with ids by number in place of Matplotlib's digests.

    Those are of all bits of coordinates, of which the last ones depend on the processor, but only six digits are drawn.
    """
    numbers: dict[str, int] = {}

    def numbered(found: re.Match[str]) -> str:
        return f"{found[1]}{numbers.setdefault(found[2], len(numbers) + 1)}"

    return re.sub(r'((?:\bid="|href="#|url\(#)\w*?)([0-9a-f]{10})(?=[")])', numbered, svg)


def file_name(kind: str, *titles: str) -> str:
    """Return a file's name from what a figure shows, in letters, digits, points and dashes."""
    return "-".join(re.findall(r"[A-Za-z0-9.]+", " ".join([kind, *titles])))


def table_file_name(kind: str, section: Section, table: Table) -> str:
    """Return the name for the figure of a table: with its first column where several tables have its title."""
    alike = sum(one.title == table.title for one in section.details) > 1
    return file_name(kind, section.title, table.short_title, *(at.label for at in table.cols[0] if alike))


def titles_of(section: Section, table: Table) -> str:
    """Return the titles of a section, in words, and of one of its tables."""
    return ", ".join(filter(None, [section.words, in_words(table.title)]))
