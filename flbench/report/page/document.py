"""A report as one document, or as a first page and a file of details for each data set, chapter and paper."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from flbench.config import Training
from flbench.errors import UserError
from flbench.literal import literal
from flbench.messages import counted
from flbench.report.blocks import Block, Figure, Heading, Items, Paragraph, anchor, shifted
from flbench.report.board import Leaderboard
from flbench.report.page.first import first_page, pictures_of_first, place_page
from flbench.report.page.reading import provenance, reading
from flbench.report.page.sections import chapter_blocks, place_blocks
from flbench.report.parts import place_of
from flbench.report.supplement import Place

#: Pages with more sections than this begin with links to them.
MOST_SECTIONS = 3


@dataclass(frozen=True)
class Page:
    """Details of one kind; the first block is its title, a heading of level 2."""

    name: str  # of its file, without the ending
    blocks: tuple[Block, ...]
    about: str = ""  # what it has, in a few words

    @property
    def title(self) -> str:
        """The text of its first heading."""
        first = self.blocks[0]
        return first.text if isinstance(first, Heading) else self.name


def document(board: Leaderboard) -> list[Block]:
    """Return a report as one document: the first page, then all details; each picture once."""
    shown = pictures_of_first(board)
    others = tuple(one for one in board.pictures if one not in shown)
    pages = _pages(dataclasses.replace(board, pictures=others))
    links = {page.name: f"#{anchor(page.title)}" for page in pages}
    return [*first_page(board, links), *(block for page in pages for block in page.blocks)]


def documents(board: Leaderboard, out: Path, details: Path) -> dict[Path, list[Block]]:
    """Return a report as the blocks of several files: the first page ``out``, and the details in a folder."""
    pages = _pages(board)
    links = {page.name: _relative(details / f"{page.name}.md", out) for page in pages}
    listed = [f"[{literal(page.title)}]({links[page.name]}){f': {page.about}' if page.about else ''}" for page in pages]
    first = [*first_page(board, links), Heading(2, "Details"), Items(tuple(listed))]
    files = {out: first}
    for page in pages:
        path = details / f"{page.name}.md"
        if path.absolute() == out.absolute():
            raise UserError(f"{out} is one of the pages of details: name another file for the first page")
        back = f"Part of [{literal(board.options.title)}]({_relative(out, path)})"
        reading = "; [how to read this](how-to-read-this.md)" if "how-to-read-this" in links else ""
        title, *rest = (shifted(block, -1) for block in page.blocks)
        files[path] = [title, Paragraph(f"{back}{reading}."), *_contents(rest), *rest]
    return files


def _contents(blocks: Sequence[Block]) -> Iterator[Block]:
    """Yield links to the sections of a long page."""
    titles = [block.text for block in blocks if isinstance(block, Heading) and block.level == 2]
    if len(titles) > MOST_SECTIONS:
        yield Items(tuple(f"[{literal(title)}](#{anchor(title)})" for title in titles))


def _pages(board: Leaderboard) -> list[Page]:
    """Return the details: data sets and models, what papers add, chapters, how to read them, where they come from."""
    runs = Counter(place_of(run.training) for run in board.collection.runs if isinstance(run.experiment, Training))
    places = list(dict.fromkeys(section.place for section in board.sections))
    pages = [
        Page(place_page(place), tuple(place_blocks(board, place)), counted(runs[place], "run")) for place in places
    ]
    for supplement in board.supplements:
        pages += _split(supplement.sections(set(places)))
        pictures: dict[Place, list[Figure]] = {}
        for one in board.pictures:
            if one.kind in supplement.figure_kinds and one.place is not None:
                pictures.setdefault(one.place, []).append(Figure(one.caption, one.svg))
        pages += _split(supplement.chapter(pictures), "accuracy beside what probes measured, and claims on its causes")
    for chapter in board.chapters:
        about = f"{counted(len(chapter.claims), 'claim')}, {counted(len(chapter.runs), 'run')}"
        pages.append(Page(chapter.kind, tuple(chapter_blocks(chapter, board.pictures)), about))
    if board.sections:
        pages += _split(reading(board))
    made = f"{counted(board.provenance.finished, 'finished run')} of {counted(len(board.options.specs), 'sweep')}"
    about = f"{made}: code, packages, data and numerics, and the command that writes these files"
    return [*pages, *_split(provenance(board), about)]


def _split(blocks: Iterable[Block], about: str = "") -> list[Page]:
    """Return a page for each heading of level 2."""
    pages: list[list[Block]] = []
    for block in blocks:
        if isinstance(block, Heading) and block.level == 2:
            pages.append([])
        pages[-1].append(block)
    return [
        Page(anchor(members[0].text), tuple(members), about) for members in pages if isinstance(members[0], Heading)
    ]


def _relative(target: Path, document: Path) -> str:
    return Path(os.path.relpath(target.resolve(), document.resolve().parent)).as_posix()
