"""A document as Markdown for GitHub: same blocks, same bytes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

from flbench.literal import literal, visible
from flbench.report.blocks import Block, Charts, Code, Entry, Figure, Fold, Grid, Heading, Items, Paragraph, Updated


def to_markdown(blocks: Sequence[Block], folder: Path | None = None) -> str:
    """Return the document; ``folder`` is that of its file, to which links are relative; None: without figures."""
    texts = []
    for is_fold, group in groupby(blocks, lambda block: isinstance(block, Fold) and not block.in_markdown):
        members = list(group)
        texts += [_folds(members, folder)] if is_fold else [_block(block, folder) for block in members]
    return _joined(texts) + "\n"


def _folds(folds: Sequence[Block], folder: Path | None) -> str:
    """Return the lines of consecutive folds: links to their figures, and the names of all others."""
    lines, names = [], []
    for fold in folds:
        assert isinstance(fold, Fold)
        figures = [_address(block, folder) for block in fold.blocks if isinstance(block, Figure)]
        if figures and folder is not None:
            links = (f"[{literal(Path(link).stem)}]({link})" for link in figures)
            lines.append(f"{literal(fold.summary)}: {', '.join(links)}.")
        if any(not isinstance(block, Figure) for block in fold.blocks):
            names.append(literal(fold.summary))
    return "\n\n".join([*lines, *([f"In `--html`: {'; '.join(names)}."] if names else [])])


def _address(figure: Figure, folder: Path | None) -> str:
    return Path(os.path.relpath(figure.svg.resolve(), (folder or Path()).resolve())).as_posix()


def _joined(texts: Iterable[str]) -> str:
    return "\n\n".join(filter(None, texts))


def _block(block: Block, folder: Path | None) -> str:
    match block:
        case Heading():
            return f"{'#' * block.level} {literal(block.text)}"
        case Paragraph():
            return "\n".join(f"> {line}" if block.warning else line for line in block.text.split("\n"))
        case Items():
            return "\n".join(f"- {text}" for text in block.texts)
        case Code():
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", block.text)), default=0))
            return f"{fence}sh\n{visible(block.text)}\n{fence}"
        case Grid():
            return _grid(block)
        case Figure():
            return "" if folder is None else f"![{literal(block.caption)}]({_address(block, folder)})"
        case Fold(in_markdown=True):
            inside = to_markdown(block.blocks, folder)
            return f'<details markdown="1">\n<summary>{literal(block.summary)}</summary>\n\n{inside}\n</details>'
        case Fold():
            return _folds([block], folder)
        case Charts() | Updated():
            return ""


def _grid(grid: Grid) -> str:
    rule = _line("---:" if grid.is_number(column) else "---" for column in range(len(grid.head)))
    return "\n".join(
        [
            _line("<br>".join(map(literal, head.split("\n"))) for head in grid.head),
            rule,
            *(_line(map(_entry, row)) for row in grid.rows),
        ]
    )


def _line(texts: Iterable[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"


def _entry(entry: Entry) -> str:
    text = f"**{literal(entry.text)}**" if entry.bold else literal(entry.text)
    first = " ".join(filter(None, [text, entry.mark]))
    below = map(literal, entry.below)
    return "<br>".join([*([first] if first else []), *(f"<sub>{line}</sub>" if first else line for line in below)])
