"""Reports as files: a file is written in one step, and replaced only by a report with the same title."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import unescape
from pathlib import Path

from flbench.errors import UserError
from flbench.report.board import Leaderboard
from flbench.report.leaderboard import build
from flbench.report.page.document import document, documents
from flbench.report.paper import Paper
from flbench.report.parts import options_of, parts_of
from flbench.report.write.latex import comment
from flbench.report.write.markdown import to_markdown
from flbench.run_sources import StoreSource
from flbench.store import Store, files
from flbench.sweeps import Sweep


def write_leaderboard(
    store: Store, sweeps: Sequence[Sweep], path: Path, papers: Sequence[Paper], arguments: Sequence[str] = ()
) -> Leaderboard:
    """Return the leaderboard of some sweeps from ``store``, after writing it to ``path`` as Markdown.

    ``arguments`` are options of the command that makes it again (``flbench report``).
    """
    board = build(parts_of(StoreSource(store), sweeps), options_of(sweeps, arguments), papers)
    for file, text in written(board, path, None).items():
        write_text(file, text)
    return board


def targets(board: Leaderboard, out: Path, details: Path | None) -> Iterable[Path]:
    """Return the paths of the files that ``written`` returns, which do not depend on pictures."""
    return (out,) if details is None else documents(board, out, details)


def written(board: Leaderboard, out: Path, details: Path | None) -> dict[Path, str]:
    """Return the Markdown files of a report: one, or with a folder for details a first page and their pages."""
    files = {out: document(board)} if details is None else documents(board, out, details)
    return {path: to_markdown(blocks, path.parent if board.pictures else None) for path, blocks in files.items()}


def check_replaceable(
    path: Path | None, title: str, fix: str = "name another file, or replace it with --force"
) -> None:
    """Raise UserError for an existing file that is not an earlier report, or part of one, with the same title."""
    if path is None or not path.is_file():
        return
    known = path.read_text(encoding="utf-8", errors="replace")
    page = re.search(r'<meta name="generator" content="flbench report: (.*)">', known)
    part = re.search(r"^Part of \[(.*?)\]\(", known, re.MULTILINE)
    head = re.match("% flbench report: (.*)\n", known)
    page_title = unescape(page[1]) if page else part[1] if part else head[1] if head else None
    # A document ends with its command; the first page of one with details links to the page that does.
    command, details = r"\n```sh\nflbench (--plugin .*)?report\b", r"\(\[provenance\]\(.*provenance\.md\)\)"
    text = re.search(f"{command}|{details}", known)
    text_title = known.partition("\n")[0].removeprefix("# ") if text else None
    if title not in (page_title, text_title) and not known.startswith(_title_comment(title)):
        found = f"a report on {page_title or text_title}" if page_title or text_title else "no report"
        raise UserError(f"{path} is {found}, and this one is on {title}: {fix}")


def _title_comment(title: str) -> str:
    return comment(f"flbench report: {title}")


def write_commented(board: Leaderboard, path: Path, text: str, needs: str = "") -> None:
    """Write a file of LaTeX or BibTeX below comments: the title of the report, its command, what the text needs."""
    lines = filter(None, [board.options.command, needs])
    write_text(path, f"{_title_comment(board.options.title)}{''.join(map(comment, lines))}\n{text}")


def write_text(path: Path, text: str) -> None:
    """Write a file in one step, so that no reader sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace(path, text.encode(), sync=False)
