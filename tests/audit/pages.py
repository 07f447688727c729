"""README's answer and leaderboard.md as tables and paragraphs of plain text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

import pytest

from tests.audit.runs import ROOT

#: Names that contain a digit.
NAMES = ("2 / lambda_max", "cifar10 (cifar10_one_step)", "CIFAR-10, one class a client")

#: The page on mechanisms.
WHY = "docs/why.md"

#: Small numbers as pages write them.
WORDS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
WORDS.append("thirteen")


def span(numbers: Iterable[float], digits: int = 1) -> str:
    """Return the least and the largest number: ``1.0 to 3.1``."""
    known = [*numbers]
    return f"{min(known):.{digits}f} to {max(known):.{digits}f}"


def listed(items: Iterable[str | float], digits: int = 0) -> str:
    """Return ``1.0, 2.0 and 3.0``."""
    *most, last = (one if isinstance(one, str) else f"{one:.{digits}f}" for one in items)
    return f"{', '.join(most)} and {last}"


def numbers(entry: str) -> list[float]:
    """Return the number and half-width of a table's entry, bold or not."""
    return [float(number) for number in entry.strip("*").split(" ± ")]


def rounded(*exact: float) -> object:
    """Return what numbers with two digits must equal; means of multiples of 0.01 % may lie between two of them."""
    return pytest.approx([one for one in exact if not math.isnan(one)], rel=0, abs=0.005 + 1e-9)


def readme() -> str:
    """Return README's answer."""
    return (ROOT / "README.md").read_text().split("\n## What you can rely on\n")[0]


def leaderboard() -> str:
    """Return leaderboard.md."""
    return (ROOT / "leaderboard.md").read_text()


def details(name: str) -> str:
    """Return a page of details."""
    return (ROOT / "docs/results" / f"{name}.md").read_text()


def answers() -> str:
    """Return the pages that answer one question each."""
    return "\n".join(path.read_text() for path in sorted(ROOT.glob("docs/answers/*.md")))


def text(title: str) -> str:
    """Return the text of a section of docs/answers, or that of docs/why.md."""
    return plain((ROOT / WHY).read_text() if title == WHY else section(answers(), title))


def tables(page: str) -> list[list[list[str]]]:
    """Return the tables of a page, each a list of rows, the head first."""
    blocks = [block.splitlines() for block in page.split("\n\n") if block.startswith("|")]
    return [
        [[entry.strip() for entry in row.strip("| ").split(" | ")] for row in block if "---" not in row]
        for block in blocks
    ]


def section(page: str, title: str) -> str:
    """Return the section with a title, without it the page."""
    if not title:
        return page
    (start,) = (one for one in re.finditer(r"^(#+) (.+)$", page, re.MULTILINE) if one[2] == title)
    rest = page[start.end() :]
    end = re.search(rf"^#{{1,{len(start[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def planned(page: str) -> dict[tuple[str, str], str]:
    """Return the entries of tables of planned gains by comparison and column; either makes the rows.

    The first head may say among which cells and between which columns all comparisons of the table are.
    """
    found = {}
    for heads, *rows in tables(page):
        if re.search(r"× the rounds|decades<br>", " ".join(rows[0])):
            continue  # how fast and how easily
        for row in rows:
            entries = zip(heads[1:], row[1:], strict=True)
            if heads[0].startswith("comparison"):
                title, between = re.findall(r"^(.*?)(, \S+ minus \S+)?$", row[0])[0]
                name = title + heads[0].removeprefix("comparison") + between
                found |= {(name, column): entry for column, entry in entries}
            elif heads[0] == "column":
                found |= {(comparison, row[0]): entry for comparison, entry in entries}
    return {at: entry for at, entry in found.items() if entry != "–"}


def paragraphs(page: str) -> list[str]:
    """Return the paragraphs and list items outside of tables and code, each on one line, without marks and targets."""
    prose = re.sub(r"^```.*?^```$|</?(?:details|summary)[^>]*>", "", page, flags=re.DOTALL | re.MULTILINE)
    blocks = re.split(r"\n\n|\n(?=- |\d\. )", prose)
    return [plain(block) for block in blocks if block.strip() and not block.startswith("|")]


def plain(text: str) -> str:
    """Return a text on one line without emphasis, marks of quotes and lists, and targets of links."""
    joined = " ".join(re.sub(r"^(> |- |\d\. |#+ )", "", text.strip()).split())
    return re.sub(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^)]*\)", r"\1", joined).replace("*", "")


def unaudited(page: str, sentences: Iterable[str]) -> list[str]:
    """Return the paragraphs that contain a digit outside these sentences, names and code."""
    left = []
    for paragraph in paragraphs(page):
        rest = paragraph
        for text in (*sentences, *NAMES):
            rest = rest.replace(text, "")
        if re.search(r"\d", re.sub(r"`[^`]*`", "", rest)):
            left.append(rest.strip())
    return left
